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
            class_=f"mark cell {'refused' if cell.is_refused else Emphasis.PLAIN}",
            tabindex="-1",
            role="img",
            aria_label="; ".join((cell.name, cell.kind, *(f"{label} {text}" for label, text in cell.facts))),
            data_name=cell.name,
            data_tip=tip_of(cell.facts),
        )
        for cell in figure.cells
    ]
    kinds = {cell.kind: "refused" if cell.is_refused else "taken" for cell in figure.cells}
    field = tag("div", *squares, class_="field plot", role="group", aria_label=figure.text)
    marks = [(cell.name, cell.facts) for cell in figure.cells if cell.is_refused]
    return wrap(figure, field, marks=marks, key=key_of([(f"cell {style}", kind) for kind, style in kinds.items()]))
