"""Things as sums of parts, and figures with intervals: one row each, the name above it."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.report.figures import Bar, Bars, Intervals, Row
from edgeopt.report.html.axis import Range, is_far, make_range
from edgeopt.report.html.chart import PHONE, across, canvas, far_note, key_of, limit_across, mark, wrap
from edgeopt.report.html.markup import Attribute, Markup, percent, tag
from edgeopt.system.text import shorten

_ROW, _NAME, _THICK = 46.0, 14.0, 16.0
_TOP = 10.0
_LETTER, _GAP = 7.0, 14.0
"""Pixels of a letter, and between a row's name and its figures."""
_BEYOND = 4.0
"""Pixels by which a limit's line is longer than a bar at either end; above it are figures."""
_GREYS = 4
_FEWEST = 6
"""Letters of a name that a phone shows at least."""


def draw_bars(figure: Bars) -> Markup:
    """Return the chart: the largest part in the accent colour, the others in greys."""
    ends = [max(sum(bar.parts), bar.tail or 0.0) for bar in figure.bars]
    x = make_range(figure.axis, ends, figure.limit)
    height = _TOP + _ROW * len(figure.bars)
    styles = _styles(figure)
    is_drawn = figure.limit is not None and not is_far(figure.limit, ends)
    tops = map(_bar_top, range(len(figure.bars)))
    beside = [(0.0, _BEYOND), *((top - _BEYOND, top + _THICK + _BEYOND) for top in tops)]
    drawing = canvas(
        height,
        *across(x, height, grid=True),
        *([limit_across(figure.limit, x, beside)] if figure.limit and is_drawn else []),
        *(_bar(bar, figure.parts, styles, x, _TOP + _ROW * i) for i, bar in enumerate(figure.bars)),
        kind="rows",
        label=figure.text,
    )
    note = None if is_drawn else far_note(figure.limit, figure.axis, max(ends))
    entries = [(f"part {style}", part) for part, style in zip(figure.parts, styles, strict=True)]
    key = key_of([*entries, ("line tail", figure.tail)] if figure.tail else entries) if len(figure.parts) > 1 else None
    return wrap(figure, tag("div", drawing, note), marks=[(bar.name, bar.facts) for bar in figure.bars], key=key)


def _bar_top(row: int) -> float:
    return _TOP + _ROW * row + _NAME + 6


def _styles(figure: Bars) -> list[str]:
    totals = [sum(bar.parts[i] for bar in figure.bars) for i in range(len(figure.parts))]
    largest, greys, styles = totals.index(max(totals)), 0, list[str]()
    for i in range(len(totals)):
        styles.append("main" if i == largest else f"grey-{greys % _GREYS}")
        greys += i != largest
    return styles


def _bar(bar: Bar, parts: Sequence[str], styles: Sequence[str], x: Range, top: float) -> Markup:
    begin, shapes = 0.0, []
    middle = top + _NAME + 6 + _THICK / 2
    if bar.tail is not None:
        shapes.append(tag("line", class_="tail", x1=percent(x.at(0)), x2=percent(x.at(bar.tail)), y1=middle, y2=middle))
        shapes.append(_end(x, bar.tail, middle))
    for part, style, value in zip(parts, styles, bar.parts, strict=True):
        wide = percent(max(0.0, x.at(begin + value) - x.at(begin)))
        box: dict[str, Attribute] = {
            "x": percent(x.at(begin)),
            "y": middle - _THICK / 2,
            "width": wide,
            "height": _THICK,
        }
        shapes.append(tag("rect", class_=f"part {style}", data_part=part, data_value=repr(value), **box))
        begin += value
    return mark(bar.name, bar.facts, *_names(bar.name, bar.facts, top), *shapes, emphasis=bar.emphasis)


def _end(x: Range, value: float, middle: float) -> Markup:
    at = percent(x.at(value))
    return tag("line", class_="tail", x1=at, x2=at, y1=middle - 5, y2=middle + 5)


def _names(name: str, facts: tuple[tuple[str, str], ...], top: float) -> list[Markup]:
    """Return the name on the left and the first fact on the right, above a row; and what a pointer reaches."""
    shown = [tag("rect", class_="reach", x=0, y=top, width="100%", height=_ROW - 4)]
    room = PHONE - (_LETTER * len(facts[0][1]) + _GAP if facts else 0)
    on_phone = shorten(name, max(int(room / _LETTER), _FEWEST))
    if on_phone == name:
        shown.append(tag("text", name, class_="name", x=0, y=top + _NAME))
    else:
        shown.append(tag("text", name, class_="name wide", x=0, y=top + _NAME))
        shown.append(tag("text", on_phone, class_="name phone", x=0, y=top + _NAME))
    if facts:
        shown.append(tag("text", facts[0][1], class_="value", x="100%", y=top + _NAME, text_anchor="end"))
    return shown


def draw_intervals(figure: Intervals) -> Markup:
    """Return the chart: a dot with its interval a row, what means no difference as a band behind all."""
    values = [
        one
        for row in figure.rows
        for one in (row.estimate.value, row.estimate.low, row.estimate.high, row.allowed, figure.neutral)
        if one is not None
    ]
    x = make_range(figure.axis, values)
    height = _TOP + _ROW * len(figure.rows)
    drawing = canvas(
        height,
        *across(x, height),
        _neutral(figure, x, height),
        *(_row(other, x, _TOP + _ROW * i) for i, other in enumerate(figure.rows)),
        kind="rows",
        label=figure.text,
    )
    return wrap(figure, drawing, marks=[(other.name, other.facts) for other in figure.rows])


def _neutral(figure: Intervals, x: Range, height: float) -> Markup:
    low, high = (x.at(figure.neutral * (1 + figure.margin) ** sign) for sign in (-1, 1))
    low, high, at = max(0.0, low), min(1.0, high), percent(x.at(figure.neutral))
    band = tag("rect", x=percent(low), width=percent(max(0.0, high - low)), y=0, height=height)
    return tag("g", band, tag("line", x1=at, x2=at, y1=0, y2=height), class_="neutral")


def _row(row: Row, x: Range, top: float) -> Markup:
    middle, estimate = top + _NAME + 6 + _THICK / 2, row.estimate
    shapes = []
    if row.allowed is not None:
        at = percent(x.at(row.allowed))
        shapes.append(tag("line", class_="allowed", x1=at, x2=at, y1=middle - 10, y2=middle + 10))
    if estimate.low is not None and estimate.high is not None:
        ends = {"x1": percent(x.at(estimate.low)), "x2": percent(x.at(estimate.high))}
        shapes.append(tag("line", class_="whisker", y1=middle, y2=middle, **ends))
    shapes.append(tag("circle", class_="dot", cx=percent(x.at(estimate.value)), cy=middle, r=6))
    names = _names(row.name, row.facts, top)
    return mark(row.name, row.facts, *names, *shapes, emphasis=row.emphasis, data_value=repr(estimate.value))
