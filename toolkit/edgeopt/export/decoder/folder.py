"""A Hugging Face folder of a decoder, written as ONNX beside its tokenizer and recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import MissingDependencyError, Note, NoteKind, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import cache_parts, shares_cache
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.executors.onnxruntime.stateful import decoder_of
from edgeopt.export.decoder.gguf.file import GgufFile
from edgeopt.export.decoder.llama import LlamaConfiguration, read_configuration, write_llama
from edgeopt.export.decoder.mamba import MambaConfiguration, is_mamba, read_mamba, write_mamba
from edgeopt.export.decoder.mamba_reference import MambaReference
from edgeopt.export.decoder.quantized import QuantizedFolder, open_weights
from edgeopt.export.decoder.reference import Reference
from edgeopt.export.decoder.tensors_file import NamedTensors, TensorFiles
from edgeopt.export.decoder.traced import TracedDecoder
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.recipes.drafting.generation_drafting import TOKENIZER, begin_of, drafted_generation
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe
from edgeopt.recipes.texts.generation import GENERATION, GenerationTable
from edgeopt.recipes.texts.tokenizer import Tokenizer
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.steps.convert.decoder_fusion import fuse_decoder
from edgeopt.steps.convert.kept_blocks import experts_in_floats, round_inputs
from edgeopt.system.text import plural

TOLERANCE = 1e-3
"""Error over signal; a right graph stays below 1e-5."""
TEXTS = 3
_TOKENS = 24
_NO_FLOAT_KERNEL = (8,)
"""Bits for which the engine has no kernel with inputs in float: it would write out each matrix in float, each time."""
_MAPPED_ONLY = {"session.disable_prepacking": "1"}
"""Entries with which matrices are read where they are mapped, and no copy of them is packed in memory."""
_ALWAYS_ROUNDED = 8
"""Bits of experts whose inputs the engine rounds whatever it is told: what is written is compared in floats."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How texts are read where logits are compared."""

    texts: int
    one_by_one: int
    """Last tokens of a text, run one by one: the cache is compared too."""


_WHOLE, _SHORT = _Reading(TEXTS, 8), _Reading(1, 2)
"""The short one is for graphs of which each run takes as long as writing out all matrices does."""


@dataclass(frozen=True, slots=True)
class WrittenDecoder:
    """A decoder as ONNX, and what answers for it."""

    model: Model
    recipe: Recipe
    drift: Drift
    """Drift of its logits, the worst of a few texts."""
    vocabulary: int
    framework: str
    """Framework, with its version, that gave the logits for `drift`."""
    notes: tuple[Note, ...] = ()
    texts: int = TEXTS
    """Texts on which it was compared."""


def is_decoder(folder: Path) -> bool:
    """Return whether a folder of Hugging Face holds a network that writes token after token."""
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
        named = values.get("architectures") or [""]
        return str(named[0]).endswith(("ForCausalLM", "LMHeadModel"))
    except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError):
        return False


def write_decoder(folder: Path, name: str) -> WrittenDecoder:
    """Return the decoder of a folder: from its weights where its type is written here, else traced by torch.

    Raises:
        InvalidFileError: If a file of the folder is damaged or missing.
        UnsupportedError: If neither is possible, or the graph answers differently.
    """
    if is_mamba(folder):
        return _without_attention(folder, name)
    try:
        config = read_configuration(folder)
    except UnsupportedError as reason:
        return _traced(folder, name, reason)
    return _from_weights(folder, name, config, open_weights(folder))


def write_gguf(file: Path, folder: Path, name: str) -> WrittenDecoder:
    """Return the decoder of a `.gguf` file.

    Args:
        file: Of llama.cpp.
        folder: Where its tokenizer is written, as Hugging Face has it.
        name: Of the model.

    Raises:
        MissingDependencyError: If the package `gguf` is not installed.
        InvalidFileError: If the file is damaged.
        UnsupportedError: If its type or its tokenizer is not written here, or the graph answers differently.
    """
    opened = GgufFile(file)
    opened.write_tokenizer(folder)
    made = _from_weights(folder, name, opened.config, opened)
    return replace(made, recipe=replace(made.recipe, source=str(file)))


def _from_weights(folder: Path, name: str, config: LlamaConfiguration, weights: NamedTensors) -> WrittenDecoder:
    recipe = decoder_recipe(folder, config, name)
    model, reference = write_llama(config, weights, name), Reference(config, weights)
    known = dict[tuple[int, ...], NDArray[np.float32]]()

    def expected(tokens: Sequence[int]) -> NDArray[np.float32]:
        if (*tokens,) not in known:
            known[(*tokens,)] = reference.logits(tokens)
        return known[(*tokens,)]

    rounded = round_inputs(model, of_bits=_NO_FLOAT_KERNEL)
    reading = _SHORT if rounded.changes else _WHOLE
    exact = experts_in_floats(model, _ALWAYS_ROUNDED)
    drift = compare_logits(exact, config.vocabulary, config.context, expected, reading)
    framework = f"NumPy {np.__version__}, its weights computed plainly"
    notes = weights.notes if isinstance(weights, GgufFile | QuantizedFolder) else ()
    if rounded.changes:
        off = _measured(rounded.model, config.vocabulary, config.context, expected, reading)
        notes = (*notes, Note(NoteKind.INFO, _told_of_rounding(rounded, off)))
    return WrittenDecoder(rounded.model, recipe, drift, config.vocabulary, framework, notes, reading.texts)


def _told_of_rounding(rounded: Outcome, off: Drift) -> str:
    count = plural(sum(rounded.changes.values()), "product")
    text = "what they read is rounded to 8 bits in blocks as well, as llama.cpp does it"
    return f"{count} of 8-bit matrices: {text} ({off.sqnr_db:.0f} dB on random tokens)"


def _without_attention(folder: Path, name: str) -> WrittenDecoder:
    config, weights = read_mamba(folder), TensorFiles(folder)
    recipe, model = decoder_recipe(folder, config, name), write_mamba(config, weights, name)
    exact = experts_in_floats(model, _ALWAYS_ROUNDED)
    drift = compare_logits(exact, config.vocabulary, config.context, MambaReference(config, weights).logits)
    framework = f"NumPy {np.__version__}, its weights computed plainly"
    return WrittenDecoder(model, recipe, drift, config.vocabulary, framework)


def _traced(folder: Path, name: str, reason: UnsupportedError) -> WrittenDecoder:
    drafted = drafted_generation(folder)
    if json.loads((folder / "config.json").read_text("utf-8")).get("quantization_config"):
        raise reason
    if drafted is None:
        read_tokens(folder / TOKENIZER)  # which says what is wrong with it
        raise reason
    try:
        opened = TracedDecoder(folder)
    except MissingDependencyError as error:
        raise UnsupportedError(f"{reason.problem} without torch", remedy=error.remedy) from error
    _require_fitting(folder, opened.vocabulary)
    context = drafted.generation.context
    fused = fuse_decoder(opened.traced(name), context, opened.vocabulary)
    drift = compare_logits(fused.model, opened.vocabulary, context, opened.logits)
    description = f"{opened.kind}, exported by torch"
    recipe = replace(drafted, name=name, description=description)
    return WrittenDecoder(fused.model, recipe, drift, opened.vocabulary, opened.framework, fused.notes)


def compare_logits(
    model: Model,
    vocabulary: int,
    context: int,
    expected: Callable[[Sequence[int]], NDArray[np.float32]],
    reading: _Reading = _WHOLE,
) -> Drift:
    """Return how far logits lie from those of another engine, the worst of a few random texts.

    Args:
        model: Whose cache takes part in it.
        vocabulary: Tokens that it knows.
        context: Tokens that a text may have.
        expected: Returns (tokens, vocabulary) behind each token of a text.
        reading: How many texts are read, and how.

    Raises:
        UnsupportedError: If they lie further apart than `TOLERANCE`.
    """
    worst = _measured(model, vocabulary, context, expected, reading)
    if not worst.is_within(TOLERANCE):
        raise UnsupportedError(
            f"the graph of {model.name} answers differently than its weights say: {worst.worst_db:.0f} dB",
            remedy="export it with onnxruntime-genai's builder",
        )
    return worst


def _measured(
    model: Model,
    vocabulary: int,
    context: int,
    expected: Callable[[Sequence[int]], NDArray[np.float32]],
    reading: _Reading,
) -> Drift:
    drifts, length = list[Drift](), min(_TOKENS, context)
    texts = [np.random.default_rng(seed).integers(0, vocabulary, length).tolist() for seed in range(reading.texts)]
    wanted = [expected(tokens) for tokens in texts]  # before the engine holds what may be gigabytes
    entries = {**UNOPTIMIZED, **_MAPPED_ONLY} if model.is_outside else UNOPTIMIZED
    session = EXECUTOR.open(model.source, SessionOptions(entries=entries))
    try:
        parts = cache_parts(session.inputs, session.outputs)
        for tokens, answer in zip(texts, wanted, strict=True):
            decoder = decoder_of(session.engine, parts, length, shares=shares_cache(session, parts))
            first = max(length - reading.one_by_one, 1)
            logits = [decoder.run(tokens[:first]), *(decoder.run([token]) for token in tokens[first:])]
            drifts.append(measure_drift({"logits": answer}, {"logits": np.concatenate(logits)}))
    finally:
        session.close()
    return worst_drift(drifts)


def _require_fitting(folder: Path, vocabulary: int) -> None:
    size = read_tokens(folder / TOKENIZER).size
    if size > vocabulary:
        raise UnsupportedError(
            f"{folder / TOKENIZER} has {size} tokens, the model {vocabulary}",
            remedy="copy the tokenizer that came with the model",
        )


def decoder_recipe(folder: Path, config: LlamaConfiguration | MambaConfiguration, name: str) -> Recipe:
    """Return the recipe of a folder; it names the tokenizer's file, which lies in the folder.

    Raises:
        InvalidFileError, UnsupportedError: If there is no tokenizer, or none that is read here.
    """
    _require_fitting(folder, config.vocabulary)
    return Recipe(
        name=name,
        task=GENERATION,
        description=f"{config.kind}, {config.layers} layers, {config.hidden} wide",
        license="that of its source",
        source=str(folder),
        postprocess=Postprocess(NO_DECODER),
        evaluation=Evaluation("agreement"),
        tokenizer=Tokenizer(TOKENIZER),
        generation=GenerationTable(config.context, config.end, begin_of(folder, config.begin)),
        folder=folder,
    )
