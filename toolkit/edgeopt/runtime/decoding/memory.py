"""Whether a language model and its cache fit into memory: known before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.openvino.memory import held_bytes
from edgeopt.executors.openvino.pages import why_not_on_openvino
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.decoding.language_model import LanguageModel
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


def held_by_openvino(file: Path, *, is_alone: bool) -> int:
    """Return the memory that OpenVINO takes beside the file of a graph that it is to compute; 0: it does not here.

    Args:
        file: ONNX, with weights beside it.
        is_alone: It computes prompts and tokens; else another engine computes tokens, with weights of its own.
    """
    return 0 if why_not_on_openvino() else held_bytes(file, is_alone=is_alone)


def bytes_of_decoder(file: Path, recipe: Recipe) -> int:
    """Return the memory of a decoder's graphs as far as their files tell: weights, and what OpenVINO holds of them."""
    generation, graphs = recipe.generation, {file: recipe.generation.engine}
    if generation.prefill:
        graphs[file.parent / generation.prefill] = generation.prefill_engine
    if recipe.image.sees:
        graphs[file.parent / recipe.image.encoder] = ""
    elsewhere = [graph for graph, engine in graphs.items() if engine == OPENVINO]
    return bytes_of_graphs([*graphs]) + sum(held_by_openvino(graph, is_alone=graph == file) for graph in elsewhere)


def bytes_beside_cache(model: LanguageModel, tokens: int) -> int:
    """Return the memory of an open model beside the cache: weights, and pages of another engine's prompts.

    Args:
        model: Open.
        tokens: Of the longest prompt.
    """
    pages = model.prefill.page_bytes(tokens) if model.prefill else 0
    return model.origin.size_bytes + model.engine_bytes + pages


def bytes_of_text(model: LanguageModel, tokens: int) -> int:
    """Return the memory of an open model that writes one text of so many tokens, at most as many as its context."""
    held = min(tokens, model.context)
    return bytes_beside_cache(model, held) + held * model.token_bytes + model.state_bytes
