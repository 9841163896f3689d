"""Which tensors of a changed model are those of its parent up to a gain and an offset for each channel."""

from __future__ import annotations

from edgeopt.graph.model import Model

SCALED = "edgeopt.scaled"
"""Key of a model's metadata: names, one a line."""


def scaled_tensors(model: Model) -> frozenset[str]:
    """Return their names; none where no step left a word."""
    return frozenset(model.metadata.get(SCALED, "").split("\n")) - {""}
