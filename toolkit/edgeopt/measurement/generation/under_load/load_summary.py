"""Answers under a load as sections of a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgeopt.measurement.charts import ms
from edgeopt.measurement.generation.under_load.load_result import AnswerTimes, LoadTimes
from edgeopt.measurement.statistics.quantile import Quantile
from edgeopt.report.document import Section, make_table
from edgeopt.report.figures import Axis, ChartPoint, Estimate, Figure, Limit, Points
from edgeopt.system.text import format_budget, format_bytes, format_ms, plural


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


_GAPS = ("ITL p50", "ITL p95", "ITL p99", "ITL max")
"""Together below where there is no room."""


def load_sections(loads: Sequence[LoadTimes]) -> Iterator[Section]:
    """Yield the trade of slots, then waiting and gaps of each, then the lengths apart."""
    trade: dict[str, Callable[[LoadTimes], str]] = {
        "slots": lambda times: str(times.slots),
        "tokens/s": lambda times: f"{times.tokens_per_s:.4g}",
        "TPOT p50 ms": lambda times: str(times.all.tpot.p50),
        "TTFT p50 ms": lambda times: str(times.all.ttft.p50),
        "goodput": lambda times: "" if times.goodput is None else str(times.goodput),
        "requests/s": lambda times: f"{times.requests_per_s:.3g}",
        "texts a run": lambda times: f"{times.texts_a_run:.2f}",
        "cache": lambda times: format_bytes(times.cache_bytes),
    }
    tails: dict[str, Callable[[LoadTimes], str]] = {
        "slots": lambda times: str(times.slots),
        "answers": lambda times: f"{times.all.answers}{f' of {times.requests}' if times.unfinished else ''}",
        "queue p50": lambda times: format_ms(times.all.queue.p50.value_ns),
        "TTFT p95": lambda times: format_ms(times.all.ttft.p95.value_ns),
        "TTFT max": lambda times: format_ms(times.all.ttft.max_ns),
        "ITL p50": lambda times: format_ms(times.all.itl.p50.value_ns),
        "ITL p95": lambda times: format_ms(times.all.itl.p95.value_ns),
        "ITL p99": lambda times: format_ms(times.all.itl.p99.value_ns),
        "ITL max": lambda times: format_ms(times.all.itl.max_ns),
    }
    yield Section(
        f"Under {loads[0].load}, prompts of all lengths by turns",
        make_table(loads, trade, less=["cache", "texts a run", "requests/s"], is_whole=True),
        figures=draw_slots(loads),
    )
    yield Section("Waiting and gaps under it, ms", make_table(loads, tails, less=_GAPS, is_whole=True))
    lengths = [(load, length) for load in loads for length in load.by_length]
    apart: dict[str, Callable[[tuple[LoadTimes, AnswerTimes]], str]] = {
        "slots": lambda pair: str(pair[0].slots),
        "prompt": lambda pair: f"{pair[1].prompt_tokens} tokens",
        "answers": lambda pair: str(pair[1].answers),
        "TTFT p50 ms": lambda pair: str(pair[1].ttft.p50),
        "TPOT p50 ms": lambda pair: str(pair[1].tpot.p50),
        "end to end p50": lambda pair: format_ms(pair[1].answer.p50.value_ns),
    }
    if any(len(load.by_length) > 1 for load in loads):
        yield Section("Under it, by prompt", make_table(lengths, apart, less=["end to end p50"], is_whole=True))
