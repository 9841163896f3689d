"""A model as a bundle stores it: in one file, or with its weights in a file that the bundle's models share."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.files.outside import PieceLayout, lay_out
from edgeopt.graph.files.outside_weights import in_one_file, outside_tensors, piece_of
from edgeopt.graph.model import Model
from edgeopt.runtime.bundles.parts import Weights


def in_bundle(model: Model, weights: dict[str, PieceLayout]) -> tuple[bytes, Weights | None]:
    """Return a model as the bundle stores it; equal weights of several models lie there once, named by their hash."""
    return in_bundle_together([model], weights)[0]


def in_bundle_together(models: Sequence[Model], weights: dict[str, PieceLayout]) -> list[tuple[bytes, Weights | None]]:
    """Return models that run together, as the bundle stores them: all weights that lie outside are in one file."""
    pieces = [piece_of(tensor) for model in models for tensor in outside_tensors(model.proto)]
    if not pieces:
        return [(model.data, None) for model in models]
    layout = lay_out(pieces)
    content = layout.sha256
    named = Weights(f"weights-{content[:16]}.bin", content, layout.size_bytes)
    weights[named.file] = layout
    return [
        (in_one_file(model.proto, layout, named.file), named) if model.is_outside else (model.data, None)
        for model in models
    ]
