"""The answer that a search with several beams finds: it is whole before its first piece comes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.recipes.texts.beams import BeamOptions
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Generation, Piece, Writing
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.runtime.decoding.searching.beams import BeamSearch, ForkingDecoder
from edgeopt.runtime.decoding.speech.rules import TokenRules, log_softmax


class BeamGeneration(Generation):
    """The likeliest answer of a search."""

    def __init__(
        self,
        decoder: ForkingDecoder,
        writing: Writing,
        wishes: AnswerOptions,
        beams: BeamOptions,
        rules: TokenRules,
        end: Sequence[int],
        room: int,
    ) -> None:
        """Search when the first piece is wanted.

        Args:
            decoder: Holds nothing.
            writing: The text, whose prompt are the tokens that an answer begins with.
            wishes: What the answer may be.
            beams: How many, and when the search ends.
            rules: Of its tokens.
            end: Tokens that end it.
            room: Tokens that fit behind its first ones.

        Raises:
            UnsupportedError: If tokens are to be drawn or weighed, which a search does not do.
        """
        changed = [name for name in Sampling.__slots__ if getattr(wishes.sampling, name) != getattr(Sampling(), name)]
        if changed or wishes.logprobs is not None:
            name = changed[0] if changed else "logprobs"
            raise UnsupportedError(
                f"a search with {beams.count} beams finds the likeliest answer, and takes no {name}",
                remedy="ask for one beam (--beams 1, AnswerOptions.beams), or leave it out",
            )
        self._root, self._writing, self._wishes = decoder, writing, wishes
        self._beams, self._rules, self._end = beams, rules, tuple(end) if wishes.ends else ()
        self._most = min(room, wishes.most_tokens)
        self._is_cancelled = False
        self._pieces = self._search()

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def account(self) -> Account:
        """The cost so far."""
        return replace(self._writing.account, comes_whole=True)

    def cancel(self) -> None:
        """End it before its next run; from any thread."""
        self._is_cancelled = True

    def close(self) -> None:
        """End it where it stands."""
        self._pieces.close()
        self._writing.break_off()

    def _search(self) -> Generator[Piece]:
        writing = self._writing
        begun_ns = writing.now_ns
        logits = self._root.run(writing.tokens)[-1:]
        writing.count(computed_tokens=writing.prompt_tokens, prefill_ns=writing.now_ns - begun_ns)
        search = BeamSearch(self._beams, self._end, self._most, self._scores, self._root)
        search.step(logits)
        while not search.is_over:
            if self._is_cancelled:
                return
            writing.count(computed_tokens=self._beams.count, runs=1)
            search.step(search.run())
        for token in search.best.tokens:
            if writing.is_over or self._is_cancelled:
                return
            yield writing.take(token)

    def _scores(self, logits: NDArray[np.float32], answer: Sequence[int]) -> NDArray[np.float32]:
        return self._rules.allowed(log_softmax(logits), answer)
