"""1 less the character error rate: edits over true characters, of all lines together, at least 0.

Source: the error rate as jiwer's `cer` and PaddleOCR have it. By chance it is that of the most common character.
"""

from __future__ import annotations

from edgeopt.recipes.metrics import Metric
from edgeopt.recipes.scoring.spelling import right_characters

METRIC = Metric(("ocr",), right_characters, lambda spelling, lines: float(spelling.by_chance))
