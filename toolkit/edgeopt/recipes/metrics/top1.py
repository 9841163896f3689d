"""Share of pictures or texts whose class is the first answer."""

from __future__ import annotations

from edgeopt.recipes.metrics import make_top

METRIC = make_top(1, ("classification", "text_classification"))
