"""Process rounds: the same load in fresh processes, since memory layout and placement differ from start to start.

Run by itself as a module with a request; the samples go to the file that the request names.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.setup import open_setup
from edgeopt.measurement.fresh_process.process import run_child
from edgeopt.measurement.load.run import Tell, run_load
from edgeopt.measurement.resources.anchor import AnchorTimes, measure_anchor
from edgeopt.measurement.samples import Samples, join_samples
from edgeopt.measurement.statistics.quantile import RoundsQuantile, combine_rounds

_SPARE_S = 300.0
"""Seconds that a round may take beyond four times its measuring time."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds' raw samples, and the quantiles of the response over them."""

    samples: Samples
    """`round_id` is the process."""
    quantiles: Mapping[str, RoundsQuantile]
    """`p50`, `p90`, `p99`."""
    anchors: tuple[AnchorTimes, ...]
    """Times of the anchor before, between and after the rounds."""


def run_rounds(
    model: str, *, target: str, recipe: str | None, options: BenchOptions, tell: Tell | None = None
) -> Rounds:
    """Run `options.rounds` fresh processes, one after the other.

    Args:
        model: As for `bench`.
        target: As for `bench`.
        recipe: As for `bench`.
        options: The load; what else they ask for is not done in a round.
        tell: Hears progress.

    Raises:
        EdgeoptError: If a process fails.
    """
    result, anchors = [], [measure_anchor()]
    with tempfile.TemporaryDirectory(prefix="edgeopt-rounds-") as folder:
        for number in range(options.rounds):
            path = Path(folder) / f"{number}.npz"
            request = {"model": model, "target": target, "recipe": recipe, "out": str(path)}
            run_child(
                "frames.process_rounds",
                json.dumps(request | {"options": options.to_json()}),
                longest_s=4 * options.measure_s + _SPARE_S,
                remedy="run edgeopt bench without --rounds, or lower --seconds and --frames",
            )
            result.append(Samples.read(path))
            anchors.append(measure_anchor())
            if tell:
                tell("process rounds", number + 1, options.rounds)
    times = [samples.steady().served().response_ns for samples in result]
    quantiles = {f"p{p * 100:g}": combine_rounds(times, p) for p in (0.5, 0.9, 0.99)}
    return Rounds(join_samples(result), quantiles, tuple(anchors))


def main() -> int:
    """Do one round; return the exit code."""
    try:
        _run_round(json.loads(sys.argv[1]))
    except EdgeoptError as error:
        sys.stdout.write(json.dumps({"error": error.problem, "remedy": error.remedy}) + "\n")
        return error.exit_code
    sys.stdout.write("{}\n")
    return 0


def _run_round(request: Mapping[str, Any]) -> None:
    values = request["options"]
    shapes = {name: tuple(sizes) for name, sizes in values["shapes"].items()}
    options = BenchOptions(**values | {"batches": tuple(values["batches"]), "shapes": shapes})
    setup = open_setup(request["model"], target=request["target"], recipe=request["recipe"], options=options)
    samples = run_load(
        setup.readers, setup.pipelines, setup.plan, seconds=options.measure_s, min_frames=options.min_frames
    )
    samples.save(Path(request["out"]))


if __name__ == "__main__":
    sys.exit(main())
