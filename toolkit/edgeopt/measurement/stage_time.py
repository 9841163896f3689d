"""The times of one stage, as reports and comparisons show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage; None where the sample is too small to say."""

    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
