"""Things over something that goes on: lines, or a dot for each value."""

from __future__ import annotations

from edgeopt.report.figures import Curve, Emphasis, Limit, Lines
from edgeopt.report.html.axis import Range, is_far, make_range
from edgeopt.report.html.chart import across, canvas, down, key_of, mark, stretched, wrap
from edgeopt.report.html.markup import Markup, number, tag

_HEIGHT = 260.0
_FEW = 150
"""Fewer dots than this are larger."""


def draw_lines(figure: Lines) -> Markup:
    """Return the chart; what stands out is drawn last, on top."""
    xs = [one for line in figure.lines for one in line.xs]
    ys = [one for line in figure.lines for one in line.ys]
    x, y = make_range(figure.x, xs), make_range(figure.y, ys, figure.limit)
    styles = _styles(figure.lines)
    weak_first = sorted(figure.lines, key=lambda other: -[*Emphasis].index(other.emphasis))
    is_drawn = figure.limit is not None and not is_far(figure.limit, ys)
    drawing = canvas(
        _HEIGHT,
        *down(y, _HEIGHT),
        *across(x, _HEIGHT),
        *(_line(other, styles[other.name], x, y, is_dotted=figure.is_dotted) for other in weak_first),
        *([_limit(figure.limit, y)] if figure.limit and is_drawn else []),
        tag("line", class_="cursor", y1=0, y2=_HEIGHT, hidden=True),
        kind="upright lines",
        label=figure.text,
        data_low=repr(x.low),
        data_high=repr(x.high),
        data_scale=str(figure.x.scale),
        data_x_label=figure.x.label,
        data_x_unit=figure.x.unit,
        data_y_unit=figure.y.unit,
    )
    far = tag("p", f"The {figure.limit.label} lies far above.", class_="far") if figure.limit and not is_drawn else None
    key = key_of([(f"line {styles[other.name]}", other.name) for other in figure.lines])
    return wrap(figure, tag("div", drawing, far), marks=[(other.name, other.facts) for other in figure.lines], key=key)


def _styles(lines: tuple[Curve, ...]) -> dict[str, str]:
    """Return the class of each line: plain ones differ by their dashes."""
    plain = [line.name for line in lines if line.emphasis is Emphasis.PLAIN]
    return {
        line.name: f"plain dash-{plain.index(line.name) % 4}" if line.emphasis is Emphasis.PLAIN else str(line.emphasis)
        for line in lines
    }


def _line(line: Curve, style: str, x: Range, y: Range, *, is_dotted: bool) -> Markup:
    places = [
        f"{number(1000 * x.at(at))} {number(_HEIGHT * (1 - y.at(up)))}" for at, up in zip(line.xs, line.ys, strict=True)
    ]
    path = "".join(f"M{place}h0" for place in places) if is_dotted else f"M{'L'.join(places)}"
    shape = tag("path", class_=f"{_kind(line, is_dotted=is_dotted)} {style}", d=path)
    values = " ".join(f"{at!r},{up!r}" for at, up in zip(line.xs, line.ys, strict=True))
    return mark(line.name, line.facts, stretched(_HEIGHT, shape), emphasis=line.emphasis, data_values=values)


def _kind(line: Curve, *, is_dotted: bool) -> str:
    if not is_dotted:
        return "curve"
    return "dots few" if len(line.xs) < _FEW else "dots"


def _limit(limit: Limit, y: Range) -> Markup:
    up = _HEIGHT * (1 - y.at(limit.value))
    line = tag("line", x1=0, x2="100%", y1=up, y2=up)
    text = tag("text", limit.label, x="100%", y=up, dy=-5, text_anchor="end")
    return tag("g", line, text, class_="limit", data_limit=repr(limit.value))
