"""Things by two figures each, with their intervals as whiskers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from edgeopt.report.figures import ChartPoint, Emphasis, Points
from edgeopt.report.html.axis import Range, is_far, make_range
from edgeopt.report.html.chart import NARROW, PHONE, across, canvas, down, far_note, limit_across, mark, wrap
from edgeopt.report.html.markup import Markup, number, percent, tag

_HEIGHT = 320.0
_RADIUS = {Emphasis.CHOSEN: 7.0, Emphasis.FIRST: 5.0, Emphasis.PLAIN: 5.0, Emphasis.FAINT: 4.0}
_LETTER, _LINE = 7.0, 15.0
"""Pixels of a label's letter and line."""
_ALL, _LONGEST = 12, 30
"""So many points are all named; so many letters of a name are shown."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


def draw_points(figure: Points) -> Markup:
    """Return the chart; what stands out is drawn last, on top."""
    xs = [end for point in figure.points for end in _ends(point.x.value, point.x.low, point.x.high)]
    ys = [end for point in figure.points for end in _ends(point.y.value, point.y.low, point.y.high)]
    x, y = make_range(figure.x, xs, figure.limit), make_range(figure.y, ys)
    faint_first = sorted(
        figure.points, key=lambda other: (other.emphasis is not Emphasis.FAINT, other.emphasis is Emphasis.CHOSEN)
    )
    is_drawn = figure.limit is not None and not is_far(figure.limit, xs)
    on_phone = _labels(figure, x, y, PHONE, "phone")
    drawing = canvas(
        _HEIGHT,
        *down(y, _HEIGHT),
        *across(x, _HEIGHT),
        *([limit_across(figure.limit, x, [(0, _HEIGHT)])] if figure.limit and is_drawn else []),
        *_paths(figure, x, y),
        *(_point(other, x, y) for other in faint_first),
        *(label for _, label in _labels(figure, x, y, NARROW, "wide")),
        *(label for _, label in on_phone),
        kind="upright",
        label=figure.text,
    )
    note = None if is_drawn else far_note(figure.limit, figure.x, max(xs))
    whole = tag("div", drawing, note, _unnamed(figure, {name for name, _ in on_phone}))
    return wrap(figure, whole, marks=[(other.name, other.facts) for other in figure.points])


def _paths(figure: Points, x: Range, y: Range) -> Iterator[Markup]:
    """Yield the lines between points."""
    known = {point.name: point for point in figure.points}
    for path in figure.paths:
        for one, other in pairwise(known[name] for name in path if name in known):
            ends = {"x1": percent(x.at(one.x.value)), "x2": percent(x.at(other.x.value))}
            ups = {"y1": _HEIGHT * (1 - y.at(one.y.value)), "y2": _HEIGHT * (1 - y.at(other.y.value))}
            yield tag("line", class_="path", **ends, **{name: number(up) for name, up in ups.items()})


def _ends(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]


def _point(point: ChartPoint, x: Range, y: Range) -> Markup:
    at, up = percent(x.at(point.x.value)), _HEIGHT * (1 - y.at(point.y.value))
    shapes = []
    if point.x.low is not None and point.x.high is not None:
        ends = {"x1": percent(x.at(point.x.low)), "x2": percent(x.at(point.x.high))}
        shapes.append(tag("line", class_="whisker", y1=up, y2=up, **ends))
    if point.y.low is not None and point.y.high is not None:
        ends = {"y1": number(_HEIGHT * (1 - y.at(point.y.low))), "y2": number(_HEIGHT * (1 - y.at(point.y.high)))}
        shapes.append(tag("line", class_="whisker", x1=at, x2=at, **ends))
    shapes.append(tag("circle", class_="dot", cx=at, cy=up, r=_RADIUS[point.emphasis]))
    shapes.append(tag("circle", class_="reach", cx=at, cy=up, r=14))
    place = {"data_x": repr(point.x.value), "data_y": repr(point.y.value)}
    return mark(point.name, point.facts, *shapes, emphasis=point.emphasis, **place)


def _unnamed(figure: Points, named: set[str]) -> Markup | None:
    """Return for a phone the names of the points that have no room for one; None where all have."""
    left = sorted((one for one in figure.points if one.name not in named), key=lambda one: one.x.value)
    if not left:
        return None
    names = ", ".join(point.name for point in left)
    return tag("p", f"Without a name here, from left to right: {names}.", class_="far phone")


def _labels(figure: Points, x: Range, y: Range, width: int, screen: str) -> list[tuple[str, Markup]]:
    """Return names and labels of what stands out, and of the others where there is room.

    Args:
        figure: The points.
        x: Its axis.
        y: Its axis.
        width: Pixels of the chart.
        screen: Class of the labels, `wide` or `phone`: each is shown on such a screen only.
    """
    taken = [_box(point, x, y, "", 0, width) for point in figure.points]
    taken += [box for point in figure.points for box in _whiskers(point, x, y, width)]
    named = [other for other in figure.points if len(figure.points) <= _ALL or other.emphasis is not Emphasis.FAINT]
    order = sorted(named, key=lambda other: [*Emphasis].index(other.emphasis))
    labels = []
    for one in order:
        choices = [(side, line) for line in (0, -1, 1) for side in _sides(x.at(one.x.value))]
        free = [choice for choice in choices if _is_free(_box(one, x, y, *choice, width), taken, width)]
        if not free and one.emphasis not in (Emphasis.CHOSEN, Emphasis.FIRST):
            continue  # what matters most is named at any price
        side, line = free[0] if free else choices[2]
        taken.append(_box(one, x, y, side, line, width))
        labels.append((one.name, _label(one, x, y, side, line, screen)))
    return labels


def _is_free(box: Box, taken: list[Box], width: int) -> bool:
    return box[0] >= 0 and box[2] <= width and not any(_overlap(box, other) for other in taken)


def _sides(at: float) -> tuple[str, str]:
    return ("start", "end") if at < 0.6 else ("end", "start")


def _box(point: ChartPoint, x: Range, y: Range, side: str, line: int, width: int) -> Box:
    """Return left, top, right and bottom in pixels; of the dot itself without a side."""
    at, up = width * x.at(point.x.value), _HEIGHT * (1 - y.at(point.y.value)) + _LINE * line
    if not side:
        return at - 6, up - 6, at + 6, up + 6
    wide = _LETTER * len(_short(point.name))
    left = at + 11 if side == "start" else at - 11 - wide
    return left, up - _LINE / 2, left + wide, up + _LINE / 2


def _whiskers(point: ChartPoint, x: Range, y: Range, width: int) -> Iterator[Box]:
    """Yield the boxes of a point's whiskers in pixels."""
    at, up = width * x.at(point.x.value), _HEIGHT * (1 - y.at(point.y.value))
    if point.x.low is not None and point.x.high is not None:
        yield width * x.at(point.x.low), up - 1, width * x.at(point.x.high), up + 1
    if point.y.low is not None and point.y.high is not None:
        yield at - 1, _HEIGHT * (1 - y.at(point.y.high)), at + 1, _HEIGHT * (1 - y.at(point.y.low))


def _overlap(entry: Box, other: Box) -> bool:
    return entry[0] < other[2] and other[0] < entry[2] and entry[1] < other[3] and other[1] < entry[3]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 3]}…{name[1 - _LONGEST * 2 // 3 :]}"


def _label(point: ChartPoint, x: Range, y: Range, side: str, line: int, screen: str) -> Markup:
    return tag(
        "text",
        _short(point.name),
        class_=f"name {point.emphasis} {screen}",
        x=percent(x.at(point.x.value)),
        y=_HEIGHT * (1 - y.at(point.y.value)) + _LINE * line,
        dx=11 if side == "start" else -11,
        dy="0.32em",
        text_anchor=side,
        aria_hidden="true",
    )
