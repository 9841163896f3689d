"""Networks of frameworks on their whole way: export, `optimize` for cpu with INT8 tried, run from the bundle.

    PYTHONPATH=toolkit python benchmarks/exported.py FOLDER [KIND ...]

Networks of Hugging Face are built from configurations with random weights, and a module with residuals, depthwise
convolutions and SiLU is written here. Each line: what was chosen, how many INT8 forms were candidates, and the bundle's
outputs against the framework's on a sample that nothing has seen, as signal to noise and cosine, the worst output.
Measures for a moment only: speeds are no result here. Needs the extra `export`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

from fixture_brief import briefly
from fixture_pretrained import KINDS, build

from edgeopt.graph.drift import measure_drift
from edgeopt.pipeline.export.hugging_face import open_pretrained
from edgeopt.pipeline.export.likeness import names_of_outputs
from edgeopt.pipeline.export.source import read_source
from edgeopt.pipeline.optimize import optimize
from edgeopt.runtime.runtime import Runtime

MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.deep, self.norm = nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False), nn.BatchNorm2d(width)
        self.point = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + self.point(nn.functional.silu(self.norm(self.deep(x))))


def net():
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU()]
    return nn.Sequential(*stem, Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
"""
SHAPE = (1, 3, 64, 64)


def main(folder: Path, kinds: list[str]) -> None:
    """Take each network its whole way, and print a line."""
    for kind in kinds:
        source, sizes = f"hf:{folder / kind}", {}
        if kind == "module":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "silu_module.py").write_text(MODULE)
            sys.path.insert(0, str(folder))
            source, sizes = "torch:silu_module:net", {"images": SHAPE}
        else:
            build(kind, folder / kind)
        samples, expected = framework(source, kind)
        calib = folder / f"{kind}.npz"
        np.savez(calib, **{name: np.concatenate([one[name] for one in samples[1:]]) for name in samples[0]})
        with briefly():
            pictures = "pixel_values" in samples[0] or kind == "module"
            report = optimize(
                source,
                target="cpu",
                out=folder / "out" / kind,
                recipe="tensors" if kind == "module" else None,
                calib=str(calib) if not pictures or kind == "module" else "synthetic",
                shapes=sizes,
                skip=("prune",),
            )
        print(line(kind, report, samples[0], expected), flush=True)


def framework(source: str, kind: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return nine samples, and the framework's outputs on the first."""
    import torch

    if kind == "module":
        module = importlib.import_module("silu_module").net().eval()
        samples = [{"images": np.random.default_rng(i).random(SHAPE, np.float32)} for i in range(9)]
        with torch.no_grad():
            return samples, {"output": module(torch.from_numpy(samples[0]["images"])).numpy()}
    network = open_pretrained(read_source(source), ())
    samples = [{one.name: one.draw(2 * i, {}) for one in network.inputs} for i in range(9)]
    for one in samples:
        one.update({name: np.ones_like(value) for name, value in one.items() if name == "attention_mask"})
    names = names_of_outputs(network)
    with torch.no_grad():
        answer = network.module(*(torch.from_numpy(samples[0][one.name]) for one in network.inputs))
    return samples, {name: np.asarray(value) for name, value in zip(names, answer.values(), strict=True)}


def line(kind: str, report: Any, sample: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what became of a network."""
    runtime = Runtime.load(report.bundle)
    known = {one.name for one in runtime.session.inputs}
    found = runtime.session.run({name: value for name, value in sample.items() if name in known})
    drifts = [measure_drift({name: value}, {name: found[name]}) for name, value in expected.items()]
    worst = min(drifts, key=lambda one: one.sqnr_db)
    integers = [one for one in report.candidates if one.precision.startswith("w8")]
    companions = (Path(report.bundle) / "config.json").is_file()
    told = {"kind": kind, "recipe": report.recipe, "chosen": report.chosen, "int8": len(integers)}
    told |= {"int8_agreement": max((round(one.agreement or 0, 3) for one in integers), default=None)}
    told |= {"sqnr_db": round(worst.sqnr_db, 1), "cosine": round(worst.cosine, 6), "companions": companions}
    return json.dumps(told)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [*KINDS, "module"])
