"""Two graphs over one cache: one computes prompts into it, the other each token behind them.

The form that is fastest for many tokens at once is not the fastest for one. The graph of prompts has no logits: the
last token of a prompt runs on the other graph, as each token of the answer does, and its logits choose the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.decoder import (
    IDS,
    MASK,
    POSITIONS,
    CachePart,
    Decoder,
    bind_arrays,
    bound_cache,
    cache_parts,
    quiet,
    raise_run_error,
    shares_cache,
)


class Prefill(Protocol):
    """The graph that computes prompts into a cache which another graph continues, on any engine."""

    pairs: bool
    """Whether its runs take an even number of tokens, and a token's numbers then hang on no others of its run."""
    engine_name: str
    """As people call its engine."""
    held_bytes: int
    """Memory that its engine takes beside the weights of the files, about."""

    def page_bytes(self, tokens: int) -> int:
        """Return the memory that its engine takes for a prompt of so many tokens, beside the cache."""
        ...

    def bound(self, memory: Sequence[NDArray[Any]]) -> Any:
        """Return what `run` takes for one text.

        Args:
            memory: Of each part of its cache, (1, heads, room, head).
        """
        ...

    def run(self, bound: Any, tokens: Sequence[int], past: int) -> None:
        """Compute the next tokens of a prompt into the cache; room for one more must be there.

        Args:
            bound: Of `bound`.
            tokens: One or more.
            past: Tokens that the cache holds.

        Raises:
            UnsupportedError: If the engine refuses them.
        """
        ...

    def close(self) -> None:
        """Free the engine's session."""
        ...


def require_same_cache(own: Sequence[CachePart], parts: Sequence[CachePart], *, shares: bool = True) -> None:
    """Raise unless the graph of prompts has the cache of the graph of tokens.

    Args:
        own: Parts of its cache.
        parts: Of that of tokens.
        shares: Whether it writes in place, where its engine can.

    Raises:
        UnsupportedError: If it has another.
    """
    if tuple(own) != tuple(parts) or not shares:
        raise UnsupportedError(
            "the graph of prompts and that of tokens share no cache",
            remedy="take graphs of one model with GroupQueryAttention and a cache of one type: edgeopt optimize",
        )


class OnnxPrefill:
    """The graph of prompts on ONNX Runtime, which writes into the cache in place."""

    engine_name, held_bytes = "ONNX Runtime", 0

    def __init__(self, session: Any, parts: Sequence[CachePart], free_head: int = 0, *, pairs: bool = False) -> None:
        """Take its session.

        Args:
            session: Open; closed with this.
            parts: Of the cache of the other graph, which shares it.
            free_head: Numbers of a head in the cache where the model leaves them free.
            pairs: Whether its runs take an even number of tokens, as `Decoder` has it.

        Raises:
            UnsupportedError: If both graphs have not the same cache, or one does not write into it in place.
        """
        own = cache_parts(session.inputs, session.outputs, free_head, needs_logits=False)
        require_same_cache(own, parts, shares=shares_cache(session, own))
        self._parts = own
        self._session, self.pairs = session, pairs
        names = {input_.name for input_ in session.engine.get_inputs()}
        self._takes_mask, self._takes_positions = MASK in names, POSITIONS in names
        self._options = quiet()

    def page_bytes(self, tokens: int) -> int:
        """Return 0: the cache is all."""
        del tokens
        return 0

    def bound(self, memory: Sequence[NDArray[Any]]) -> Any:
        """Return a binding to the memory of one text, with the values that borrow it."""
        import onnxruntime

        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in memory]
        return bound_cache(self._session.engine, self._parts, values), values

    def run(self, bound: Any, tokens: Sequence[int], past: int) -> None:
        """Compute the next tokens of a prompt into the cache; room for one more must be there.

        Raises:
            UnsupportedError: If the engine refuses them.
        """
        binding, _ = bound
        is_padded = self.pairs and len(tokens) % 2 == 1
        fed = [*tokens, tokens[-1]] if is_padded else tokens
        after = past + len(fed)
        feeds = {IDS: np.asarray(fed, np.int64)[None]}
        if self._takes_mask:
            feeds[MASK] = np.ones((1, after), np.int64)
        if self._takes_positions:
            feeds[POSITIONS] = np.arange(past, after, dtype=np.int64)[None]
        try:
            bind_arrays(binding, feeds)
            self._session.engine.run_with_iobinding(binding, self._options)
        except Exception as error:  # pybind raises a class per status code, with a binding always RuntimeError
            raise_run_error(error)

    def close(self) -> None:
        """Free the session."""
        self._session.close()


class SplitDecoder(Decoder):
    """One text on two graphs. `run` is of the graph of tokens; what it computed is no longer exact as a prompt."""

    def __init__(
        self,
        session: Any,
        parts: Sequence[CachePart],
        capacity: int,
        prefill: Prefill,
        *,
        pairs: bool = False,
        room: int = 0,
    ) -> None:
        """Reserve the cache; `prefill` computes prompts, the rest is as `Decoder` has it."""
        self._prefill = prefill
        super().__init__(session, parts, capacity, shares=True, pairs=pairs, room=room)

    def run_prompt(self, tokens: Sequence[int], *, is_end: bool) -> NDArray[np.float32]:
        """Run the next part of a prompt; its last token is a part of its own, with logits, the others have none.

        Raises:
            ValueError: If there are none, they leave no room for that one, or the end is more than one token.
            UnsupportedError: If the engine refuses them.
        """
        if is_end and len(tokens) == 1:
            return self.run(tokens)
        after = self._past + len(tokens)
        if is_end or not len(tokens) or after >= self.capacity:
            raise ValueError(f"{len(tokens)} tokens of a prompt behind {self._past} do not fit in {self.capacity}")
        self.make_room(after + 1)  # a pair takes one more
        self._prefill.run(self._prompts, tokens, self._past)
        self._past = after
        return np.zeros((0, 0), np.float32)

    def _reserve(self, room: int) -> None:
        super()._reserve(room)
        self._prompts = self._prefill.bound([self._values[part.past][1] for part in self._parts])

    def run(self, tokens: Sequence[int], last: int = 0) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token, as `Decoder.run` does, by the graph of tokens."""
        self._single_from = min(self._single_from, self._past)
        return super().run(tokens, last)
