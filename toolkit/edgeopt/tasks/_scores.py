"""Scores as JSON tells them."""

from __future__ import annotations

_DIGITS = 4
"""More differ between engines, and no reader needs them."""


def score_as_json(score: float) -> float:
    """Return a score, a probability or a confidence with the digits that JSON has of it."""
    return round(score, _DIGITS)
