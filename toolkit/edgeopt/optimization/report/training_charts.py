"""How trainings went, as charts."""

from __future__ import annotations

from edgeopt.optimization.result import ModelReport
from edgeopt.report.figures import Axis, Curve, Emphasis, Figure, Limit, Lines
from edgeopt.steps.finetune.record import RECORD, read_record


def training_charts(report: ModelReport) -> tuple[Figure, ...]:
    """Return the curve of each candidate that a training made."""
    files = [(report.folder / candidate.file).with_name(RECORD) for candidate in report.candidates]
    records = [read_record(file) for file in files if file.is_file()]
    return tuple(loss_curve(record.steps, record.losses) for record in records)


def loss_curve(steps: tuple[int, ...], losses: tuple[float, ...]) -> Figure:
    """Return a loss on held-out pictures over the steps, against where it began.

    Args:
        steps: At which held-out pictures were asked, from 0.
        losses: As many.
    """
    lowest = min(losses)
    return Lines(
        title="Loss on held-out pictures",
        text=f"It began at {losses[0]:.4f}; the lowest is {lowest:.4f}, after step {steps[losses.index(lowest)]}.",
        x=Axis("step"),
        y=Axis("loss against the teacher", from_zero=True),
        lines=(Curve("held out", tuple(map(float, steps)), losses, emphasis=Emphasis.CHOSEN),),
        limit=Limit("as given", losses[0]),
    )
