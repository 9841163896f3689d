"""Whether a language model and its cache fit into memory: known before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.machine.memory import free_bytes
from edgeopt.system.text import format_bytes


def require_memory(weights_bytes: int, token_bytes: int, recipe: Recipe) -> None:
    """Raise where weights and the cache of one text that fills the context do not fit into what is free.

    Args:
        weights_bytes: Of the model's files; 0: they are loaded.
        token_bytes: Of the cache; 0: not known yet.
        recipe: With the context that is asked for.

    Raises:
        EdgeoptError: If so.
    """
    context, free = recipe.generation.context, free_bytes()
    needed = weights_bytes + token_bytes * context
    if needed <= free:
        return
    parts = [f"weights of {format_bytes(weights_bytes)}"] if weights_bytes else []
    parts += [f"a cache of {format_bytes(token_bytes * context)} for {context} tokens"] if token_bytes else []
    fits = (free - weights_bytes) // token_bytes if token_bytes and free > weights_bytes else 0
    shorter = (
        f"ask for a shorter context, --context {fits} at most (without that option: context in recipe.toml), or "
        if fits
        else ""
    )
    raise EdgeoptError(
        f"{' and '.join(parts)} do not fit: {format_bytes(free)} are free",
        remedy=f"{shorter}close other programs, or take a smaller form or model",
    )


def bytes_of_graphs(graphs: Sequence[Path]) -> int:
    """Return the size of ONNX files with the weights that lie beside them under their names."""
    files = {other for graph in graphs for other in graph.parent.glob(f"{graph.name}*") if other.is_file()}
    return sum(file.stat().st_size for file in files)
