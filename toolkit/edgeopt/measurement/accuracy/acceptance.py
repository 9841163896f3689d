"""The one rule by which a model keeps its accuracy: what it loses on labels; without them, how far it agrees."""

from __future__ import annotations


def is_within(drop: float, max_drop: float) -> bool:
    """Return whether a drop is allowed; four of 400 pictures are 0.01, whatever floating point makes of it."""
    return drop <= max_drop + 1e-9


def keeps_accuracy(drop: float | None, agreement: float | None, max_drop: float, least_agreement: float) -> bool:
    """Return whether a model may stand for the original.

    Args:
        drop: Metric lost on labels, in its unit; None: there are none, and agreement decides.
        agreement: With the original's answers, 0 to 1; None: it was not asked, as of the original itself.
        max_drop: Metric that may be lost.
        least_agreement: What must be reached without labels.
    """
    if drop is not None:
        return is_within(drop, max_drop)
    return agreement is None or agreement >= least_agreement
