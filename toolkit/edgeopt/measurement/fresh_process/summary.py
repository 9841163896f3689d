"""Starts of fresh processes as a section of a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.charts import ms
from edgeopt.measurement.fresh_process.cold_start import POINTS, ColdStart, ColdWay
from edgeopt.report.document import Section, Value, make_table
from edgeopt.report.figures import Axis, Bar, Bars, Figure
from edgeopt.system.text import format_ms


def cold_section(cold_start: ColdStart, *told: Value) -> Section:
    """Return how long starts take, and what else is told of them."""
    ways = {str(number): way for number, way in enumerate(cold_start.ways, 1)}
    figures = {number: cold_start.figures(way) for number, way in ways.items()}
    rss_bytes = {number: cold_start.rss_bytes(way)["first"] for number, way in ways.items()}

    def median(point: str) -> Callable[[str], str]:
        return lambda number: format_ms(figures[number][point].median_ns)

    columns: dict[str, Callable[[str], str]] = {
        "start": str,
        "to first answer": median("to_first"),
        **{point: median(point) for point in POINTS},
        "MiB at first": lambda number: "n/a" if (rss := rss_bytes[number]) is None else f"{rss / 2**20:.0f}",
        "p50 of to first": lambda number: str(figures[number]["to_first"].p50),
    }
    values = tuple(Value(f"start {number}", _told(cold_start, way)) for number, way in ways.items())
    title, table = "Cold start, medians of fresh processes (ms)", make_table(ways, columns)
    return Section(title, table, values=(*values, *told), figures=draw_cold(cold_start))


def _told(cold_start: ColdStart, way: ColdWay) -> str:
    first, faults = cold_start.figures(way)["to_first"], cold_start.major_faults(way)["first"]
    ends = f"{format_ms(first.min_ns)} to {format_ms(first.max_ns)} ms"
    read = "" if faults is None else f", {faults:.0f} pages read from disk"
    return f"{cold_start.label(way)}: {first.n} processes, {ends}{read}"


def draw_cold(cold_start: ColdStart) -> tuple[Figure, ...]:
    """Return the parts of a start, a bar a way of starting."""
    parts = POINTS[: POINTS.index("second")]
    bars = []
    for way in cold_start.ways:
        figures = cold_start.figures(way)
        times = {name: figures[name].median_ns / 1e6 for name in parts}
        facts = (
            ("to first answer", ms(figures["to_first"].median_ns / 1e6)),
            *((name, ms(times[name])) for name in parts),
        )
        bars.append(Bar(cold_start.label(way), tuple(times.values()), facts))
    if not bars:
        return ()
    axis = Axis("time", "ms", from_zero=True)
    text = f"Medians of {len(cold_start.runs) // len(bars)} fresh processes each."
    return (Bars(title="From start to first answer", text=text, axis=axis, parts=parts, bars=tuple(bars)),)
