"""What `Runtime.predict` costs over `session.run` with the same preprocess and postprocess, in turns.

    python benchmarks/runtime_overhead.py OUTPUT_FOLDER_OF_OPTIMIZE

Prints the difference of the medians in microseconds for each pair of blocks, with its 95 % interval. The claim is
under 60 microseconds a frame.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort

from edgeopt.measurement.interleaved import run_blocks
from edgeopt.recipes.frames import synthetic_frames
from edgeopt.runtime.runtime import Runtime


def main(bundle: str) -> None:
    runtime = Runtime.load(bundle, threads=1)
    frames = [*synthetic_frames((480, 640))]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    plain = ort.InferenceSession(str(runtime.bundle.model), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in plain.get_outputs()]
    task = runtime.task

    def bare(index: int) -> None:
        inputs, geometry = task.preprocess(frames[index % len(frames)])
        task.postprocess(dict(zip(names, plain.run(None, inputs), strict=True)), geometry)

    def wrapped(index: int) -> None:
        runtime.predict(frames[index % len(frames)])

    found = run_blocks({"bare": bare, "wrapped": wrapped}, seconds=15, block=20, seed=0)
    medians = {name: np.median(times, axis=2).mean(axis=1) for name, times in found.items()}
    cost_us = (medians["wrapped"] - medians["bare"]) / 1e3
    means = np.random.default_rng(0).choice(cost_us, (5000, len(cost_us))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    print(f"Runtime.predict costs {cost_us.mean():+.1f} us [{low:+.1f}, {high:+.1f}] a frame over the bare calls")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
