"""The result of starts in fresh processes with a warm and a cold page cache: each point, raw and over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note
from edgeopt.measurement.fresh_process.page_cache import PageCache, describe
from edgeopt.measurement.statistics.quantile import Quantile, quantile

POINTS = ("interpreter", "import", "session", "first", "second")
_TO_FIRST = POINTS[:4]


@dataclass(frozen=True, slots=True)
class ColdWay:
    """One way to start."""

    page_cache: PageCache
    is_optimized: bool
    """Whether the graph was the one that the engine had optimized and saved before."""

    def __str__(self) -> str:
        return f"{self.page_cache} page cache, {'saved optimized' if self.is_optimized else 'original'} graph"


@dataclass(frozen=True, slots=True)
class ColdPoint:
    """One part of a start, and what the process held when it ended."""

    name: str
    took_ns: int
    rss_bytes: int | None
    major_faults: int | None
    """Pages read from disk since the process began; None on Windows."""


@dataclass(frozen=True, slots=True)
class ColdRun:
    """One fresh process."""

    way: ColdWay
    points: tuple[ColdPoint, ...]
    resident_ratio: float | None
    """Share of the model file in the page cache just before; None: not told."""

    def took_ns(self, name: str) -> int:
        """Return what one point took, or `to_first`: from starting the process to its first answer.

        Raises:
            KeyError: If there is no such point.
        """
        took = {point.name: point.took_ns for point in self.points}
        return sum(took[part] for part in _TO_FIRST) if name == "to_first" else took[name]


@dataclass(frozen=True, slots=True)
class ColdFigure:
    """One point of one way over all repeats."""

    n: int
    min_ns: int
    median_ns: float
    max_ns: int
    p50: Quantile
    """Median with its interval; "n/a" below 6 repeats."""
    p90: Quantile
    """90th percentile with its interval; "n/a" below 36 repeats."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Every start of every way, raw."""

    runs: tuple[ColdRun, ...]
    notes: tuple[Note, ...] = ()

    @property
    def ways(self) -> tuple[ColdWay, ...]:
        """In order of the first run of each."""
        return tuple(dict.fromkeys(run.way for run in self.runs))

    def label(self, way: ColdWay) -> str:
        """Return the way and what the page cache really was, from its worst repeat."""
        shares = [run.resident_ratio for run in self.runs if run.way == way]
        known = [share for share in shares if share is not None]
        worst = min(known, default=None) if way.page_cache is PageCache.WARM else max(known, default=None)
        graph = "saved optimized graph" if way.is_optimized else "original graph"
        return f"{describe(way.page_cache, worst if len(known) == len(shares) else None)}, {graph}"

    def times_ns(self, way: ColdWay, name: str) -> NDArray[np.int64]:
        """Return (repeats,) what a point of `POINTS`, or `to_first`, took."""
        return np.array([run.took_ns(name) for run in self.runs if run.way == way], np.int64)

    def figures(self, way: ColdWay) -> Mapping[str, ColdFigure]:
        """Return `to_first` and each point."""
        return {name: _figure(self.times_ns(way, name)) for name in ("to_first", *POINTS)}

    def rss_bytes(self, way: ColdWay) -> Mapping[str, float | None]:
        """Return the median resident memory at each point."""
        points = {name: [p.rss_bytes for p in self._points(way, name)] for name in POINTS}
        return {name: _median(values) for name, values in points.items()}

    def major_faults(self, way: ColdWay) -> Mapping[str, float | None]:
        """Return the median of pages read from disk up to each point."""
        points = {name: [p.major_faults for p in self._points(way, name)] for name in POINTS}
        return {name: _median(values) for name, values in points.items()}

    def first_ratio(self, way: ColdWay) -> float:
        """Return the first inference over the second, medians."""
        first, second = (float(np.median(self.times_ns(way, name))) for name in ("first", "second"))
        return first / second if second else 0.0

    def _points(self, way: ColdWay, name: str) -> list[ColdPoint]:
        return [point for run in self.runs if run.way == way for point in run.points if point.name == name]

    def to_json(self) -> dict[str, Any]:
        """Return figures and raw runs as plain values."""
        ways = [
            {
                "label": self.label(way),
                **asdict(way),
                "figures": {name: asdict(figure) for name, figure in self.figures(way).items()},
                "rss_bytes": dict(self.rss_bytes(way)),
                "major_faults": dict(self.major_faults(way)),
                "first_ratio": self.first_ratio(way),
            }
            for way in self.ways
        ]
        return {"ways": ways, "runs": [asdict(run) for run in self.runs], "notes": [asdict(n) for n in self.notes]}


def _figure(times: NDArray[np.int64]) -> ColdFigure:
    return ColdFigure(
        n=len(times),
        min_ns=int(times.min()),
        median_ns=float(np.median(times)),
        max_ns=int(times.max()),
        p50=quantile(times, 0.5),
        p90=quantile(times, 0.9),
    )


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if len(known) == len(values) and known else None
