"""A Hugging Face folder of a decoder, written as ONNX beside its tokenizer and recipe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.pipeline.export.decoder.llama import KINDS, Configuration
from edgeopt.pipeline.export.decoder.reference import Reference
from edgeopt.pipeline.export.decoder.tensors_file import TensorFiles
from edgeopt.recipes.generation import GENERATION, Generation
from edgeopt.recipes.generation_drafting import TOKENIZER, begin_of
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe
from edgeopt.recipes.tokenizer import Tokenizer
from edgeopt.recipes.tokens import read_tokens

TOLERANCE = 1e-3
"""Error over signal; a right graph stays below 1e-5."""
TEXTS = 3
_TOKENS = 24
_ONE_BY_ONE = 8
"""Of the tokens of a text, the last ones: the cache is compared too."""


def is_decoder(folder: Path) -> bool:
    """Return whether a folder holds a network that writes token after token and is written here."""
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
        named = values.get("architectures") or [""]
        return values.get("model_type") in KINDS and str(named[0]).endswith("ForCausalLM")
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def compare_with_reference(config: Configuration, weights: TensorFiles, model: Model) -> Drift:
    """Return how far logits lie from those of plain NumPy, the worst of a few random texts.

    Raises:
        UnsupportedError: If they lie further apart than `TOLERANCE`.
    """
    reference, found = Reference(config, weights), list[Drift]()
    session = EXECUTOR.open(model.data, SessionOptions())
    try:
        parts = cache_parts(session.inputs, session.outputs)
        length = min(_TOKENS, config.context)
        for seed in range(TEXTS):
            tokens = np.random.default_rng(seed).integers(0, config.vocabulary, length).tolist()
            decoder = Decoder(session.engine, parts, length, shares=True)
            first = max(length - _ONE_BY_ONE, 1)
            logits = [decoder.run(tokens[:first]), *(decoder.run([token]) for token in tokens[first:])]
            found.append(measure_drift({"logits": reference.logits(tokens)}, {"logits": np.concatenate(logits)}))
    finally:
        session.close()
    worst = worst_drift(found)
    if not worst.is_within(TOLERANCE):
        raise UnsupportedError(
            f"the graph of {model.name} answers differently than its weights say: {worst.sqnr_db:.0f} dB",
            remedy="export it with onnxruntime-genai's builder",
        )
    return worst


def decoder_recipe(folder: Path, config: Configuration, name: str) -> Recipe:
    """Return the recipe of a folder; it names the tokenizer's file, which lies in the folder.

    Raises:
        InvalidFileError, UnsupportedError: If there is no tokenizer, or none that is read here.
    """
    size = read_tokens(folder / TOKENIZER).size
    if size > config.vocabulary:
        raise UnsupportedError(
            f"{folder / TOKENIZER} has {size} tokens, the model {config.vocabulary}",
            remedy="copy the tokenizer that came with the model",
        )
    return Recipe(
        name=name,
        task=GENERATION,
        description=f"{config.kind}, {config.layers} layers, {config.hidden} wide",
        license="that of its source",
        source=str(folder),
        postprocess=Postprocess(NO_DECODER),
        evaluation=Evaluation("agreement"),
        tokenizer=Tokenizer(TOKENIZER),
        generation=Generation(config.context, config.end, begin_of(folder, config.begin)),
        folder=folder,
    )
