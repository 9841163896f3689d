"""Take the smallest network of each family of timm through export, `simplify` and `fuse`, and tabulate what came of it.

    PYTHONPATH=toolkit python benchmarks/timm_families.py [FAMILY ...] [--most 30] [--older]

Weights are random, running statistics too. Each row: signal to noise of the export against PyTorch; nodes as exported
and after both steps; signal to noise after them, on a sample that no check saw; bytes over those of the export; and the
time of the export over that of the result, median of runs in turns with its interval, on one core. `--older` exports
with torch.onnx.export(dynamo=False) at opset 17, where `edgeopt export` writes opset 18. Needs timm and the extra
`export`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from exporters import median_interval

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.export.export import export
from edgeopt.export.network import NetworkInput
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model, load_model
from edgeopt.steps.fuse import fuse
from edgeopt.steps.simplify import simplify

ROUNDS = 30
HEAD = ("family", "network", "export", "nodes", "after", "bytes", "speed")


def make(name: str = "") -> Any:
    """Return a network of timm in use, with random weights and running statistics."""
    import timm
    import torch

    torch.manual_seed(0)
    made = timm.create_model(name or CHOSEN[0], pretrained=False)
    for key, buffer in made.named_buffers():
        if key.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        if key.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return made.eval()


CHOSEN = [""]
"""The network that `make` makes where no name is given: an exporter calls it without."""


def smallest(families: list[str], most: float) -> dict[str, tuple[str, int]]:
    """Return name and side of the smallest network of each family, of at most so many million parameters."""
    import timm
    import torch

    found = dict[str, tuple[float, str, int]]()
    for name in timm.list_models():
        family = timm.models._registry._model_to_module[name]
        if families and family not in families:
            continue
        with contextlib.suppress(Exception), torch.device("meta"):  # some need a package, some no picture
            made = timm.create_model(name)
            size = sum(one.numel() for one in made.parameters()) / 1e6
            side = int(made.default_cfg["input_size"][1])
            found[family] = min(found.get(family, (size, name, side)), (size, name, side))
    return {family: (name, side) for family, (size, name, side) in sorted(found.items()) if size <= most}


def exported(name: str, shape: tuple[int, ...], file: Path, *, older: bool) -> str:
    """Write a network as ONNX; return how near it is to PyTorch, where that was measured."""
    import torch

    if older:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            given = (torch.zeros(shape),)
            torch.onnx.export(make(name), given, str(file), dynamo=False, opset_version=17, input_names=["images"])
        return "-"
    CHOSEN[0] = name
    made = export("torch:timm_families:make", out=file, inputs=[NetworkInput("images", shape)])
    return f"{made.outputs[0].drift.sqnr_db:.0f} dB"


def row(family: str, name: str, side: int, folder: Path, *, older: bool) -> list[str]:
    """Take one network the whole way, and return its cells."""
    shape, file = (1, 3, side, side), folder / "model.onnx"
    near = exported(name, shape, file, older=older)
    model = load_model(file, name)
    seen, unseen = ({"images": np.random.default_rng(i).normal(size=shape).astype(np.float32)} for i in (0, 1))
    result = fuse(simplify(model, {"images": shape}, [seen]).model, [seen]).model
    drift, speed = compare(model, result, unseen)
    nodes = f"{len(model.proto.graph.node)} to {len(result.proto.graph.node)}"
    return [family, name, near, nodes, drift, f"{result.size_bytes / model.size_bytes:.3f}", speed]


def compare(model: Model, result: Model, unseen: dict[str, Any]) -> tuple[str, str]:
    """Return how far the answers of two models lie apart, and the time of the first over that of the second."""
    sessions = [EXECUTOR.open(one.source, SessionOptions(threads=1)) for one in (model, result)]
    drift = measure_drift(*(one.run(unseen) for one in sessions))
    times = np.empty((ROUNDS, 2))
    for i in range(-3, ROUNDS):
        for j in (0, 1) if i % 2 else (1, 0):
            began = perf_counter_ns()
            sessions[j].run(unseen)
            times[i, j] = perf_counter_ns() - began
    for one in sessions:
        one.close()
    ratio, low, high = median_interval(times[:, 0] / times[:, 1])
    return f"{drift.sqnr_db:.0f} dB", f"{ratio:.2f}x [{low:.2f}, {high:.2f}]"


def main(families: list[str], most: float, *, older: bool) -> None:
    """Print a row for each family."""
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for family, (name, side) in smallest(families, most).items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                cells = row(family, name, side, Path(folder), older=older)
            except EdgeoptError as error:
                cells = [family, name, f"refused: {error}"[:200]]
            except Exception as error:  # torch's older exporter raises what its tracing ends in
                cells = [family, name, f"torch: {error}"[:120].replace("\n", " ")]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    # `export` imports `make` by this name: without it that would be a second copy, with a CHOSEN of its own
    sys.modules["timm_families"] = sys.modules["__main__"]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="Families of timm; all by default.")
    parser.add_argument("--most", type=float, default=30, help="Million parameters.")
    parser.add_argument("--older", action="store_true", help="Export by tracing, opset 17.")
    asked = parser.parse_args()
    main(asked.families, asked.most, older=asked.older)
