"""Language models and encoders with decoders, opened with the right optimizations of ONNX Runtime.

What is compared are the logits of a prompt's first tokens and of one token behind a past, and the caches that they
leave; of an encoder what it makes of numbers that are made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.executors._child import CHILD
from edgeopt.executors._guard import active_guard
from edgeopt.executors.onnxruntime.cross_decoder import HAS_PAST
from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS, MASK, POSITIONS
from edgeopt.executors.onnxruntime.image_rows import AXES, IMAGE_PLACES, IMAGE_SHIFTS
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.opening.right_optimizations import Correction, find_correction, joined
from edgeopt.recipes.inputs.features import FeatureMaker
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.encoder_decoder import read_encoder_decoder
from edgeopt.runtime.bundle import is_bundle
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import bundle_of, decoder_file, open_language_model
from edgeopt.system.declared.target import find_target

_BEGIN, _NEXT = (6, 0), (1, 5)
"""Tokens of a run, and of the past before them: the beginning of a prompt, and one token of an answer."""
_HEARD = 8
"""Rows that an encoder gave, where the graph leaves them free."""
_HEAD = 64
"""Numbers of a head in a cache that leaves them free."""
_RANK = 4
_PAST_AXIS, _HEAD_AXIS = 2, 3


def open_right_decoder(
    model: Path, threads: int, context: int = 0, draft: Path | None = None
) -> tuple[LanguageModel, Recipe]:
    """Return a language model, open with what ONNX Runtime must be held back by, and its recipe.

    Its notes tell what that is. A guard that is active holds forms back alike.

    Args:
        model: A file, a folder or a bundle.
        threads: Of the engine.
        context: Tokens for which memory is reserved; 0: all.
        draft: A smaller model that guesses; None: the recipe's, if any.

    Raises:
        EdgeoptError: As `open_language_model`.
        EngineAbortError: If ONNX Runtime aborts on the model even without optimizations.
    """
    correction = correction_of_decoder(model)
    _hold_back(correction)
    opened, recipe = open_language_model(model, threads, context, draft, correction.entries)
    opened.origin = replace(opened.origin, notes=(*opened.origin.notes, *correction.notes))
    return opened, recipe


def open_right_pair(folder: Path, threads: int) -> EncoderDecoder:
    """Return an encoder with a decoder, open as `open_right_decoder` opens a decoder.

    Raises:
        EdgeoptError: As `open_encoder_decoder`.
        EngineAbortError: If ONNX Runtime aborts on one of its graphs even without optimizations.
    """
    correction = correction_of_pair(folder)
    _hold_back(correction)
    opened = open_encoder_decoder(folder, threads, correction.entries)
    opened.files = replace(opened.files, notes=(*opened.files.notes, *correction.notes))
    return opened


def _hold_back(correction: Correction) -> None:
    if guard := active_guard():
        guard.entries = correction.entries


def correction_of_decoder(model: Path) -> Correction:
    """Return how ONNX Runtime must be held back for a decoder; nothing for a bundle, which tells it itself."""
    return Correction() if bundle_of(model) else _correction(decoder_file(model))


def correction_of_pair(folder: Path) -> Correction:
    """Return how ONNX Runtime must be held back for all graphs of an encoder with a decoder.

    Raises:
        EdgeoptError: As `read_encoder_decoder`.
    """
    if is_bundle(folder):
        return Correction()
    files = read_encoder_decoder(folder)
    bands = FeatureMaker(files.audio).shape if files.audio else ()
    return joined([_correction(file, bands) for file in files.files])


def _correction(file: Path, features: Sequence[int] = ()) -> Correction:
    try:
        model = load_model(file, in_place=True)
        samples = samples_of(model, features)
    except (EdgeoptError, TypeError):  # whoever opens it says what is wrong; a type of its own is no number of NumPy's
        return Correction()
    try:
        return find_correction(model, lambda: samples, replace(find_target("cpu"), options={}))
    finally:
        if active_guard() is None:
            CHILD.close()  # nothing else is tried in it


def samples_of(model: Model, features: Sequence[int] = ()) -> list[Tensors]:
    """Return inputs of a prompt's first tokens, and of one token behind a past.

    Args:
        model: A decoder, or an encoder, which is given other numbers each time.
        features: Bands and frames that stand for sizes that an encoder of sounds leaves free; none: of texts.
    """
    chance = np.random.default_rng(0)
    logits = next((output.shape[-1] for output in model.outputs if output.name == LOGITS and output.shape), None)
    vocabulary = logits if isinstance(logits, int) else 2
    own = [input_ for input_ in model.inputs if len(input_.shape) == _RANK and "encoder" not in input_.name]
    made = list[Tensors]()
    for tokens, past in (_BEGIN, _NEXT if own else _BEGIN):
        sample = dict[str, NDArray[Any]]()
        for spec in model.inputs:
            shape = _shape(spec.name, spec.shape, tokens, past, features)
            if spec.name == IDS:
                sample[spec.name] = chance.integers(0, vocabulary, shape).astype(spec.dtype)
            elif spec.name == POSITIONS:
                sample[spec.name] = np.broadcast_to(np.arange(past, past + tokens, dtype=spec.dtype), shape).copy()
            elif spec.name == IMAGE_PLACES:  # a text without pictures
                sample[spec.name] = np.full(shape, -1, spec.dtype)
            elif spec.name == IMAGE_SHIFTS:
                sample[spec.name] = np.zeros((AXES, 1, 1), spec.dtype)
            elif spec.name == HAS_PAST:
                sample[spec.name] = np.full(shape, past > 0)
            elif np.dtype(spec.dtype).kind == "f":
                sample[spec.name] = chance.standard_normal(shape).astype(spec.dtype)
            else:  # masks; a cache of integers
                sample[spec.name] = np.ones(shape, spec.dtype)
        made.append(sample)
    return made


def _shape(
    name: str, declared: Sequence[int | str | None], tokens: int, past: int, features: Sequence[int]
) -> list[int]:
    """Return the shape of an input of one text, with sizes in place of those that are free."""
    free = [1, *features] if len(features) == len(declared) - 1 else [1, tokens, *[1] * len(declared)]
    if "encoder" in name:
        free = [1, _HEARD, *[1] * len(declared)]
    if name == MASK:
        free = [1, past + tokens]
    if len(declared) == _RANK:
        free = [1, 1, past, _HEAD]
        free[_PAST_AXIS] = _HEARD if "encoder" in name else past
    return [size if isinstance(size, int) and size > 0 else free[i] for i, size in enumerate(declared)]
