"""A picture of where the nodes of a model run: one cell a node, in the order in which they run. SVG, no script."""

from __future__ import annotations

import math
from html import escape

from edgeopt.steps.compile._placement import CPU, Partition

PICTURE = "partition.svg"
"""Its file beside a candidate's model."""
_CELL, _GAP, _COLUMNS, _LINE = 14, 2, 48, 16
_TAKEN, _REFUSED, _INK = "#2a7f62", "#c8553d", "#222222"
_LETTER = 7
"""Width of a letter, at most on average, in pixels."""
_MOST_NAMED = 12


def draw_partition(partition: Partition) -> str:
    """Return an SVG: nodes on the device green, refused ones red, the refused ones named with their reasons below."""
    nodes, refused = partition.nodes, partition.refused[:_MOST_NAMED]
    step = _CELL + _GAP
    columns = min(_COLUMNS, max(1, len(nodes)))
    below = _LINE * 2 + step * math.ceil(len(nodes) / columns)
    cells = [
        _cell(
            i % columns * step + _GAP, _LINE * 2 + i // columns * step, node.provider == CPU, f"{node.op} {node.node}"
        )
        for i, node in enumerate(nodes)
    ]
    title = f"{partition.target}: {partition.verdict}"
    lines = [f"{placement.op} {placement.node}: {placement.reason}" for placement in refused]
    parts = [_text(below + _LINE * (i + 1), line) for i, line in enumerate(lines)]
    body = "\n".join([_text(_LINE, title), *cells, *parts])
    width = max(columns * step, *(_LETTER * len(line) for line in (title, *lines))) + 2 * _GAP
    height = below + _LINE * (len(refused) + 1)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def _cell(x: int, y: int, is_refused: bool, title: str) -> str:
    colour = _REFUSED if is_refused else _TAKEN
    place = f'x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"'
    return f'<rect {place} fill="{colour}"><title>{escape(title)}</title></rect>'


def _text(y: int, line: str) -> str:
    return f'<text x="{_GAP}" y="{y}" fill="{_INK}">{escape(line)}</text>'
