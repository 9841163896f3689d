"""F1 of spans: right where both ends and the kind are; see `recipes/scoring/entities.py`."""

from __future__ import annotations

from edgeopt.recipes.metrics import Metric
from edgeopt.recipes.scoring.entities import span_f1

METRIC = Metric(("token_classification",), span_f1, lambda counted, texts: 0.0)
