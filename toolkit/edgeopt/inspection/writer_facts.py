"""Facts of a language model, read without opening it: context, tokens, cache, and the figures of its bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.executors.onnxruntime.state_parts import state_parts
from edgeopt.graph.model import load_model
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.texts.generation import GenerationTable
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.opening import bundle_of, recipe_beside
from edgeopt.system.text import format_bytes, format_ms


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """A language model, in words."""

    file: Path
    """File of its decoder."""
    recipe: str
    writes: str
    measured: str
    """Empty where it is no bundle that `optimize` wrote."""


def writer_facts(name: str) -> WriterFacts:
    """Return the facts of a language model.

    Args:
        name: Of a shipped model, a bundle, a file or a folder.

    Raises:
        EdgeoptError: If its parts cannot be read, or it is no decoder with a cache.
    """
    path = find_language_model(name)
    folder = bundle_of(path)
    bundle = read_bundle(folder) if folder else None
    recipe = bundle.recipe if bundle else recipe_beside(path)
    file = bundle.model if bundle else path
    model, generation = load_model(file), recipe.generation
    token_bytes = sum(part.token_bytes for part in cache_parts(model.inputs, model.outputs, generation.head))
    tokens = read_tokens(recipe.folder / recipe.tokenizer.file)
    cache = f"cache {format_bytes(token_bytes)} a token, {format_bytes(token_bytes * generation.context)} in all"
    cache = cache if token_bytes else "no cache"
    if states := sum(part.text_bytes for part in state_parts(model.inputs, model.outputs)):
        cache += f"; states of {format_bytes(states)} for a text of any length"
    return WriterFacts(
        file=file,
        recipe=f"{recipe.name}: a language model{', of its bundle' if bundle else ', beside the model'}",
        writes="; ".join(
            (
                f"context of {generation.context} tokens",
                f"tokenizer of {tokens.size}",
                f"{cache}{_told_graphs(generation)}{_seen(recipe.image)}",
            )
        ),
        measured=told_measured(bundle.expected) if bundle else "",
    )


def _told_graphs(generation: GenerationTable) -> str:
    if generation.engine:
        return f"; prompts and tokens on {generation.engine}"
    engine = f" on {generation.prefill_engine}" if generation.prefill_engine else ""
    return f"; two graphs over it, {generation.prefill} computes prompts{engine}" if generation.prefill else ""


def _seen(image: ImageTable) -> str:
    """Return how pictures of a prompt are seen; empty where they are not."""
    if not image.sees:
        return ""
    if image.patch:
        return (
            f"; pictures in patches of {image.patch} pixels, a token for {image.factor}x{image.factor} pixels, at most "
            f"{image.most_pixels // image.factor**2} tokens each, by {image.encoder}"
        )
    parts = f"cut into tiles of {image.tile} pixels" if image.splits else f"scaled to {image.tile} pixels"
    return f"; pictures {parts}, {image.rows} tokens each, by {image.encoder}"


def told_measured(expected: Mapping[str, Any]) -> str:
    """Return what a bundle tells of the chosen form; empty where it was not measured."""
    form, perplexity = expected.get("form"), expected.get("perplexity")
    if not isinstance(form, str) or not isinstance(perplexity, float):
        return ""
    proof = expected.get("proof")
    word = f", {proof['word']}" if isinstance(proof, Mapping) and isinstance(proof.get("word"), str) else ""
    parts = [f"form {form}", f"perplexity {perplexity:.3f}{word}"]
    for key, label in (("ttft_p50_ms", "TTFT"), ("tpot_p50_ms", "TPOT")):
        value = expected.get(key)
        parts += [f"{label} p50 {format_ms(value * 1e6)} ms"] if isinstance(value, float) else []
    prompts = expected.get("prompt_tokens")
    lengths = f"{f'prompts of {prompts} tokens, ' if prompts else ''}answers of {expected.get('output_tokens')}"
    return f"{', '.join(parts)}; {lengths}"
