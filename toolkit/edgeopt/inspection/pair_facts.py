"""Facts of an encoder with a decoder, read without opening it: inputs, outputs and cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeopt.executors.onnxruntime.cross_decoder import CrossCache
from edgeopt.graph.model import load_model
from edgeopt.inspection.writer_facts import WriterFacts, told_measured
from edgeopt.recipes.texts.encoder_decoder import read_encoder_decoder
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.runtime.bundle import is_bundle, read_bundle
from edgeopt.system.text import format_bytes


def encoder_decoder_facts(name: str) -> WriterFacts:
    """Return the facts of an encoder with a decoder.

    Args:
        name: Of its folder, or of its bundle.

    Raises:
        EdgeoptError: If its parts cannot be read, or the decoder has no cache.
    """
    bundle = read_bundle(Path(name)) if is_bundle(Path(name)) else None
    files = read_encoder_decoder(bundle.folder if bundle else Path(name))
    files = replace(files, name=bundle.recipe.name) if bundle else files
    sizes = {file: sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*")) for file in files.files}
    graphs = ", ".join(f"{path.name} {format_bytes(size)}" for path, size in sizes.items())
    audio, cache = files.audio, CrossCache(load_model(files.following).inputs)
    hears = f"hears {audio.samples / audio.rate_hz:g} s at {audio.rate_hz} Hz" if audio else "reads texts"
    kept = (
        f"cache {format_bytes(cache.token_bytes)} a token, {format_bytes(cache.heard_bytes)} a row of what it "
        f"{'hears' if audio else 'reads'}"
    )
    tokens = read_tokens(files.tokenizer).size
    return WriterFacts(
        file=files.following,
        recipe=f"{files.name}: an encoder with a decoder ({files.kind}{', of its bundle' if bundle else ''}; {graphs})",
        writes=f"{hears}; answers of up to {files.context} tokens; tokenizer of {tokens}; {kept}",
        measured=told_measured(bundle.expected) if bundle else "",
    )
