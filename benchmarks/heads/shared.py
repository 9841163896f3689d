"""Shared parts of the scripts of this folder: weights that pack, an export, a comparison with the family's reading."""

from __future__ import annotations

import gzip
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "toolkit"))

from edgeopt.errors import EdgeoptError  # noqa: E402
from edgeopt.executors import SessionOptions  # noqa: E402
from edgeopt.executors.onnxruntime import EXECUTOR  # noqa: E402
from edgeopt.graph.model import load_model  # noqa: E402
from edgeopt.recipes.drafting.raw_values import fitting_numbers  # noqa: E402
from edgeopt.recipes.heads import find_head  # noqa: E402
from edgeopt.recipes.inputs.preprocess import Geometry  # noqa: E402
from edgeopt.recipes.recognise import choose_recipe  # noqa: E402
from edgeopt.tasks import make_task  # noqa: E402

HEADS = REPOSITORY / "tests" / "heads"
LEAST = 0.6
"""Score that candidates have."""
Outputs = Mapping[str, np.ndarray]
Answer = dict[str, np.ndarray]
Reader = Callable[[Outputs, np.ndarray], Answer]
"""(outputs, input) -> what the family finds above `LEAST`, before suppression, in pixels of the input"""


def row_of(seed: int) -> np.ndarray:
    """Return random numbers of few values, which pack well."""
    return (np.random.default_rng(seed).normal(size=1009) * 4).round().astype(np.float32) / 4


def spread(net: nn.Module, gain: float = 1.6, seed: int = 0) -> nn.Module:
    """Return a network whose weights are one row of random numbers again and again, ready to be exported."""
    row = row_of(seed)
    for module in net.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1:
            fan = weight[0].numel() if not isinstance(module, nn.ConvTranspose2d) else weight.shape[0]
            tiled = np.resize(row, weight.numel()).reshape(weight.shape) * np.float32(gain / fan**0.5)
            weight.data.copy_(torch.from_numpy(tiled))
    return net.eval()


def exported(net: nn.Module, size: tuple[int, int], **arguments: Any) -> Path:
    """Return the file that the exporter of torch writes, as all of these families' scripts call it."""
    path = Path("net.onnx")
    torch.onnx.export(net, torch.randn(1, 3, *size), str(path), dynamo=False, **arguments)
    return path


def above(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray | None = None) -> Answer:
    """Return the candidates above `LEAST`."""
    kept = scores > LEAST
    classes = np.zeros(len(scores), np.int64) if classes is None else classes
    return {"boxes": boxes[kept].astype(np.float32), "scores": scores[kept], "classes": classes[kept]}


def picture(shape: Sequence[int]) -> np.ndarray:
    """Return the made-up input that the tests make too."""
    return np.random.default_rng(1).uniform(0, 1, shape).astype(np.float32)


def found_in(path: Path, recipe: str, read: Reader) -> tuple[Answer, Answer]:
    """Return what edgeopt finds in a graph, and what the family finds."""
    model = load_model(path)
    choice = choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
    assert choice.recipe.name == recipe, f"recipe {choice.recipe.name} in place of {recipe}"
    shape = (1, 3, 128, 192) if "dbnet" in recipe else model.inputs[0].shape
    given = picture(shape)
    session = EXECUTOR.open(model.data, SessionOptions())
    outputs = session.run({model.inputs[0].name: given})
    session.close()
    wanted = read(outputs, given)
    size = (shape[-2], shape[-1])
    bound = choice.recipe.with_size(*size)
    if bound.task == "detection":
        ordered = [outputs[one.name] for one in model.outputs]
        numbers = fitting_numbers(bound.postprocess, size, [ordered])
        head = find_head(numbers.decoder)
        boxes, scores, classes = head.decode(ordered, numbers, size, LEAST)
        if recipe.startswith(("dbnet", "ssd")):
            boxes = np.clip(boxes, 0, [size[1], size[0], size[1], size[0]])
        told = {"boxes": boxes, "scores": scores, "classes": classes}
        if "points" in wanted:
            assert head.points is not None
            told["points"] = head.points(ordered, numbers, size, LEAST)
        return told, wanted
    found = make_task(bound, model.inputs, model.outputs, evaluating=False).postprocess(
        outputs, Geometry.of_input(size)
    )
    kept = found.scores > LEAST
    told = {name: getattr(found, name)[kept] for name in ("boxes", "scores", "classes")}
    if "points" in wanted:
        told["points"] = found.points[kept]
    if "masks" in wanted:
        told["masks"] = np.stack([found.mask(i) for i in np.flatnonzero(kept)])
    return told, wanted


def compared(found: Answer, wanted: Answer, *, is_rounded: bool) -> str:
    """Return what agrees; raise AssertionError where it does not. `is_rounded`: points are cut to pixels twice."""
    assert len(found["scores"]) == len(wanted["scores"]) >= 3, f"{len(found['scores'])} not {len(wanted['scores'])}"
    pairs = found["boxes"], wanted["boxes"]
    apart = np.abs(pairs[0][None] - pairs[1][:, None]).sum(2)
    apart += 100 * np.abs(found["scores"][None] - wanted["scores"][:, None])
    apart += 1e-6 * np.abs(np.arange(len(pairs[0]))[None] - np.arange(len(pairs[1]))[:, None])  # alike: in their order
    nearest = (apart + 1000 * (found["classes"][None] != wanted["classes"][:, None])).argmin(1)
    assert len(set(nearest)) == len(nearest), "two of the family are nearest to one"
    for name in {"boxes", "scores", "classes", "points"} & wanted.keys():
        off = 2.01 if name == "boxes" and is_rounded else 2e-2
        np.testing.assert_allclose(found[name][nearest], wanted[name], rtol=1e-3, atol=off, err_msg=name)
    furthest = np.abs(found["boxes"][nearest] - wanted["boxes"]).max()
    told = f"{len(found['scores'])} as the family finds, sides at most {furthest:.1g} px apart"
    if "masks" in wanted:
        differ = np.count_nonzero(found["masks"][nearest] != wanted["masks"])
        told += f", {differ} of {np.count_nonzero(wanted['masks'])} pixels of masks differ"
        assert differ <= 2 * len(found["scores"]), told
    return told


def run(families: Mapping[str, tuple[str, Callable[[], tuple[Path, Reader]]]]) -> None:
    """Do what the command line says; names of families choose among them.

    Args:
        families: By name the recipe that is to be chosen, and what makes the graph.
    """
    logging.disable()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    asked, failed = [one for one in sys.argv[1:] if not one.startswith("-")], 0
    store, sys.argv = "--store" in sys.argv, sys.argv[:1]
    with tempfile.TemporaryDirectory() as folder:
        for name, (recipe, make) in families.items():
            if asked and name not in asked:
                continue
            torch.manual_seed(0)
            place = Path(folder) / name
            place.mkdir()
            with chdir(place), redirect_stdout(io.StringIO()):
                path, read = make()
                path = path.absolute()
            try:
                found, wanted = found_in(path, recipe, read)
                told = f"{recipe}: " + compared(found, wanted, is_rounded=name == "dbnet_paddle")
            except (AssertionError, EdgeoptError) as error:
                told, failed = f"FAILED: {str(error).strip()}", failed + 1
            else:
                if store:
                    packed = HEADS / f"{name}.onnx.gz"
                    packed.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
                    np.savez_compressed(HEADS / f"{name}.npz", **wanted)
                    told += f", {packed.stat().st_size / 1024:.0f} KiB"
            print(f"{name:<22}{told}", flush=True)
    sys.exit(failed > 0)
