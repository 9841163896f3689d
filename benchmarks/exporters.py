"""Two exporters of the same networks: optimum's, and `edgeopt export`, which calls torch.onnx.export(dynamo=True).

    PYTHONPATH=toolkit python benchmarks/exporters.py THEIRS OURS [KIND ...]

THEIRS/KIND/model.onnx is what `optimum-cli export onnx` wrote, OURS/KIND/model.onnx what `edgeopt export` wrote of the
same weights. Each line: nodes as exported and after `simplify` and `fuse`, bytes after them, signal to noise of one's
outputs against the other's, and ours over theirs in time, median of runs in turns with its interval, on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model, load_model
from edgeopt.steps.fuse import fuse
from edgeopt.steps.simplify import simplify

ROUNDS = 200


def main(theirs: Path, ours: Path, kinds: list[str]) -> None:
    """Print a line for each network."""
    print("kind       nodes theirs/ours  fused theirs/ours   bytes theirs/ours   dB  theirs/ours, ms")
    for kind in kinds:
        own = load_model(ours / kind / "model.onnx", kind)
        other = load_model(theirs / kind / "model.onnx", kind)
        sizes = {one.name: tuple(int(str(size)) for size in one.shape) for one in own.inputs}
        sample = {one.name: draw(sizes[one.name], one.dtype) for one in own.inputs}
        made = [finished(one, sizes, sample) for one in (other, own)]
        sessions = [EXECUTOR.open(one.data, SessionOptions(threads=1)) for one in made]
        answers = [one.run(sample) for one in sessions]
        common = answers[0].keys() & answers[1].keys()
        drift = measure_drift(*({name: one[name] for name in sorted(common)} for one in answers))
        times = np.empty((ROUNDS, 2))
        for i in range(-20, ROUNDS):
            for j in (0, 1) if i % 2 else (1, 0):
                began = perf_counter_ns()
                sessions[j].run(sample)
                times[i, j] = perf_counter_ns() - began
        ratio, low, high = median_interval(times[:, 0] / times[:, 1])
        nodes = [len(one.proto.graph.node) for one in (other, own, *made)]
        sizes_told = f"{made[0].size_bytes:9} /{made[1].size_bytes:9}"
        print(
            f"{kind:10} {nodes[0]:8} /{nodes[1]:5} {nodes[2]:11} /{nodes[3]:5}  {sizes_told}  {drift.sqnr_db:3.0f}  "
            f"{ratio:.2f} [{low:.2f}, {high:.2f}] {np.median(times[:, 1]) / 1e6:.3f}"
        )


def median_interval(samples: np.ndarray) -> tuple[float, float, float]:
    """Return the median and a 95 % interval of it, from order statistics of the binomial."""
    ordered, half = np.sort(samples), 1.96 * len(samples) ** 0.5 / 2
    places = [len(samples) / 2, len(samples) / 2 - half, len(samples) / 2 + half]
    return tuple(float(ordered[int(place)]) for place in places)


def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers from 0 to 1, of whole ones from 0 to 9; a mask of ones is no part of this."""
    random = np.random.default_rng(0)
    return random.random(shape, np.float32) if "float" in dtype else random.integers(0, 2, shape).astype(dtype)


def finished(model: Model, sizes: dict[str, tuple[int, ...]], sample: dict[str, np.ndarray]) -> Model:
    """Return a model after `simplify` and `fuse`, with its sizes fixed."""
    simple = simplify(model, sizes, [sample]).model
    return fuse(simple, [sample]).model


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or [one.name for one in sorted(Path(sys.argv[2]).iterdir())]
    )
