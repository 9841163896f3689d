"""The line of a running stream: rate, latency, misses and level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.runtime.stream import StreamStats

_BAR, _LEAST_BAR = 20, 8
"""Columns of the budget, at most and at least."""
_LETTERS = {"wait": ".", "preprocess": "p", "upload": "u", "execute": "#", "download": "d", "postprocess": "o"}


def live_line(stats: StreamStats, total: int | None, width: int) -> str:
    """Return one line: rate, median and p99 of the age, misses, drops, and the median frame as a bar of the budget.

    Args:
        stats: Of the stream.
        total: Frames of the source, where it has an end.
        width: Columns; what does not fit is left out from the end.
    """
    if not stats.served:
        return "waiting for the first frame"[:width]
    rate = f"{stats.answers_per_s:.1f} fps" if stats.answers_per_s is not None else "1 frame"
    parts = [
        f"{stats.fed}/{total}" if total and stats.fed <= total else f"{stats.fed}",  # a header may tell too few
        rate,
        f"p50 {_ms(stats.age.p50_ms)} p99 {_ms(stats.age.p99_ms)} ms",
        f"{_share(stats.missed, stats.served)} missed",
        *([f"{_share(stats.dropped, stats.fed)} dropped"] if stats.dropped else []),
        *([stats.level] if stats.level != "full" else []),
    ]
    while len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    line = printable("  ".join(parts))[:width]
    room = min(width - len(line) - len("  []"), _BAR)
    return f"{line}  {stage_bar(stats, room)}" if room >= _LEAST_BAR else line


def stage_bar(stats: StreamStats, size: int) -> str:
    """Return the median frame: a letter a stage, as long as its share of the budget; `>` where it is longer.

    Args:
        stats: Of the stream.
        size: Columns of the budget.
    """
    marks, passed_ms = "", 0.0
    for name, times in stats.stages.items():
        passed_ms += times.p50_ms or 0.0
        marks = marks.ljust(min(round(size * passed_ms / stats.budget_ms), size + 1), _LETTERS.get(name, name[:1]))
    return f"[{marks.ljust(size)}]" if len(marks) <= size else f"[{marks[:size]}>"


def _ms(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if 0 < part < 0.1 * whole else f"{100 * part / whole:.0f}%" if part else "0"
