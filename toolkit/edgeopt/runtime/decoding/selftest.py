"""The logits of a language model on a few tokens: as they were where its bundle was made, and whether they are so here.

A processor or a version of an engine may compute something else than what was judged: INT8 sums that saturate, a broken
kernel. The tokens are made up from the vocabulary, so that a bundle holds no text. A bundle has one form: the original
beside it would be four to eight times as large, so numbers that are wrong are an error, and no other model takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, NoteKind, UnavailableError
from edgeopt.executors import arithmetic
from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS
from edgeopt.runtime.bundle import make_selftest
from edgeopt.runtime.bundles.parts import Artefact, NoiseLimit, SelfTest
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.selftest import (
    FILE,
    OPTIMIZE_HERE,
    ROUNDING,
    ROUNDING_INT8,
    WRONG,
    Recorded,
    StoredTest,
    noise,
    pack,
)

_PROMPT, _NEXT = 8, 4
"""Tokens of a prompt, which run at once, and those behind it, one a run: both ways are tried, and the cache; where two
graphs share it, both of them."""
_BEFORE = 4
"""Tokens before the picture of a model that sees."""
_MOST_LOGITS = 1024
"""Most logits of a token, from all over the vocabulary."""
_LOST_BY_ROUNDING = 0.2
"""How far forms lie from their floats that lose next to nothing: 0.02 in 8 bits, 0.07 to 0.16 in 4 (`tiny_lm`)."""
_STRIDE = 2_654_435_761
"""A prime: tokens so far apart lie all over the vocabulary."""


def record_logits(model: LanguageModel, precision: str) -> tuple[SelfTest, bytes, NoiseLimit]:
    """Return the test of a bundle, its file, and how far logits may be off elsewhere.

    Args:
        model: As it was judged; one that sees with the encoder of its bundle, which is tested with it.
        precision: Its scheme, for example `w4`.
    """
    tokens = made_up_tokens(min(_PROMPT + _NEXT, model.context - 1), model.tokenizer.size)
    if (images := model.images) is not None:
        rows = images.feeder.sample().rows
        if len(tokens) + rows < model.context:
            plain = [token for token in tokens if token != images.marks.token]
            tokens = [*plain[:_BEFORE], *[images.marks.token] * rows, *plain[_BEFORE:]]
    return make_test(tokens, _logits(model, tokens), precision)


def check_logits(stored: StoredTest, artefact: Artefact, model: LanguageModel) -> tuple[Note, ...]:
    """Run a model on the stored tokens and compare; return what the user should know.

    Raises:
        UnavailableError: If its numbers are wrong on this device.
    """
    return require_alike(stored, artefact, lambda tokens: _logits(model, tokens))


def made_up_tokens(count: int, vocabulary: int) -> list[int]:
    """Return tokens from all over a vocabulary, always the same."""
    return [(number + 1) * _STRIDE % vocabulary for number in range(count)]


def make_test(tokens: list[int], logits: NDArray[np.float32], precision: str) -> tuple[SelfTest, bytes, NoiseLimit]:
    """Return the test of a bundle, its file, and how far logits may be off elsewhere.

    Args:
        tokens: That were run.
        logits: (runs, numbers) behind them.
        precision: Its scheme, for example `w4`.
    """
    data = pack([{IDS: np.array(tokens, np.int64)}], [Recorded({LOGITS: logits}, [], {})])
    is_rounded = precision.startswith("w")
    rounding = ROUNDING_INT8 if is_rounded else ROUNDING[arithmetic(precision)]
    wrong = max(WRONG * rounding, _LOST_BY_ROUNDING) if is_rounded else WRONG * rounding
    return make_selftest(FILE, data, 1), data, NoiseLimit(rounding, wrong)


def require_alike(
    stored: StoredTest, artefact: Artefact, run: Callable[[list[int]], NDArray[np.float32]]
) -> tuple[Note, ...]:
    """Compare the logits behind the stored tokens; return what the user should know.

    Args:
        stored: Of the bundle.
        artefact: Whose limits hold.
        run: Returns the logits behind tokens.

    Raises:
        UnavailableError: If they are wrong on this device.
    """
    limit, wanted = artefact.noise_limits.get(LOGITS), stored.arrays.get("expected_0_0")
    tokens = stored.samples[0].get(IDS) if isinstance(stored.samples[0], dict) else None
    if limit is None or wanted is None or tokens is None:
        return ()
    array = run([int(value) for value in np.asarray(tokens).reshape(-1)])
    off = noise(array, wanted) if np.isfinite(array).all() else np.inf
    share = f"{100 * off:.2g} % off what was measured" if np.isfinite(off) else "NaN, infinite or of another shape"
    text = f"the logits of {artefact.file} are {share} ({100 * limit.rounding:.2g} % is rounding)"
    if not off <= limit.wrong:
        raise UnavailableError(f"its numbers are wrong on this device: {text}", remedy=OPTIMIZE_HERE)
    return (Note(NoteKind.WARNING, text, f"answers may differ: {OPTIMIZE_HERE}"),) if off > limit.rounding else ()


def thinned(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (runs, numbers) logits from all over the vocabulary, 1024 of each run at most."""
    return np.asarray(logits[:, :: -(-logits.shape[-1] // _MOST_LOGITS)], np.float32)


def _logits(model: LanguageModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return (runs, numbers) logits behind a prompt and behind each token after it; marks of a picture are seen."""
    images = model.images
    if images is not None and images.marks.token in tokens:
        _, picture = images.sample()
        left = iter(picture.tokens())
        tokens = [next(left) if token == images.marks.token else token for token in tokens]
    decoder = model.decoder(len(tokens))
    first = max(len(tokens) - _NEXT, 1)
    rows = [model.run_prompt(decoder, tokens[:first])[-1], *(decoder.run([token])[-1] for token in tokens[first:])]
    return thinned(np.stack(rows))
