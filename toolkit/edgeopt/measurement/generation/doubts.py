"""Why figures of answers cannot be trusted: too few, too far apart, or a machine that did something else.

A complaint that is recognised from such figures may be the machine's, so this is said first, and in place of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.system.text import format_ms, plural

LEAST_ANSWERS = 6
"""Fewer give a median no interval: 2^-5 is the chance that all of six lie on one side of it."""
_WIDE_RATIO = 0.5
"""Share of the median, which its interval spans: rules compare times by factors of 1.3 and more."""
_NOTICED_MS = 100.0
"""An interval below it decides nothing that a person notices."""


def doubts_of_answers(rows: Sequence[tuple[str, Summary, float]]) -> Iterator[str]:
    """Yield what is wrong with times of answers that were asked for one at a time.

    Args:
        rows: What was measured, for a reader; its times; how often an answer takes as long: the tokens of TPOT.
    """
    for name, times, count in rows:
        middle = times.p50
        if times.n < LEAST_ANSWERS or middle.value_ns is None or middle.low_ns is None or middle.high_ns is None:
            yield f"{name} is known of {plural(times.n, 'answer')}"
            continue
        spans_ns = middle.high_ns - middle.low_ns
        if spans_ns > _WIDE_RATIO * middle.value_ns and spans_ns * count > _NOTICED_MS * 1e6:
            yield f"the median of {name} lies from {format_ms(middle.low_ns)} to {format_ms(middle.high_ns)} ms"
