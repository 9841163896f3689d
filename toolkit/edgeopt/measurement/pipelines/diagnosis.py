"""Which stage of a pipeline to mend first: its share of the budget, and what is left without it."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.runtime.pipelines.description import Description
from edgeopt.system.text import format_budget

_OFTEN = 2.0
"""Runs a frame from which fewer runs are worth as much as a faster model."""


def find_stage_to_mend(
    description: Description, costs: Sequence[StageCost], frame_ms: float, budget_ms: float, again: str, optimize: str
) -> Finding:
    """Return the stage that takes most of a frame, and what to do about it.

    Args:
        description: Of the pipeline.
        costs: Of each stage.
        frame_ms: Mean of a whole frame.
        budget_ms: Of a frame.
        again: The command that measures it again.
        optimize: The command that makes its models faster; empty: they were.
    """
    worst = max(costs, key=lambda cost: cost.mean_ms)
    left_ms = frame_ms - worst.mean_ms
    spare = budget_ms - left_ms
    room = f"{spare:.3g} ms below the budget" if spare >= 0 else f"still {-spare:.3g} ms over the budget"
    runs = f" in {worst.runs_mean:.3g} runs" if worst.kind == "model" and worst.runs_mean != 1 else ""
    evidence = (
        f"{worst.mean_ms:.3g} ms of a frame's {frame_ms:.3g} ms{runs}: {worst.share_ratio:.0%} of the frame, "
        f"{worst.budget_ratio:.0%} of the budget of {format_budget(budget_ms)} ms; "
        f"without it a frame takes {left_ms:.3g} ms, {room}"
    )
    what = f"Mend the stage {worst.name} first: it takes most of a frame"
    return Finding("stage", what, evidence, *_what_to_do(description, worst, again, optimize))


def _what_to_do(description: Description, worst: StageCost, again: str, optimize: str) -> tuple[str, str]:
    """Return it in words, and the command."""
    if worst.kind == "load":
        return "read smaller pictures, or raw camera frames", again
    stage = next(other for other in description.stages if other.name == worst.name)
    if stage.kind == "call":
        return f"make {stage.call} faster: ask once a frame, keep what was answered, or ask beside the frame", again
    if stage.kind == "crop":
        return f"lower `most` or `margin` of stage {stage.name}", again
    if worst.runs_mean >= _OFTEN:
        cut = next(
            (other.name for other in description.stages if other.name in stage.takes and other.kind == "crop"), ""
        )
        fewer = f"lower `most` or raise `least_score` of stage {cut}" if cut else f"run {stage.name} less often"
        return (f"{fewer}, or make its model faster", optimize) if optimize else (fewer, again)
    return ("", optimize) if optimize else (f"give stage {stage.name} a smaller model", again)
