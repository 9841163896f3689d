"""The logits of an encoder with a decoder on a made-up sound or text: as they were where its bundle was made, and here.

A sound is made of a formula, so that the bundle holds none; of an answer a few tokens are given, as in `selftest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note
from edgeopt.graph.sound import Sound
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.runtime.bundles.parts import Artefact, NoiseLimit, SelfTest
from edgeopt.runtime.decoding.selftest import made_up_tokens, make_test, require_alike, thinned
from edgeopt.runtime.selftest import StoredTest

_READ = 8
"""Tokens of a text; the first of those that are stored."""
_WRITTEN = 5
"""Tokens of an answer: the first is chosen behind those that it begins with, each other one behind the one before
it."""
_SECONDS, _FROM_HZ, _BY_HZ, _LOUD = 2, 200.0, 300.0, 0.3
"""A tone that rises."""


class HearsAndWrites(Protocol):
    """An `EncoderDecoder`, which tests itself when it is opened."""

    files: EncoderDecoderFiles
    tokenizer: Tokens

    def logits(self, source: Sound | Sequence[int], answer: Sequence[int]) -> NDArray[np.float32]:
        """Return what it would choose in place of each token of an answer."""
        ...


def record_pair(model: HearsAndWrites, precision: str) -> tuple[SelfTest, bytes, NoiseLimit]:
    """Return the test of a bundle, its file, and how far logits may be off elsewhere.

    Args:
        model: As it was judged.
        precision: Its scheme: of the encoder, then of the decoder, for example `w8a8-w4`.
    """
    tokens = made_up_tokens(_READ + _WRITTEN, model.tokenizer.size)
    rounded = next((part for part in precision.split("-") if part.startswith("w")), precision)
    return make_test(tokens, _logits(model, tokens), rounded)


def check_pair(stored: StoredTest, artefact: Artefact, model: HearsAndWrites) -> tuple[Note, ...]:
    """Run a model on the stored tokens and compare; return what the user should know.

    Raises:
        UnavailableError: If its numbers are wrong on this device.
    """
    return require_alike(stored, artefact, lambda tokens: _logits(model, tokens))


def _logits(model: HearsAndWrites, tokens: list[int]) -> NDArray[np.float32]:
    """Return (tokens of the answer, numbers) logits; what is never chosen is 0."""
    array = model.logits(_sound(model) or tokens[:_READ], tokens[_READ:])
    return thinned(np.where(np.isneginf(array), np.float32(0), array))


def _sound(model: HearsAndWrites) -> Sound | None:
    audio = model.files.audio
    if audio is None:
        return None
    time_s = np.arange(min(_SECONDS * audio.rate_hz, audio.samples)) / audio.rate_hz
    tone = _LOUD * np.sin(2 * np.pi * (_FROM_HZ + _BY_HZ * time_s) * time_s)
    return Sound(tone.astype(np.float32), audio.rate_hz)
