"""The cost of a pipeline beside its models, and the sum of its stages.

    python benchmarks/pipelines.py

A detector and a classifier of the executor null answer at once: what is left is the pipeline's own work. It is compared
in turns with the same calls by hand (predict, slices of the frame, predict for each, the function).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests" / "fixtures"))
from fixture_pipelines import shop

from edgeopt.measurement.turns.calls import compare_calls, run_blocks
from edgeopt.runtime.pipelines import Pipeline

SECONDS, BLOCK = 8.0, 50


def find(crops: object, classes: list[object]) -> int:
    return len(classes)


def main() -> None:
    frame = np.zeros((8, 8, 3), np.uint8)
    with (
        tempfile.TemporaryDirectory() as folder,
        Pipeline.load(shop(Path(folder)).folder, stages={"lookup": find}) as pipeline,
    ):
        detect, recognise = pipeline.models["detect"], pipeline.models["recognise"]

        def by_hand(_: int) -> None:
            found = detect.predict(frame)
            crops = [frame[int(y0) : int(y1), int(x0) : int(x1)] for x0, y0, x1, y1 in found.boxes.tolist()]
            find(crops, [recognise.predict(crop) for crop in crops])

        def whole(_: int) -> None:
            pipeline.predict(frame)

        runs = {"by hand": by_hand, "pipeline": whole}
        times = run_blocks(runs, seconds=SECONDS, block=BLOCK, seed=0)
        medians = {name: float(np.median(one)) / 1e3 for name, one in times.items()}
        ratio = compare_calls(runs, baseline="by hand", seconds=SECONDS, block=BLOCK)["pipeline"]
        print(f"by hand {medians['by hand']:.1f} us, pipeline {medians['pipeline']:.1f} us a frame: {ratio}")
        print(f"own work {medians['pipeline'] - medians['by hand']:.1f} us a frame, 3 runs of models in it")


if __name__ == "__main__":
    main()
