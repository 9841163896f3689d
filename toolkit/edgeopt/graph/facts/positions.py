"""How many positions a decoder has a rotation for, read from its file alone.

A rotary cache is a table with a row a position; a text beyond its last row has none.
"""

from __future__ import annotations

from pathlib import Path

from edgeopt.graph.facts.constants import constants_of

_TABLE = "cos_cache"
_MATRIX = 2


def positions_of(file: Path) -> int | None:
    """Return the rows of the shortest rotary cache; None: there is none, or the file is no such graph."""
    constants = constants_of(file)
    rows = [each.shape[0] for each in constants if _TABLE in each.name and len(each.shape) == _MATRIX]
    return min(rows, default=None)
