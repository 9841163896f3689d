"""How well a language model predicts windows as long as its prompts and answers: read as those are, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.generation.perplexity import TextScore, losses_of
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.processes.time_limit import require_pace, require_time

_PART_TOKENS = 256
"""Tokens whose logits are held at a time: a row is a whole vocabulary, and 4,096 of them may be gigabytes."""
_ANSWERED_TOKENS = 128
"""Tokens at the end of a window that come one by one, where another graph computes prompts."""


def score_long_text(model: LanguageModel, windows: Sequence[Sequence[int]]) -> TextScore:
    """Return what `score_text` does, of windows that may be as long as the context.

    Raises:
        OutOfTime: At the end of a time limit, or as soon as a window does not end before it at the pace of its parts.
    """
    score = TextScore((), ())
    for window in windows:
        nats, likeliest = list[NDArray[np.float64]](), list[NDArray[np.int64]]()
        began_s = monotonic()
        for place, rows in _parts_of(model, window):
            require_time()
            require_pace(began_s, place + len(rows), len(window))
            lost, best = losses_of(rows, window[place + 1 : place + 1 + len(rows)])
            nats.append(lost)
            likeliest.append(best)
        whole = np.concatenate(nats)
        score = score.joined(TextScore((float(whole.mean()),), (np.concatenate(likeliest),), (whole,)))
    return score


def _parts_of(model: LanguageModel, window: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the place of a token, and the logits behind it and some that follow; each part reads the cache before it.

    Of two graphs that of prompts has none but those behind its last token.
    """
    decoder = model.decoder(len(window))
    if not model.plan.is_split:
        for place in range(0, len(window), _PART_TOKENS):
            yield place, decoder.run(window[place : place + _PART_TOKENS])
        return
    count = max(len(window) - _ANSWERED_TOKENS, 1)
    yield count - 1, model.run_prompt(decoder, window[:count])
    for place in range(count, len(window)):
        yield place, decoder.run([window[place]])
