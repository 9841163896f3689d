"""Networks of frameworks on their whole way: export, `optimize` for cpu, run from the bundle, against the framework.

    PYTHONPATH=toolkit python benchmarks/exported.py FOLDER [KIND ...] [--seconds 60] [--pictures COCO]

Networks of Hugging Face and a module with residuals, depthwise convolutions and SiLU have random weights that behave
(`networks.py`). Each row: what was chosen, and where that is float the fastest INT8 form that kept its agreement, or
one with why it was refused; run from a bundle by `Runtime` on samples that nothing has seen, against PyTorch: cosine
and signal to noise of the worst output of the worst sample, the largest difference, and how often both decide the same.
A speed is of whole frames against the export, with its interval. Needs the extras `export` and `text`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

import networks
from made_texts import moods

from edgeopt.export.hugging_face import open_pretrained
from edgeopt.export.likeness import names_of_outputs
from edgeopt.export.network import NetworkInput
from edgeopt.export.source import read_source
from edgeopt.graph.drift import measure_drift, worst_drift
from edgeopt.graph.tensors import Tensors
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.optimize import optimize
from edgeopt.runtime.runtime import Runtime

COUNT = 32
"""Samples that judge; as many others calibrate, and the random weights start from them."""
HEAD = ("network", "form", "MiB", "speed", "agreement", "cosine", "SQNR", "largest difference", "decides the same")
DECIDES = {
    "mobilenet": "class",
    "vit": "class",
    "module": "class",
    "bert": "class",
    "segformer": "class of a pixel",
    "detr": "class of a query",
    "whisper": "nearest frame",
}

TASKS = {"whisper": "automatic-speech-recognition"}
"""Task for which a network is opened, where it is not its own: the encoder alone."""


def main(folder: Path, kinds: list[str], seconds: float, pictures: Path) -> None:
    """Take each network its whole way, and print its rows."""
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for kind in kinds:
        for cells in rows(kind, (folder / kind).resolve(), seconds, pictures):
            print(f"| {' | '.join(cells)} |", flush=True)


def rows(kind: str, folder: Path, seconds: float, pictures: Path) -> list[list[str]]:
    """Return the rows of a network: of the choice, and of an INT8 form where the choice is none."""
    known, unseen = samples_of(kind, pictures, "calib"), samples_of(kind, pictures, "val")
    module = networks.make(kind)
    asked = module.get_encoder() if kind == "whisper" else module
    networks.settle(asked, known)
    source = networks.store(kind, module, folder / kind)
    sys.path.insert(0, str(folder / kind))
    report = optimize(
        source,
        target="cpu",
        out=folder / "out",
        recipe="tensors" if kind == "module" else None,
        calib=str(calibration_of(kind, pictures, folder, known)),
        inputs=[NetworkInput(name, value.shape) for name, value in known[0].items()] if kind == "module" else (),
        skip=("prune",),
        task=TASKS.get(kind, ""),
        threads=1,
        time_limit_s=seconds,
        bundle_of=lambda one, _: folder / "int8" / one.name if is_integer(one) else None,
    )
    expected = of_framework(source, asked, kind, unseen)
    made = [row(kind, report.best, report.bundle, unseen, expected)]
    others = sorted(filter(is_integer, report.candidates), key=lambda one: (bool(one.refused), -speed_of(one)))
    if others and not is_integer(report.best):
        made.append(row(kind, others[0], folder / "int8" / others[0].name, unseen, expected))
    elif not others:
        made.append([kind, "no INT8 form was made within the time limit", *[""] * (len(HEAD) - 2)])
    (folder / "rows.json").write_text(json.dumps({"rows": made, "reason": report.reason}, indent=1))
    return made


def samples_of(kind: str, pictures: Path, part: str) -> list[Tensors]:
    """Return samples as the network takes them; `val` holds others than `calib`."""
    if kind == "whisper":
        return networks.spectrograms(COUNT)[::2] if part == "val" else networks.spectrograms(COUNT)[1::2]
    if kind == "bert":
        return networks.tokens([text for text, _ in moods(COUNT, seed=1 if part == "calib" else 2)])
    files = sorted((pictures / part).glob("*.jpg"))[:COUNT]
    made = [networks.picture(file, networks.SIDE[kind]) for file in files]
    return [{"images" if kind == "module" else "pixel_values": one} for one in made]


def calibration_of(kind: str, pictures: Path, folder: Path, known: list[Tensors]) -> Path:
    """Return what calibrates, as a user has it: pictures, texts, or arrays."""
    if kind not in ("whisper", "bert", "module"):
        return pictures / "calib"
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "bert":
        (folder / "calib.txt").write_text("".join(f"{text}\n" for text, _ in moods(COUNT, seed=1)))
        return folder / "calib.txt"
    np.savez(folder / "calib.npz", **{name: np.concatenate([one[name] for one in known]) for name in known[0]})
    return folder / "calib.npz"


def of_framework(source: str, module: Any, kind: str, unseen: list[Tensors]) -> list[Tensors]:
    """Return PyTorch's answers, each with the names that its export has."""
    import torch

    if kind == "module":
        asked, names = module, ("output",)
    else:
        network = open_pretrained(read_source(source, TASKS.get(kind, "")), ())
        asked, names = network.module, names_of_outputs(network)
    answers = list[Tensors]()
    with torch.no_grad():
        for one in unseen:
            told = asked(*(torch.from_numpy(value) for value in one.values()))
            tensors = (told,) if kind == "module" else tuple(told.values())
            answers.append({name: value.numpy() for name, value in zip(names, tensors, strict=True)})
    return answers


def is_integer(one: Candidate) -> bool:
    """Whether it computes in 8 bits."""
    return one.precision.startswith("w8")


def speed_of(one: Candidate) -> float:
    """Return how many times as fast as the export it was measured; 0: it was not."""
    return one.speed.speedup if one.speed else 0.0


def row(kind: str, one: Candidate, bundle: Path, unseen: list[Tensors], expected: list[Tensors]) -> list[str]:
    """Return what a bundle answers beside the framework, as cells."""
    with Runtime.load(bundle, threads=1) as runtime:
        taken = {tensor.name for tensor in runtime.session.inputs}
        found = [
            {name: value.copy() for name, value in runtime.session.run(only(sample, taken)).items()}
            for sample in unseen
        ]
    drift = worst_drift(measure_drift(theirs, ours) for theirs, ours in zip(expected, found, strict=True))
    both = zip(expected, found, strict=True)
    same = np.mean([np.mean(decided(kind, theirs) == decided(kind, ours)) for theirs, ours in both])
    return [
        kind,
        f"{one.name}, {one.precision}" + (f": {one.refused}" if one.refused else ""),
        f"{one.size_bytes / 2**20:.1f}",
        str(one.speed) if one.speed else "",
        "" if one.agreement is None else f"{one.agreement:.3f}",
        f"{drift.cosine:.6f}",
        f"{drift.sqnr_db:.1f} dB",
        f"{drift.max_abs:.2g}",
        f"{same:.3f} ({DECIDES[kind]})",
    ]


def only(sample: Tensors, names: set[str]) -> Tensors:
    """Return those of a sample that a model takes."""
    return {name: value for name, value in sample.items() if name in names}


def decided(kind: str, answer: Tensors) -> Any:
    """Return what a network decides."""
    if kind == "whisper":
        frames = answer["last_hidden_state"][0, ::10]
        frames = frames / np.linalg.norm(frames, axis=1, keepdims=True)
        return np.argmax(frames @ frames.T - 2 * np.eye(len(frames)), axis=1)
    scores = answer["output" if kind == "module" else "logits"]
    return np.argmax(scores, axis=1 if kind == "segformer" else -1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pictures", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "coco")
    asked = parser.parse_args()
    main(asked.folder, asked.kinds or list(networks.KINDS), asked.seconds, asked.pictures)
