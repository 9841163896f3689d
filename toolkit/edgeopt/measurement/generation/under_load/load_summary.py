"""Answers under a load as sections of a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from edgeopt.measurement.bench.columns import FIRST_TOKEN, GAPS, Cell, behind, timed
from edgeopt.measurement.charts import ms
from edgeopt.measurement.generation.under_load.load_result import LoadTimes
from edgeopt.measurement.statistics.quantile import Quantile
from edgeopt.report.document import Section, make_table
from edgeopt.report.figures import Axis, ChartPoint, Estimate, Figure, Limit, Points
from edgeopt.system.text import format_budget, format_bytes, plural

_MEDIAN = "TTFT p50 ms"


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


def load_sections(loads: Sequence[LoadTimes]) -> Iterator[Section]:
    """Yield the trade of slots, then waiting and gaps of each, then the lengths apart."""
    trade: dict[str, Cell] = {
        "slots": lambda times: str(times.slots),
        "tokens/s": lambda times: f"{times.tokens_per_s:.4g}",
        "TPOT p50 ms": timed("all.tpot.p50", interval=True),
        _MEDIAN: timed("all.ttft.p50", interval=True),
        "goodput": lambda times: "" if times.goodput is None else str(times.goodput),
        "requests/s": lambda times: f"{times.requests_per_s:.3g}",
        "texts a run": lambda times: f"{times.texts_a_run:.2f}",
        "cache": lambda times: format_bytes(times.cache_bytes),
    }
    tail_columns = {**FIRST_TOKEN, **GAPS}
    tails: dict[str, Cell] = {
        "slots": lambda times: str(times.slots),
        "answers": lambda times: f"{times.all.answers}{f' of {times.requests}' if times.unfinished else ''}",
        "queue p50": timed("all.queue.p50"),
        **behind(attrgetter("all"), {head: cell for head, cell in tail_columns.items() if head != _MEDIAN}),
    }
    yield Section(
        f"Under {loads[0].load}, prompts of all lengths by turns",
        make_table(loads, trade, less=["cache", "texts a run", "requests/s"], is_whole=True),
        figures=draw_slots(loads),
    )
    yield Section("Waiting and gaps under it, ms", make_table(loads, tails, less=[*GAPS], is_whole=True))
    lengths = [(load, length) for load in loads for length in load.by_length]
    apart: dict[str, Cell] = {
        "slots": lambda pair: str(pair[0].slots),
        "prompt": lambda pair: pair[1].name,
        "answers": lambda pair: str(pair[1].answers),
        **behind(
            lambda pair: pair[1],
            {
                "TTFT p50 ms": timed("ttft.p50", interval=True),
                "TPOT p50 ms": timed("tpot.p50", interval=True),
                "end to end p50": timed("answer.p50"),
            },
        ),
    }
    if any(len(load.by_length) > 1 for load in loads):
        yield Section("Under it, by prompt", make_table(lengths, apart, less=["end to end p50"], is_whole=True))
