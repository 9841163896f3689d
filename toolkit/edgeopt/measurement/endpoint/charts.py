"""One bar an answer: network, queue, first token, next tokens."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.charts import ms
from edgeopt.measurement.endpoint.result import EndpointResult, EndpointTimes
from edgeopt.report.figures import Axis, Bar, Bars

PARTS = ("network", "queue", "first token", "next tokens")
_MARKS = ("n", "q", "#", "-")
_COLUMNS = 56


def timeline_of(times: EndpointTimes, result: EndpointResult) -> tuple[float, float, float, float]:
    """Return the parts of a median answer in milliseconds, as `PARTS` has them.

    The first token is what is left of TTFT without network and queue; the next tokens are what follows TTFT.
    """
    ttft, whole = (series.p50.value_ms or (series.mean_ns or 0.0) / 1e6 for series in (times.ttft, times.whole))
    network = min(result.round_trip_ms, ttft)
    queue = min(times.queue.p50.value_ms or 0.0, ttft - network)
    return network, queue, ttft - network - queue, max(whole - ttft, 0.0)


def text_bar(parts: Sequence[float], longest: float) -> str:
    """Return a bar of letters, `n`etwork, `q`ueue, `#` first token, `-` next tokens; what is there has one at least."""
    scale = _COLUMNS / longest if longest > 0 else 0.0
    return "".join(mark * max(round(part * scale), part > 0) for mark, part in zip(_MARKS, parts, strict=True))


def draw_answer(result: EndpointResult) -> Bars:
    """Return the bars of answers to each prompt alone, and under load."""
    rows = [times for times in (*result.alone, result.loaded) if times and times.answers]
    bars = tuple(
        Bar(row.words, parts, tuple((name, ms(part)) for name, part in zip(PARTS, parts, strict=True)))
        for row in rows
        for parts in (timeline_of(row, result),)
    )
    return Bars(
        title="Where an answer's time goes",
        text="Network, queue, first token and the tokens after it, of median answers.",
        axis=Axis("time", "ms", from_zero=True),
        parts=PARTS,
        bars=bars,
    )
