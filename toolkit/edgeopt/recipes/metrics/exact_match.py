"""Share of lines that are right in every character."""

from __future__ import annotations

from edgeopt.recipes.metrics import Metric
from edgeopt.recipes.scoring.spelling import right_lines

METRIC = Metric(("ocr",), right_lines, lambda spelling, lines: float(spelling.line_by_chance), is_share=True)
