"""The figures a diagnosis may use, all optional: without its figures a rule does not fire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.frames.attribution import Attribution, StageShare, check_attribution, share_stages
from edgeopt.measurement.load.models import Load
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import BudgetResult
from edgeopt.measurement.statistics.quantile import quantile
from edgeopt.measurement.statistics.trend import Slope, Warmup

_LEAST_FRAMES = 30
_LEAST_COUNTS = 5


@dataclass(frozen=True, slots=True)
class AnswerGrowth:
    """How the time of the last stage goes with the number of answers in a frame."""

    stage: str
    correlation: float
    """Correlation of ranks, -1..1 (Spearman)."""
    few_ms: float
    """Median of the quarter of frames with the fewest answers."""
    many_ms: float
    """Median of the quarter with the most."""
    frames: int

    @property
    def ratio(self) -> float:
        """Many over few."""
        return self.many_ms / self.few_ms if self.few_ms else 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run; None and empty: not known."""

    model: str = "MODEL"
    """As the user wrote it, for the commands."""
    target: str = ""
    """As the user named it; of a bundle the one that was asked for of several."""
    is_bundle: bool = False
    """Whether it is what optimize made."""
    on: str = ""
    """Address of the device that was measured from here; empty: it was this machine."""
    service_p50_ms: float | None = None
    service_p99_ms: float | None = None
    response_p50_ms: float | None = None
    """Milliseconds from the intended arrival; open loop only."""
    queue_wait_p50_ms: float | None = None
    utilisation: float | None = None
    """Time in service over time of the workers, 0..1."""
    load: Load | None = None
    streams: int = 1
    offered_per_s: float | None = None
    """Frames that arrive a second, all streams together."""
    capacity_per_s: float | None = None
    """The highest rate that keeps the budget."""
    dropped_ratio: float | None = None
    queue: str = ""
    """`fifo`, `bounded:K` or `latest`."""
    shares: Mapping[str, StageShare] = field(default_factory=dict)
    stage_p50_ms: Mapping[str, float] = field(default_factory=dict)
    attribution: Attribution | None = None
    growth: AnswerGrowth | None = None
    provider: str = ""
    """The one that was asked for."""
    is_opening_told: bool = False
    """Whether the engine tells what opening takes, so that no cold start is run."""
    nodes_by_provider: Mapping[str, float] = field(default_factory=dict)
    """Share of the nodes, or of their time, by provider."""
    first_ms: float | None = None
    """The first inference of the session."""
    steady_p50_ms: float | None = None
    cold_first_ms: float | None = None
    """Milliseconds from starting the process to the first answer."""
    cold_session_ms: float | None = None
    """Creating the session, within that."""
    threads: int | None = None
    cores: float | None = None
    """Cores that this process may use, quota included."""
    trust: Trust | None = None
    warmup: Warmup | None = None
    sustained_low: float | None = None
    """Lowest ratio of the last fifth over the first that the intervals allow."""
    sustained_ratio: float | None = None
    memory_growth: Slope | None = None
    """MiB an hour, warm-up left out."""
    memory_grown_mib: float | None = None
    """The same over the run."""
    budget: BudgetResult | None = None


def make_figures(samples: Samples, *, workers: int = 1, **known: Any) -> Figures:
    """Return what the samples tell, and what the caller knows beside it.

    Args:
        samples: One run.
        workers: How many served it at once.
        known: Fields of `Figures`; they replace what the samples tell.
    """
    rows = samples.steady().served()
    if not len(rows):
        return Figures(**known)
    figures = Figures(
        service_p50_ms=_median_ms(rows.frame_ns),
        service_p99_ms=quantile(rows.frame_ns, 0.99).value_ms,
        shares=share_stages(samples),
        stage_p50_ms={name: _median_ms(rows.stage(name)) for name in rows.stages},
        attribution=check_attribution(samples) if samples.wall_ns is not None else None,
        growth=growth_with_answers(samples),
        first_ms=float(samples.frame_ns[0]) / 1e6,
        steady_p50_ms=_median_ms(rows.frame_ns),
        dropped_ratio=float(samples.steady().lost.mean()),
    )
    if rows.intended_ns is not None and rows.started_ns is not None:
        figures = replace(
            figures,
            response_p50_ms=_median_ms(rows.response_ns),
            queue_wait_p50_ms=_median_ms(rows.started_ns - rows.intended_ns),
            utilisation=_utilisation(rows, workers),
        )
    return replace(figures, **known)


def _utilisation(rows: Samples, workers: int) -> float | None:
    if rows.started_ns is None or rows.done_ns is None:
        return None
    wall = int(rows.done_ns.max() - rows.started_ns.min())
    return min(1.0, float(rows.frame_ns.sum()) / (wall * workers)) if wall > 0 else None


def _median_ms(times: NDArray[np.int64]) -> float:
    return float(np.median(times)) / 1e6


def growth_with_answers(samples: Samples) -> AnswerGrowth | None:
    """Return how the last stage goes with the answers; None below 30 frames or 5 different numbers of answers."""
    rows = samples.steady().served()
    if rows.n_out is None or not rows.stages:
        return None
    stage, known = rows.stages[-1], rows.n_out >= 0
    counts, times = rows.n_out[known], rows.stage(stage)[known]
    if len(counts) < _LEAST_FRAMES or len(np.unique(counts)) < _LEAST_COUNTS:
        return None
    low, high = np.quantile(counts, [0.25, 0.75])
    few, many = times[counts <= low], times[counts >= high]
    return AnswerGrowth(stage, rank_correlation(counts, times), _median_ms(few), _median_ms(many), len(counts))


def rank_correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return Spearman's correlation, -1..1; 0 where one of the two does not vary."""
    a, b = _ranks(x), _ranks(y)
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else 0.0


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return ranks around zero; ties share their middle rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse] - (len(values) + 1) / 2
    return ranks
