"""Does every reader of files from outside end in an answer or in one line, whatever the file holds?

Each round takes a whole file, spoils it by a rule drawn from a seed (bits, lengths, parts doubled or lost, values that
no sane file has) and reads it as the commands do. Only `EdgeoptError` may be raised, in one line, within a few seconds
and without a warning. A seed that fails is kept in `results/fuzz.json` and told with the command that repeats it.

    python benchmarks/fuzz.py --minutes 60
    python benchmarks/fuzz.py --reader labels --seed 4711
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.drift import Drift
from edgeopt.graph.model import find_model, load_model
from edgeopt.inspection.inspect import inspect
from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.measurement.accuracy.evaluate import open_labelled
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.check.baseline import Baseline, read_baseline, write_baseline
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import Candidate, Latency, StageTime
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.report.summary import summarize, write_report
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.report.formats import names, render
from edgeopt.runtime.devices.availability import find_device
from edgeopt.system.disk import assets
from edgeopt.system.machine.environment import Environment, Fact, Use, read_environment
from edgeopt.tasks import Accuracy, make_task

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
_SECONDS = 20
"""Seconds of processor time: longer than any reader needs for a small file."""
_MEMORY_BYTES = 6 << 30
_BATCH = 40
"""Files a process reads: a crash loses one process."""
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**70,
        -(2**70),
        1e308,
        -1e308,
        1e-320,
        0.5,
        "",
        " ",
        "0",
        "-1",
        "nan",
    ),
    *(
        "x" * 4000,
        "../../../../etc/hostname",
        "/etc/hostname",
        "a\0b",
        "\x1b[31mred",
        "<script>",
        "[/d]",
        "\ud800",
        "\u202e",
    ),
    *([], {}, [[]], [None], {"id": 1}, [1, 2], ["1", "2", "3", "4"], [0, 0, -5, 5], float("nan"), float("inf")),
)
_TOML_VALUES = (
    *(
        "-1",
        "0",
        "1",
        "99999",
        "1e308",
        "nan",
        "inf",
        "-inf",
        "true",
        '""',
        '"banana"',
        "[]",
        "{}",
        "[[]]",
        '["a", "b"]',
    ),
    *("9" * 5000, str(2**70), "0x" + "f" * 400, "1979-05-27T07:32:00Z", '"' + "x" * 4000 + '"', "[" * 500 + "]" * 500),
    *("[0, 0]", "[1, 2, 3, 4, 5]", "[-1]", "[1e308, 1e308]", '"../../../etc/hostname"', '"\\u001b[31m"', "1000000"),
)


@dataclass(frozen=True)
class Reader:
    """One way in: files that it reads, how to spoil one, and how to read it."""

    make: Callable[[Path], list[Path]]
    """Write whole files into a folder; the ones to be spoiled."""
    spoil: Callable[[random.Random, bytes], bytes]
    read: Callable[[Path], object]


def spoil_bytes(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few changes: bits, stretches lost, doubled, zeroed or drawn, ends cut."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not made:
            break
        at, length = chance.randrange(len(made)), chance.choice((1, 2, 4, 8, 64, 1024))
        kind = chance.randrange(8)
        if kind == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[at] = chance.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del made[at : at + length]
        elif kind == 3:
            made[at:at] = made[at : at + length]
        elif kind == 4:
            made[at : at + length] = bytes(min(length, len(made) - at))
        elif kind == 5:
            made[at : at + length] = chance.randbytes(length)
        elif kind == 6:
            del made[chance.choice((at, len(made) // 2, len(made) - 1)) :]
        else:
            number = chance.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 65535))
            made[at : at + 4] = struct.pack(chance.choice("<>") + "I", number)
    return bytes(made)


def spoil_json(chance: random.Random, data: bytes) -> bytes:
    """Return JSON with values replaced, doubled or lost anywhere in it; sometimes plain bytes changed."""
    if chance.random() < 0.1:
        return spoil_bytes(chance, data)
    values = json.loads(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        places = [(holder, key) for holder in _holders(values) for key in _keys(holder)]
        if not places:
            break
        holder, key = chance.choice(places)
        kind = chance.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif kind == 2:
            other, place = chance.choice(places)
            holder[key] = json.loads(json.dumps(other[place])) if _holds(other, place) else None
        elif kind == 3 and isinstance(holder, dict):
            holder[chance.choice(("", "id", "schema", "x" * 300, "\x1b[31m"))] = copy.deepcopy(chance.choice(_VALUES))
        else:
            holder[key] = copy.deepcopy(chance.choice(_VALUES))  # shared lists would come to hold themselves
    text = json.dumps(values)
    return (text.replace("0.5", "[" * 2000, 1) if chance.random() < 0.02 else text).encode()


def _holds(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(min(len(holder), 50)))


def _holders(values: Any) -> Iterator[Any]:
    waiting = [values]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            yield one
            waiting.extend(one.values() if isinstance(one, dict) else one[:50])


def spoil_lines(chance: random.Random, data: bytes) -> bytes:
    """Return lines of `key = value` or of cells with values replaced, and lines lost, doubled or moved."""
    if chance.random() < 0.1:
        return spoil_bytes(chance, data)
    lines = data.decode().splitlines()
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, kind = chance.randrange(len(lines)), chance.randrange(5)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(chance.randrange(len(lines)), lines[at])
        elif "=" in lines[at]:
            lines[at] = f"{lines[at].partition('=')[0]}= {chance.choice(_TOML_VALUES)}"
        else:
            cells = lines[at].split(",")
            cells[chance.randrange(len(cells))] = chance.choice(
                ("", "-1", "x" * 5000, '"', "1e9", "9" * 5000, "\0", "a,b")
            )
            lines[at] = ",".join(cells)
    return "\n".join(lines).encode()


def spoil_archive(chance: random.Random, data: bytes) -> bytes:
    """Return an .npz with spoiled arrays in a whole archive, arrays of odd types and shapes, or spoiled bytes."""
    kind = chance.randrange(3)
    if kind == 0:
        return spoil_bytes(chance, data)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", chance.choice((0, 8))) as new:
        for name in old.namelist():
            inside = old.read(name)
            if chance.random() < 0.5:
                inside = _odd_array(chance) if kind == 1 else spoil_bytes(chance, inside)
            new.writestr(
                chance.choice((name, name, name, f"x{name}", f"../{name}", f"{name}.txt", f"\x1b[31m{name}")), inside
            )
    return made.getvalue()


def _odd_array(chance: random.Random) -> bytes:
    made = io.BytesIO()
    shape = chance.choice(((), (0,), (3,), (2, 0, 5), (1,) * 20, (2, 3, 4, 4), (2, 8, 8, 3), (1, 0, 0, 3)))
    dtype = chance.choice(
        [
            "float32",
            "float64",
            "float16",
            "uint8",
            "int64",
            "bool",
            "complex64",
            "U5",
            "S5",
            "datetime64[s]",
            ">f4",
            "V3",
        ]
    )
    np.save(made, np.zeros(shape, dtype), allow_pickle=False)
    data = made.getvalue()
    if chance.random() < 0.3:
        large = chance.choice((b"(999999999999, 3)", b"(-1, 3)", b"(3,) * 10", b"'shape'", b"(" * 50))
        data = data.replace(str(shape).encode(), large)
    return data


def spoil_picture(chance: random.Random, data: bytes) -> bytes:
    """Return a picture spoiled mostly in its head, where sizes and depths stand."""
    if chance.random() < 0.5:
        head = chance.choice((32, 64, 200))
        return spoil_bytes(chance, data[:head]) + data[head:]
    return spoil_bytes(chance, data)


def spoil_model(chance: random.Random, data: bytes) -> bytes:
    """Return an ONNX file with fields replaced, or spoiled bytes."""
    if chance.random() < 0.5:
        return spoil_bytes(chance, data)
    import onnx

    proto = onnx.load_from_string(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _spoil_graph(chance, proto)
    return bytes(proto.SerializeToString())


def _spoil_graph(chance: random.Random, proto: Any) -> None:
    graph, number = proto.graph, chance.choice((0, -1, 1, 99, 2**31, 2**40, 1_000_000))
    node = chance.choice(graph.node) if graph.node else None
    tensor = chance.choice(graph.initializer) if graph.initializer else None
    value = chance.choice([*graph.input, *graph.output])
    kind = chance.randrange(12)
    if kind == 0 and node:
        graph.node.remove(node)
    elif kind == 1 and node and node.input:
        node.input[chance.randrange(len(node.input))] = chance.choice(("", "none", *graph.node[0].output[:1]))
    elif kind == 2 and node:
        del node.output[:]
    elif kind == 3 and node:
        node.op_type = chance.choice(("", "Conv", "Loop", "Banana", "Identity", "Reshape", "If", "SequenceEmpty"))
    elif kind == 4 and node and node.attribute:
        attribute = chance.choice(node.attribute)
        attribute.type, attribute.i = chance.choice((0, 1, 2, 3, 7)), number
    elif kind == 5 and tensor:
        tensor.data_type = chance.choice((0, 1, 7, 8, 99))
    elif kind == 6 and tensor and tensor.dims:
        tensor.dims[chance.randrange(len(tensor.dims))] = number
    elif kind == 7:
        dims = value.type.tensor_type.shape.dim
        if dims:
            chance.choice(dims).dim_value = number
    elif kind == 8:
        value.type.tensor_type.elem_type = chance.choice((0, 8, 10, 99))
    elif kind == 9:
        value.name = chance.choice(("", "\x1b[31m", "x" * 3000, "[/d]"))
    elif kind == 10:
        entry = proto.metadata_props.add()
        entry.key = chance.choice(("imgsz", "names", "stride", "task", "\x1b[31m"))
        entry.value = chance.choice(("[0, 0]", "[1000000, 1000000]", "-" * 100_000, "(" * 5000, "{0: 'a'", "nan", ""))
    elif proto.opset_import:
        proto.opset_import[0].version = number


FACTS = Environment({"cpu.model": Fact(Use.CRITICAL, "a"), "model.sha256": Fact(Use.SUBJECT, "0" * 64)})


def _samples() -> Samples:
    times = np.full((20, 2), 1_000_000, np.int64)
    return Samples(("preprocess", "execute"), times, times.sum(axis=1), np.arange(20) < 5)


def make_labels(folder: Path) -> list[Path]:
    """Boxes of two small pictures."""
    picture = np.zeros((48, 64, 3), np.uint8)
    for i in (1, 2):
        cv2.imwrite(str(folder / f"{i}.png"), picture)
    images = [{"id": i, "file_name": f"{i}.png", "width": 64, "height": 48} for i in (1, 2)]
    boxes = [
        {"id": i, "image_id": i, "category_id": 3, "bbox": [1, 2, 10, 20], "area": 200, "iscrowd": 0} for i in (1, 2)
    ]
    values = {"images": images, "annotations": boxes, "categories": [{"id": 3, "name": "0"}, {"id": 4, "name": "1"}]}
    (folder / "labels.json").write_text(json.dumps(values))
    return [folder / "labels.json"]


def read_labels_whole(path: Path) -> object:
    """Open labels and pictures, and score answers of a detector that finds nothing and one that finds a box."""
    from edgeopt.tasks.detection.boxes import Detections

    labelled = open_labelled(path)
    shipped = find_model("digits_detector")
    loaded = load_model(shipped)
    recipe = choose_recipe(None, shipped, loaded.inputs, loaded.outputs, loaded.metadata).recipe
    task = make_task(recipe, loaded.inputs, loaded.outputs, evaluating=True)
    found = Detections(np.array([[1, 2, 11, 22]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))
    return task.score([found] * len(labelled.frames), labelled.labels)


def make_csv(folder: Path) -> list[Path]:
    """Classes of three pictures, with and without a head."""
    for name in "abc":
        cv2.imwrite(str(folder / f"{name}.png"), np.zeros((8, 8, 3), np.uint8))
    (folder / "one.csv").write_text("file,class_index\na.png,1\nb.png,2\nc.png,3\n")
    (folder / "two.csv").write_text("a.png,1\nb.png,2\n")
    return [folder / "one.csv", folder / "two.csv"]


def make_archives(folder: Path) -> list[Path]:
    """Pictures, and inputs by name."""
    np.savez(folder / "pictures.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    np.savez_compressed(folder / "inputs.npz", x=np.zeros((3, 4), np.float32), ids=np.zeros((3, 2), np.int64))
    return [folder / "pictures.npz", folder / "inputs.npz"]


def make_pictures(folder: Path) -> list[Path]:
    """One picture in every format."""
    picture = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    made = []
    for suffix in ("jpg", "png", "bmp", "webp", "tiff", "ppm", "pgm"):
        path = folder / suffix / f"a.{suffix}"
        path.parent.mkdir()
        cv2.imwrite(str(path), picture if suffix != "pgm" else picture[..., 0])
        made.append(path)
    return made


def read_frames(path: Path) -> object:
    """Read every frame, and prepare it as the digit detector takes it."""
    shipped = find_model("digits_detector")
    loaded = load_model(shipped)
    recipe = choose_recipe(None, shipped, loaded.inputs, loaded.outputs, loaded.metadata).recipe
    task = make_task(recipe, loaded.inputs, loaded.outputs, evaluating=False)
    frames = open_frames(path)
    for frame in frames:
        if not isinstance(frame, Mapping):
            task.preprocess(frame)
    return frames.shapes


def make_targets(folder: Path) -> list[Path]:
    """Profiles of a processor, of an NPU, and one that chooses."""
    names = ("cpu-x86-avx2", "qualcomm-htp-v73", "nvidia-tensorrt", "cpu")
    for name in names:
        shutil.copy(assets.folder("targets") / f"{name}.toml", folder)
    return [folder / f"{name}.toml" for name in names]


def make_recipes(folder: Path) -> list[Path]:
    """Recipes of both kinds, with class names beside them."""
    made = []
    for name in ("digits_detector", "yolox"):
        place = folder / name
        place.mkdir()
        for file in (one for one in assets.model_folders()[name].iterdir() if one.suffix in (".toml", ".txt")):
            shutil.copy(file, place)
        made.append(place / "recipe.toml")
    return made


def read_recipe_bound(path: Path) -> object:
    """Read a recipe, bind it to the digit detector, and answer one picture."""
    shipped = find_model("digits_detector")
    find_recipe(str(path))
    loaded = load_model(shipped)
    recipe = choose_recipe(str(path), shipped, loaded.inputs, loaded.outputs, loaded.metadata).recipe
    task = make_task(recipe, loaded.inputs, loaded.outputs, evaluating=False)
    inputs, geometry = task.preprocess(np.zeros((24, 32, 3), np.uint8))
    outputs = {
        one.name: np.zeros([size if isinstance(size, int) else 1 for size in one.shape], np.float32)
        for one in loaded.outputs
    }
    return inputs, task.postprocess(outputs, geometry)


def make_baseline(folder: Path) -> list[Path]:
    """A baseline with everything that one can hold."""
    scored = Scored(Accuracy("AP", 0.5, 2, {"AP50": 0.6}), (0.4, 0.5), "labels.json", "0" * 64)
    facts = {field.name: "x" for field in dataclasses.fields(Baseline)}
    held = {"accuracy": scored.to_json(), "size": 10, "memory": [1, 2, 3], "cold_start": [1, 2, 3]}
    own = {"threads": 1, "settings": {"recipe": None}, "held": held, "trust": "trusted", "trust_reasons": ("quiet",)}
    whole = facts | own | {"environment": FACTS, "samples": _samples()}
    write_baseline(Baseline(**whole), folder / "baseline.json")
    return [folder / "baseline.json", folder / "baseline.npz"]


def read_baseline_whole(path: Path) -> object:
    """Read a baseline, whichever of its two files is spoiled."""
    found = read_baseline(path.with_suffix(".json"))
    times = found.samples.summary() if found.samples else None
    return found.locate(path), times, found.environment.why_not_comparable(FACTS)


def make_result(folder: Path) -> list[Path]:
    """Return the files that `bench -o` leaves."""
    values = {"schema": 2, "name": "a", "source": "b", "environment": FACTS.to_json(), "trust": {"level": "trusted"}}
    (folder / "bench.json").write_text(json.dumps(values))
    _samples().save(folder / "samples.npz")
    return [folder / "bench.json", folder / "samples.npz"]


def read_result_whole(path: Path) -> object:
    """Read a result and its figures."""
    found = read_stored(path.parent)
    return found.samples.summary(), found.environment.why_not_comparable(FACTS)


def make_report(folder: Path) -> list[Path]:
    """A report of two candidates."""
    time = StageTime(1.0, 1.1, 1.2)
    latency = Latency(frame=time, stages={"execute": time}, frames=100, verdict="PASS", detail="well inside")
    plain: dict[str, Any] = {"parent": "", "steps": (), "precision": "fp32", "size_bytes": 1000}
    notes = (Note(NoteKind.WARNING, "careful", "mend it", ("node",)),)
    first = Candidate(name="original", file="candidates/original/model.onnx", latency=latency, **plain)
    other = dataclasses.replace(
        first,
        name="fuse",
        parent="original",
        drift=Drift(0.1, 0.99, 40.0),
        speed=Ratio(1.1, 1.0, 1.2, Change.FASTER),
        notes=notes,
    )
    words = {one.name: "x" for one in dataclasses.fields(ModelReport) if one.default is dataclasses.MISSING}
    whole = words | {
        "environment": read_environment(),
        "threads": 1,
        "budget_ms": 33.3,
        "budget_asked": True,
        "max_drop": 0.01,
    }
    whole |= {
        "candidates": (first, other),
        "chosen": "fuse",
        "folder": folder,
        "bundle": folder / "bundle",
        "notes": notes,
    }
    write_report(ModelReport(**whole))
    return [folder / "report.json"]


def read_report_whole(path: Path) -> object:
    """Read a report and write it again, in every format."""
    found = read_report(path.parent, ModelReport)
    return found.verdict_line, found.exit_code, [render(summarize(found), name) for name in names()]


def make_bundle(folder: Path) -> list[Path]:
    """A bundle of the digit detector."""
    from edgeopt.runtime.bundle import make_artefact, write_bundle

    path, target = find_model("digits_detector"), find_device("cpu-x86-avx2")
    loaded = load_model(path)
    recipe = choose_recipe(None, path, loaded.inputs, loaded.outputs, loaded.metadata).recipe
    artefact = make_artefact("model.onnx", path.read_bytes(), "fp32", target, 1)
    write_bundle(folder / "bundle", [(artefact, path.read_bytes())], target, recipe, {}, {})
    return [folder / "bundle" / "manifest.json"]


def read_bundle_whole(path: Path) -> object:
    """Read a bundle."""
    from edgeopt.runtime.bundle import read_bundle

    return read_bundle(path.parent).recipe


def make_models(folder: Path) -> list[Path]:
    """The digit detector, and a model of three nodes."""
    from onnx import TensorProto, helper, save

    shutil.copy(find_model("digits_detector"), folder / "digits.onnx")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3, 1, 1], [0.5] * 6)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", kernel_shape=[1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "second"),
        helper.make_node("GlobalAveragePool", ["b"], ["y"], "third"),
    ]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3, 8, 8]), ("y", [1, 2, 1, 1]))
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "small.onnx")
    )
    return [folder / "small.onnx", folder / "digits.onnx"]


def read_model_whole(path: Path) -> object:
    """Inspect a model, which reads its recipe too."""
    return inspect(str(path), target=None, recipe=None)


def spoil_head(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes of a file with a length, a count or a few bytes of its head changed."""
    if chance.random() < 0.3:
        return spoil_bytes(chance, data)
    made, at = bytearray(data), chance.randrange(min(len(data), 4096))
    made[at : at + 8] = struct.pack("<Q", chance.choice((0, 1, 2**20, 2**31, 2**60, 2**64 - 1, len(data))))
    return bytes(made)


def make_gguf(folder: Path) -> list[Path]:
    """A file with keys, a vocabulary and a tensor, as llama.cpp has it."""
    import gguf

    writer = gguf.GGUFWriter(folder / "net.gguf", "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(64)])
    writer.add_token_types([1] * 64)
    writer.add_tensor("token_embd.weight", np.ones((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [folder / "net.gguf"]


def read_gguf(path: Path) -> object:
    """Read the head, and what it tells of a decoder."""
    from edgeopt.export.decoder.gguf.file import GgufFile

    return GgufFile(path).config


def make_safetensors(folder: Path) -> list[Path]:
    """Weights as `save_pretrained` writes them."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(64))
    return [folder / "model.safetensors"]


def read_safetensors(path: Path) -> object:
    """Read the head and the one tensor."""
    from edgeopt.export.decoder.tensors_file import TensorFiles

    return TensorFiles(path.parent).read("w", (4, 4))


_PATTERNS = ("(a+)+$", "(a|a)*b", "a*a*a*a*a*b", "(", "", "x?", "(?:a{1000}){1000}", r"\\p{L}+")


def spoil_tokenizer(chance: random.Random, data: bytes) -> bytes:
    """Return a tokenizer with a pattern of its own, or with spoiled values."""
    if chance.random() < 0.5:
        return spoil_json(chance, data)
    values = json.loads(data)
    pattern = {"Regex": chance.choice(_PATTERNS)}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    swap = {"type": "Replace", "pattern": pattern, "content": "b" * chance.choice((0, 1, 100_000))}
    values |= {"pre_tokenizer": split} if chance.random() < 0.5 else {"normalizer": swap}
    return json.dumps(values).encode()


def make_tokenizer(folder: Path) -> list[Path]:
    """The tokenizer of the shipped language model."""
    shutil.copy(find_model("tiny_lm").parent / "tokenizer.json", folder)
    return [folder / "tokenizer.json"]


def read_tokenizer(path: Path) -> object:
    """Read a tokenizer and two texts with it."""
    from edgeopt.recipes.texts.tokens import read_tokens

    tokens = read_tokens(path)
    return [tokens.decode(tokens.encode(text)) for text in ("import os", "a" * 60 + "b")]


_TEMPLATE = """{%- for message in messages %}
{{- '<|' + message.role + '|>' + message.content | trim }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
_JINJA = (
    "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}",
    "{{ strftime_now('%s' * 1000000) }}",
    "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "{{ 'a' * 10 ** 9 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ messages.__class__.__mro__ }}",
    "{% include '/etc/hostname' %}",
)


def spoil_template(chance: random.Random, data: bytes) -> bytes:
    """Return a template with a hostile part in it, or with bytes changed."""
    if chance.random() < 0.5:
        return spoil_bytes(chance, data)
    at = chance.randrange(len(data))
    return data[:at] + chance.choice(_JINJA).encode() + data[at:]


def make_template(folder: Path) -> list[Path]:
    """A template of three lines."""
    (folder / "chat_template.jinja").write_text(_TEMPLATE, "utf-8")
    return [folder / "chat_template.jinja"]


def read_template(path: Path) -> object:
    """Read a template and write a conversation with it."""
    from edgeopt.recipes.texts.chat_template import ChatMessage, read_chat_template

    template = read_chat_template(path.parent)
    with contextlib.suppress(ValueError):  # which a server answers with status 400
        return template.text_of([ChatMessage("user", "hello")]) if template else None
    return None


READERS: Mapping[str, Reader] = {
    "labels": Reader(make_labels, spoil_json, read_labels_whole),
    "csv": Reader(make_csv, spoil_lines, open_labelled),
    "npz": Reader(make_archives, spoil_archive, read_frames),
    "pictures": Reader(make_pictures, spoil_picture, read_frames),
    "target": Reader(make_targets, spoil_lines, lambda path: find_device(str(path))),
    "recipe": Reader(make_recipes, spoil_lines, read_recipe_bound),
    "baseline": Reader(make_baseline, lambda c, d: _by_kind(c, d), read_baseline_whole),
    "result": Reader(make_result, lambda c, d: _by_kind(c, d), read_result_whole),
    "report": Reader(make_report, spoil_json, read_report_whole),
    "manifest": Reader(make_bundle, spoil_json, read_bundle_whole),
    "model": Reader(make_models, spoil_model, read_model_whole),
    "gguf": Reader(make_gguf, spoil_head, read_gguf),
    "safetensors": Reader(make_safetensors, spoil_head, read_safetensors),
    "tokenizer": Reader(make_tokenizer, spoil_tokenizer, read_tokenizer),
    "template": Reader(make_template, spoil_template, read_template),
}


def _by_kind(chance: random.Random, data: bytes) -> bytes:
    return spoil_archive(chance, data) if data.startswith(b"PK") else spoil_json(chance, data)


def attempt(name: str, seed: int, folder: Path) -> str:
    """Spoil one file and read it; return what is wrong with how it ended, empty where nothing is.

    Args:
        name: Of a reader.
        seed: Decides the file and how it is spoiled.
        folder: Holds the reader's whole files, made here when it is empty; they are whole again afterwards.
    """
    reader, chance = READERS[name], random.Random(f"{name} {seed}")
    if not (folder / "files.json").is_file():
        (folder / "files.json").write_text(json.dumps([str(one) for one in reader.make(folder)]))
    path = Path(chance.choice(json.loads((folder / "files.json").read_text())))
    whole = path.read_bytes()
    path.write_bytes(reader.spoil(chance, whole))
    try:
        return _wrong_end(reader, path)
    finally:
        path.write_bytes(whole)


def _wrong_end(reader: Reader, path: Path) -> str:
    began, told = time.process_time(), io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(told):
            warnings.simplefilter("error")
            reader.read(path)
    except EdgeoptError as error:
        if "\n" in error.problem.strip() or len(error.problem) > 1500:
            return f"a message of {len(error.problem)} characters: {error.problem[:200]!r}"
    except Exception as error:  # whatever it is, it is what is looked for
        place = traceback.extract_tb(error.__traceback__)
        ours = [one for one in place if "edgeopt" in one.filename] or place
        return f"{type(error).__name__} in {Path(ours[-1].filename).name}:{ours[-1].name}: {str(error)[:150]}"
    took = time.process_time() - began
    return f"it took {took:.0f} s" if took > _SECONDS else ""


def main() -> None:
    """Run until the time is over; print and keep what failed."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--minutes", type=float, default=1.0)
    words.add_argument("--reader", choices=READERS)
    words.add_argument("--seed", type=int, help="Repeat this one, in this process.")
    words.add_argument("--results", type=Path, default=RESULTS)
    words.add_argument("--first", type=int, default=0, help="The first seed.")
    words.add_argument("--batch", type=int, nargs=2, help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.seed is not None or asked.batch:
        seeds = range(asked.batch[0], asked.batch[1]) if asked.batch else range(asked.seed, asked.seed + 1)
        _run_batch(asked.reader, seeds)
        return
    names, counts, failed = [asked.reader] if asked.reader else list(READERS), Counter[str](), {}
    ends, at = time.monotonic() + asked.minutes * 60, asked.first
    while time.monotonic() < ends:
        for name in names:
            found, done = _batch_of(name, at)
            counts[name] += done
            for seed, reason in found.items():
                key = f"{name}: {reason.partition(':')[0]}"
                if key not in failed:
                    print(f"{name} --seed {seed}: {reason}", flush=True)
                failed.setdefault(key, {"reader": name, "seed": seed, "reason": reason, "count": 0})["count"] += 1
        at += _BATCH
        asked.results.write_text(json.dumps({"files": dict(counts), "failed": list(failed.values())}, indent=2) + "\n")
    print(f"{sum(counts.values())} files, {len(failed)} kinds of wrong ends")


def _run_batch(name: str, seeds: range) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            print(json.dumps([seed, None]), flush=True)
            print(json.dumps([seed, attempt(name, seed, Path(folder))]), flush=True)


def _batch_of(name: str, at: int) -> tuple[dict[int, str], int]:
    """Read a batch of files in a process of its own; one that crashes or hangs names the seed it died at."""
    command = [sys.executable, __file__, "--reader", name, "--batch", str(at), str(at + _BATCH)]
    with tempfile.TemporaryFile("w+") as out:
        try:
            code = subprocess.run(
                command, stdout=out, stderr=subprocess.DEVNULL, timeout=_SECONDS * _BATCH, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        out.seek(0)
        told = [json.loads(line) for line in out if line.startswith("[") and line.endswith("]\n")]
    ends = {seed: reason for seed, reason in told if reason is not None}
    failed = {seed: reason for seed, reason in ends.items() if reason}
    begun = [seed for seed, reason in told if reason is None]
    if begun and begun[-1] not in ends:
        failed[begun[-1]] = f"the process ended with code {code}"
    return failed, len(ends)


if __name__ == "__main__":
    main()
