"""How probable a language model finds the tokens of a prompt, each behind those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.prompt_plan import parts_of, require_tokens
from edgeopt.runtime.decoding.sampling import UNKNOWN_ODDS, TokenOdds, odds_of

_PART_TOKENS = 64
"""Tokens of a run: their logits take 39 MB where a model knows 152,000 tokens, those of a long prompt gigabytes."""


class UntoldOddsError(UnsupportedError):
    """The model does not tell how probable the tokens of a prompt are."""


def prompt_odds(model: LanguageModel, prompt: Sequence[int], count: int) -> Iterator[TokenOdds]:
    """Yield the probability of each token of a prompt, computed in a cache of its own.

    Of two graphs that of tokens tells them, as the one of prompts has no logits but the last.

    Args:
        model: It may write answers meanwhile.
        prompt: Tokens, without those that the model puts before every prompt.
        count: Likeliest tokens that are told in the place of each.

    Raises:
        ValueError: If it has a token that the model has not, or is longer than the context.
        UntoldOddsError: If the model has the logits of its last token alone.
    """
    tokens = [*model.begin_tokens, *prompt]
    if len(tokens) > model.context:
        raise ValueError(f"the prompt has {len(tokens)} tokens, the context {model.context}")
    require_tokens(prompt, model.vocabulary)
    decoder, place = model.decoder(len(tokens)), 0
    behind: NDArray[np.float32] | None = None
    for part in parts_of(tokens, _PART_TOKENS):
        logits = decoder.run(part)
        if len(logits) != len(part):
            raise UntoldOddsError(
                "the model has the logits of its last token alone, which tell nothing of the prompt's",
                remedy="export it with the logits of all tokens",
            )
        for token, after in zip(part, logits, strict=True):
            if place >= model.begins_with:
                yield UNKNOWN_ODDS if behind is None else odds_of(behind, token, count)
            behind, place = after, place + 1
