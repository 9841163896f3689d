"""Share of pictures whose class is among the first five answers."""

from __future__ import annotations

from edgeopt.recipes.metrics import make_top

METRIC = make_top(5)
