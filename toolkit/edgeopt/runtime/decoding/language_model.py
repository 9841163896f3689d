"""A language model that is open: its engine, its tokenizer, and the caches of the texts that it wrote last."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from time import perf_counter_ns
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.decoder import SHARING_OP, Decoder, cache_parts
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.recipes.tokens import Tokens
from edgeopt.runtime.decoding.generation import Asked, Generation
from edgeopt.runtime.decoding.pieces import Pieces

_KEPT_CACHES = 2
"""Of answers that are over: the next prompt that begins alike goes on where they stand."""


class LanguageModel:
    """One decoder for any number of threads; each answer has a cache of its own, the weights are there once."""

    def __init__(
        self,
        session: OnnxRuntimeSession,
        tokenizer: Tokens,
        context: int,
        end: Sequence[int],
        begin: Sequence[int] = (),
        free_head: int = 0,
    ) -> None:
        """Bind a session to its tokenizer.

        Args:
            session: Of a decoder with a cache.
            tokenizer: Of the same model.
            context: Tokens that prompt and answer may have together.
            end: Tokens that end an answer.
            begin: Tokens before every prompt.
            free_head: Numbers of a head in the cache where the model leaves them free.

        Raises:
            UnsupportedError: If the model is no decoder with a cache, or the tokenizer is another's.
        """
        self.session, self.tokenizer, self.context = session, tokenizer, context
        self._end, self._begin = tuple(end), list(begin)
        self._parts = cache_parts(session.inputs, session.outputs, free_head)
        ops = [node.op for node in session.placement()]
        self._shares = 2 * ops.count(SHARING_OP) == len(self._parts)
        vocabulary = next(one.shape[-1] for one in session.outputs if one.name == "logits")
        if isinstance(vocabulary, int) and tokenizer.size > vocabulary:
            raise UnsupportedError(
                f"the tokenizer has {tokenizer.size} tokens, the model {vocabulary}",
                remedy="name the tokenizer.json that came with this model",
            )
        self._lock = Lock()
        self._idle = list[tuple[Decoder, list[int]]]()

    @property
    def token_bytes(self) -> int:
        """Memory that one token takes in the cache."""
        return sum(part.token_bytes for part in self._parts)

    @property
    def begins_with(self) -> int:
        """Tokens that stand before every prompt."""
        return len(self._begin)

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the caches and the model."""
        with self._lock:
            self._idle.clear()
        self.session.close()

    def generate(self, prompt: str | Sequence[int], asked: Asked | None = None) -> Generation:
        """Return the answer to a prompt, which is written as it is iterated over.

        Args:
            prompt: A text, or its tokens.
            asked: What the answer may be.

        Raises:
            ValueError: If the prompt is empty, or leaves no room for one token in the context.
        """
        begun_ns = perf_counter_ns()
        asked = asked or Asked()
        tokens = [*self._begin, *(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)]
        tokenize_ns = perf_counter_ns() - begun_ns
        if not tokens:
            raise ValueError("the prompt is empty")
        if len(tokens) >= self.context:
            raise ValueError(f"the prompt has {len(tokens)} tokens, the context {self.context}: nothing could follow")
        decoder, held = self._taken(tokens)
        pieces = Pieces(self.tokenizer, asked.stop)
        return Generation(decoder, held, tokens, pieces, asked, self._end, begun_ns, tokenize_ns, self._give_back)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token of a text that begins with the first of them."""
        return Decoder(self.session.engine, self._parts, len(tokens), shares=self._shares).run(tokens)

    def forget(self) -> None:
        """Free the caches of answers that are over: the next prompt is computed whole."""
        with self._lock:
            self._idle.clear()

    def _taken(self, tokens: Sequence[int]) -> tuple[Decoder, list[int]]:
        """Return the cache that holds most of the prompt's first tokens, and those; at least one is left to compute."""
        with self._lock:
            shared = [min(_common(held, tokens), len(tokens) - 1) for _, held in self._idle]
            if shared:
                best = max(range(len(shared)), key=shared.__getitem__)
                decoder, held = self._idle.pop(best)
                decoder.rewind(shared[best])
                return decoder, held[: shared[best]]
        return Decoder(self.session.engine, self._parts, self.context, shares=self._shares), []

    def _give_back(self, decoder: Decoder, held: list[int]) -> None:
        with self._lock:
            self._idle.append((decoder, held))
            del self._idle[:-_KEPT_CACHES]


def _common(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many first tokens are the same."""
    pairs = enumerate(zip(held, tokens, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(held), len(tokens)))
