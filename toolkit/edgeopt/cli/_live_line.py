"""What the line of a running stream says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.runtime.stream import StreamStats

_BAR = 20
"""Columns of the budget."""
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
        f"{stats.fed}/{total}" if total else f"{stats.fed}",
        rate,
        f"p50 {_ms(stats.age.p50_ms)} p99 {_ms(stats.age.p99_ms)} ms",
        f"{_share(stats.missed, stats.served)} missed",
        *([f"{_share(stats.dropped, stats.fed)} dropped"] if stats.dropped else []),
        stage_bar(stats),
        *([stats.level] if stats.level != "full" else []),
    ]
    while len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return printable("  ".join(parts))[:width]


def stage_bar(stats: StreamStats) -> str:
    """Return the median frame: a letter a stage, as long as its share of the budget; `>` where it is longer."""
    marks, passed_ms = "", 0.0
    for name, times in stats.stages.items():
        passed_ms += times.p50_ms or 0.0
        marks = marks.ljust(min(round(_BAR * passed_ms / stats.budget_ms), _BAR + 1), _LETTERS.get(name, name[:1]))
    return f"[{marks.ljust(_BAR)}]" if len(marks) <= _BAR else f"[{marks[:_BAR]}>"


def _ms(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if part else "0"
