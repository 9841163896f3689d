"""Many things in order, and which kind each of them is of."""

from __future__ import annotations

from edgeopt.report.figures import Cells, Emphasis
from edgeopt.report.html.chart import key_of, tip_of, wrap
from edgeopt.report.html.markup import Markup, tag


def draw_cells(figure: Cells) -> Markup:
    """Return one square a thing, in order; squares flow like words."""
    squares = [
        tag(
            "span",
            class_=f"mark cell {'refused' if one.is_refused else Emphasis.PLAIN}",
            tabindex="-1",
            role="img",
            aria_label="; ".join((one.name, one.kind, *(f"{label} {text}" for label, text in one.facts))),
            data_name=one.name,
            data_tip=tip_of(one.facts),
        )
        for one in figure.cells
    ]
    kinds = {one.kind: "refused" if one.is_refused else "taken" for one in figure.cells}
    field = tag("div", *squares, class_="field plot", role="group", aria_label=figure.text)
    marks = [(one.name, one.facts) for one in figure.cells if one.is_refused]
    return wrap(figure, field, marks=marks, key=key_of([(f"cell {style}", kind) for kind, style in kinds.items()]))
