"""Numbers of answers as JSON tells them: how many digits scores, pixels and shares have."""

from __future__ import annotations

from collections.abc import Iterable

_SCORE_DIGITS = 4
"""More differ between engines, and no reader needs them."""
_PIXEL_DIGITS = 2
_SHARE_DIGITS = 6
"""Shares of a frame, and numbers of an embedding, which are multiplied by others."""


def score_as_json(score: float) -> float:
    """Return a score, a probability or a confidence with the digits that JSON has of it."""
    return round(score, _SCORE_DIGITS)


def pixels_as_json(places: Iterable[float]) -> list[float]:
    """Return places in a frame, such as the corners of a box."""
    return [round(place, _PIXEL_DIGITS) for place in places]


def point_as_json(x: float, y: float) -> dict[str, float]:
    """Return a point of a frame."""
    return {"x": round(x, _PIXEL_DIGITS), "y": round(y, _PIXEL_DIGITS)}


def share_as_json(share: float) -> float:
    """Return a share of a frame, or a number of an embedding."""
    return round(share, _SHARE_DIGITS)
