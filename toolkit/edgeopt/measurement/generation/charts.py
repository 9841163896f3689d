"""Answers under a load as a chart: how fast each text grows, against how much is served."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.charts import ms
from edgeopt.measurement.generation.load_result import LoadTimes
from edgeopt.measurement.statistics.quantile import Quantile
from edgeopt.report.figures import Axis, ChartPoint, Estimate, Figure, Limit, Points
from edgeopt.system.text import format_budget, plural


def draw_slots(loads: Sequence[LoadTimes]) -> tuple[Figure, ...]:
    """Return tokens a second over TPOT, a point for each number of slots; nothing for a single one."""
    known = [(load, p50) for load in loads if (p50 := load.all.tpot.p50.value_ms) is not None]
    if len(known) < 2:
        return ()
    points = tuple(
        ChartPoint(
            plural(times.slots, "slot"),
            _estimate(times.all.tpot.p50, p50),
            Estimate(times.tokens_per_s),
            (
                ("answers", f"{times.tokens_per_s:.4g} tokens/s"),
                ("TPOT p50", ms(p50)),
                ("TTFT p50", _told(times.all.ttft.p50)),
                ("in queue p50", _told(times.all.queue.p50)),
                ("texts a run", f"{times.texts_a_run:.2f}"),
            ),
        )
        for times, p50 in known
    )
    most, p50 = max(known, key=lambda pair: pair[0].tokens_per_s)
    text = f"{plural(most.slots, 'slot')} give the most, {most.tokens_per_s:.4g} tokens/s, with {ms(p50)} a token."
    limits = [load.goodput.budget.limits_ms.get("TPOT") for load in loads if load.goodput]
    limit = Limit(f"limit {format_budget(limits[0])} ms", limits[0]) if limits and limits[0] else None
    return (
        Points(
            title="Throughput against the time for each token",
            text=text,
            x=Axis("TPOT, p50", "ms"),
            y=Axis("answers", "tokens/s", from_zero=True),
            points=points,
            limit=limit,
            paths=(tuple(point.name for point in points),),
        ),
    )


def _estimate(quantile: Quantile, value: float) -> Estimate:
    low, high = (None if bound is None else bound / 1e6 for bound in (quantile.low_ns, quantile.high_ns))
    return Estimate(value, low, high)


def _told(quantile: Quantile) -> str:
    return "n/a" if quantile.value_ms is None else ms(quantile.value_ms)
