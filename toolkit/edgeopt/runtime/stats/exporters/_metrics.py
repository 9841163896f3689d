"""The exported figures: one list for every kind of monitoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from edgeopt.runtime.stats import Stats, Times
from edgeopt.runtime.stats.exporters import Sources

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """One count, which only grows, or one gauge."""

    name: str
    help: str
    unit: str
    """`s`, or `{frame}` for counts."""
    is_count: bool
    read: Callable[[Stats], Iterator[tuple[Labels, float | None]]]
    """None: nothing was seen yet."""


@dataclass(frozen=True, slots=True)
class TimesMetric:
    """Percentiles of the last frames with the total and count of all."""

    name: str
    help: str
    read: Callable[[Stats], Iterator[tuple[Labels, Times]]]


def _outcomes(stats: Stats) -> Iterator[tuple[Labels, float | None]]:
    yield {"outcome": "served"}, stats.served
    yield {"outcome": "dropped"}, stats.dropped
    yield {"outcome": "failed"}, stats.failed


def _last_age_s(stats: Stats) -> float | None:
    return None if stats.last_age_ms is None else stats.last_age_ms / 1e3


def _drifts(stats: Stats) -> Iterator[tuple[Labels, float | None]]:
    for kind, began in (stats.drift.began if stats.drift else {}).items():
        yield {"kind": kind}, began


def _drift_levels(stats: Stats) -> Iterator[tuple[Labels, float | None]]:
    for figure, level in (stats.drift.levels if stats.drift else {}).items():
        yield {"figure": figure}, level


METRICS: Final = (
    ExportedMetric("fed", "Frames that came in.", "{frame}", True, lambda stats: iter([({}, stats.fed)])),
    ExportedMetric("frames", "Frames by what became of them.", "{frame}", True, _outcomes),
    ExportedMetric(
        "missed",
        "Served frames, answered after their budget.",
        "{frame}",
        True,
        lambda stats: iter([({}, stats.missed)]),
    ),
    ExportedMetric(
        "waiting", "Frames without an answer yet.", "{frame}", False, lambda stats: iter([({}, stats.waiting)])
    ),
    ExportedMetric(
        "last_age",
        "From capture to answer of the newest answer.",
        "s",
        False,
        lambda stats: iter([({}, _last_age_s(stats))]),
    ),
    ExportedMetric("drifts", "Drifts that began, by what drifts.", "{drift}", True, _drifts),
    ExportedMetric("drift_level", "How near a figure is to its limit: 1 while it drifts.", "1", False, _drift_levels),
)
TIMES: Final = (
    TimesMetric("frame", "From a frame's first stage to its answer.", lambda stats: iter([({}, stats.frame)])),
    TimesMetric(
        "stage",
        "Each stage of a frame.",
        lambda stats: (({"stage": name}, times) for name, times in stats.stages.items()),
    ),
    TimesMetric("age", "From a frame's capture to its answer.", lambda stats: iter([({}, stats.age)])),
)


def quantiles_s(times: Times) -> Iterator[tuple[str, float]]:
    """Yield each percentile that is known, in seconds, by its share as text."""
    for share, value_ms in (("0.5", times.p50_ms), ("0.9", times.p90_ms), ("0.99", times.p99_ms)):
        if value_ms is not None:
            yield share, value_ms / 1e3


def read_all(sources: Sources) -> dict[str, Stats]:
    """Return the figures of every source, by name: all metrics of one reading tell of one moment."""
    return {name: stats() for name, stats in sources.items()}
