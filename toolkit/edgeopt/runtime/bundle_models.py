"""A model as a bundle stores it: in one file, or with its weights in a file that the bundle's models share."""

from __future__ import annotations

from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.files.outside_weights import in_one_file, layout_of
from edgeopt.graph.model import Model
from edgeopt.runtime.bundle import Weights


def in_bundle(model: Model, weights: dict[str, PieceLayout]) -> tuple[bytes, Weights | None]:
    """Return a model as the bundle stores it; equal weights of several models lie there once, named by their hash."""
    if not model.is_outside:
        return model.data, None
    layout = layout_of(model.proto)
    content = layout.sha256
    named = Weights(f"weights-{content[:16]}.bin", content, layout.size_bytes)
    weights[named.file] = layout
    return in_one_file(model.proto, layout, named.file), named
