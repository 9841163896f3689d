"""Helpers of all charts: marks that are pointed at, grids, keys, and the same figures as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edgeopt.report.figures import Axis, Emphasis, Facts, Figure, Limit
from edgeopt.report.html.axis import Range, axis_title
from edgeopt.report.html.markup import Attribute, Markup, join, number, percent, tag

NARROW = 420
"""Pixels that a chart is wide for sure on a screen; labels are placed as if it were."""
PHONE = 290
"""The same on a phone held upright, where labels have a place of their own."""


def wrap(
    figure: Figure, drawing: Markup, *, marks: Iterable[tuple[str, Facts]] = (), key: Markup | None = None
) -> Markup:
    """Return a figure with its title, what it says, its drawing and its figures as a table."""
    return tag(
        "figure",
        tag("figcaption", tag("h3", figure.title), tag("p", figure.text) if figure.text else None),
        key,
        drawing,
        fact_table([*marks], figure.title),
        class_=f"chart {type(figure).__name__.lower()}",
    )


def canvas(height: float, *children: Markup, kind: str, label: str, **data: Attribute) -> Markup:
    """Return a drawing as wide as its place; across, it is measured in percent, down in pixels.

    So text keeps its size on a phone, and nothing is drawn anew when the window changes.
    """
    inside = tag("svg", *children, class_="plot", height=height, role="group", aria_label=label, **data)
    return tag("div", inside, class_=f"canvas {kind}")


def mark(name: str, facts: Facts, *shapes: Markup, emphasis: Emphasis = Emphasis.PLAIN, **data: Attribute) -> Markup:
    """Return something that is pointed at, reached by keys and read aloud."""
    line = "; ".join(f"{label} {text}" for label, text in facts)
    return tag(
        "g",
        *shapes,
        class_=f"mark {emphasis}",
        tabindex="-1",
        role="img",
        aria_label=f"{name}: {line}" if line else name,
        data_name=name,
        data_tip=tip_of(facts),
        **data,
    )


def tip_of(facts: Facts) -> str:
    """Return labels and texts in turns, a line each, for the script that shows them beside the pointer."""
    return "\n".join(part for fact in facts for part in fact)


def fact_table(marks: Sequence[tuple[str, Facts]], title: str) -> Markup | None:
    """Return the facts of all marks as a table that is opened by a click; None where there are none."""
    heads = [*dict.fromkeys(label for _, facts in marks for label, _ in facts)]
    if not heads:
        return None
    rows = [tag("tr", tag("th", name, scope="row"), *_cells(dict(facts), heads)) for name, facts in marks]
    head = tag("tr", tag("td"), *(tag("th", other, scope="col") for other in heads))
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("details", tag("summary", "As a table"), *scrolled(table, f"{title}, as a table"), class_="facts")


def scrolled(table: Markup, label: str) -> tuple[Markup, Markup]:
    """Return a table that scrolls sideways where it is too wide, and a hint that the script then shows."""
    region = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)
    return region, tag("p", "Swipe the table sideways for its other columns.", class_="swipe", hidden=True)


def _cells(facts: Mapping[str, str], heads: Sequence[str]) -> Iterable[Markup]:
    return (tag("td", facts.get(head, "")) for head in heads)


def down(shown: Range, height: float) -> list[Markup]:
    """Return the lines and numbers of an upright axis."""
    markups = [tag("text", axis_title(shown.axis), class_="title", x=0, y=-14, dx=-44)]
    for at, text in shown.ticks:
        y = height * (1 - at)
        markups.append(tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        markups.append(tag("text", text, class_="tick", x=0, y=y, dx=-8, dy="0.32em", text_anchor="end"))
    return markups


def across(shown: Range, height: float, *, grid: bool = False) -> list[Markup]:
    """Return the numbers of an axis from left to right, and lines if asked for."""
    markups = []
    for at, text in shown.ticks:
        place = percent(at)
        if grid:
            markups.append(tag("line", class_="grid", x1=place, x2=place, y1=0, y2=height))
        markups.append(tag("text", text, class_="tick", x=place, y=height + 18, text_anchor="middle"))
    title = tag("text", axis_title(shown.axis), class_="title", x="100%", y=height + 38, text_anchor="end")
    return [*markups, title]


def limit_across(limit: Limit, shown: Range, spans: Iterable[tuple[float, float]]) -> Markup:
    """Return a limit as an upright line with its name on top.

    Args:
        limit: Where it stands.
        shown: The axis.
        spans: From which pixel to which the line is drawn: not where figures are written.
    """
    at = shown.at(limit.value)
    lines = [tag("line", x1=percent(at), x2=percent(at), y1=top, y2=bottom) for top, bottom in spans]
    anchor = "end" if at > 0.5 else "start"
    text = tag("text", limit.label, x=percent(at), y=-4, dx=-4 if at > 0.5 else 4, text_anchor=anchor)
    return tag("g", *lines, text, class_="limit", data_limit=repr(limit.value))


def far_note(limit: Limit | None, axis: Axis, longest: float) -> Markup | None:
    """Return in words where a limit lies that is too far away to be drawn."""
    if limit is None:
        return None
    times = limit.value / longest if longest else 0.0
    text = f"The {limit.label} lies far to the right, at {times:.0f} times the longest {axis.label}."
    return tag("p", text, class_="far")


def key_of(entries: Sequence[tuple[str, str]]) -> Markup | None:
    """Return what colours mean.

    Args:
        entries: Class of the colour, and its name.
    """
    if not entries:
        return None
    shown = [tag("li", tag("span", class_=f"swatch {style}", aria_hidden="true"), name) for style, name in entries]
    return tag("ul", *shown, class_="key")


def stretched(height: float, *children: Markup) -> Markup:
    """Return a drawing 1000 wide that is stretched over the whole canvas: for lines, which have no percent."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 1000 {number(height)}",
        preserveAspectRatio="none",
        width="100%",
        height=height,
        aria_hidden="true",
    )


def group(*children: Markup | None) -> Markup:
    """Return parts of a drawing one after the other."""
    return join(children)
