"""Guesses at the next tokens by a smaller model with the same tokens and a cache of its own.

Source: Leviathan et al., 2023, arXiv:2211.17192. It proposes its likeliest tokens also where the answer is drawn: a
guess is kept where it equals the token that the seed draws, so that the answer is the one without a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeopt.executors.openvino.decoder import TextCache
from edgeopt.recipes.texts.tokens import Tokens


class DraftGuesser:
    """A `Guesser` with a decoder, which is taken at the first guess: the first token waits for no draft."""

    def __init__(
        self,
        take: Callable[[Sequence[int]], TextCache],
        give_back: Callable[[TextCache, list[int]], None],
        vocabulary: int,
    ) -> None:
        """Begin a text.

        Args:
            take: Gives a decoder whose cache holds the first of these tokens, or none.
            give_back: Takes it when the text is over, with the tokens that its cache holds.
            vocabulary: Tokens that the verifying model knows: no other is guessed.
        """
        self._take, self._give_back, self._vocabulary = take, give_back, vocabulary
        self._decoder: TextCache | None = None
        self.computed_tokens = 0
        self._start = 0
        """Start of the text that the draft sees: one longer than its context is seen from here on."""
        self._held: list[int] = []
        self._sure = 0
        """First tokens of `_held` that are of the text; guesses stand behind them."""

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the `count` tokens that the draft would write next.

        A text that fills the draft's context is seen from its last half on: the guesses get worse, not the answer.

        Args:
            tokens: The text so far, which begins with that of the last call.
            count: The most guesses.
        """
        decoder = self._decoder = self._decoder or self._take(tokens)
        if not self._held:
            self._held, self._sure = list(tokens[: decoder.past]), decoder.past
        count = min(count, decoder.capacity // 2)
        if count < 1:
            return []
        if len(tokens) - self._start + count - 1 > decoder.capacity:
            self._start, self._sure = len(tokens) - decoder.capacity // 2, 0
            self._held = []
        seen = list(tokens[self._start :])
        pairs = zip(self._held[self._sure :], seen[self._sure :], strict=False)
        same = self._sure + next((i for i, (a, b) in enumerate(pairs) if a != b), len(self._held) - self._sure)
        same = min(same, len(seen) - 1)
        decoder.rewind(same)
        result = [self._run(decoder, seen[same:])]
        while len(result) < count:
            result.append(self._run(decoder, result[-1:]))
        self._held, self._sure = [*seen, *result[:-1]], len(seen)
        return result

    def restart(self) -> None:
        """Forget the text: the next one begins otherwise."""
        self._held, self._sure, self._start = [], 0, 0
        if self._decoder is not None:
            self._decoder.rewind(0)

    def close(self) -> None:
        """Give the decoder back, its cache as far as it is of the text."""
        if self._decoder is not None:
            decoder, self._decoder = self._decoder, None
            decoder.rewind(min(self._sure, decoder.past))
            self._give_back(decoder, self._held[: decoder.past])

    def _run(self, decoder: TextCache, tokens: Sequence[int]) -> int:
        # one row of many: logits of a whole text are hundreds of megabytes
        logits = decoder.run(tokens, last=int(len(tokens) > 1))[-1, : self._vocabulary]
        self.computed_tokens += len(tokens)
        return int(logits.argmax())


def unlike_tokens(mine: Tokens, other: Tokens) -> str:
    """Return in what two tokenizers differ; empty: the same numbers stand for the same texts."""
    if mine.size != other.size:
        return f"{other.size} tokens, the model has {mine.size}"
    for token in range(mine.size):
        ours, theirs = mine.token_bytes(token), other.token_bytes(token)
        if ours != theirs:
            return f"its token {token} is {theirs!r}, not {ours!r}"
    return ""
