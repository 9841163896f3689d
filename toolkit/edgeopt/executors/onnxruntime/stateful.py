"""A decoder with states beside its keys and values, or with states alone.

Each run reads the states of one memory and writes those of another, which the next run reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.decoder import LOGITS, CachePart, Decoder, bound_token
from edgeopt.executors.onnxruntime.prefill import Prefill, SplitDecoder
from edgeopt.executors.onnxruntime.state_parts import StatePart, states_of


def decoder_of(
    engine: Any,
    parts: Sequence[CachePart],
    capacity: int,
    prefill: Prefill | None = None,
    *,
    shares: bool,
    pairs: bool = False,
    room: int = 0,
) -> Decoder:
    """Return a cache for one text: with states where the model has some; other arguments as `Decoder` has them.

    Args:
        engine: An `InferenceSession` on the host.
        parts: Of its cache.
        capacity: Tokens that a text may have.
        prefill: The graph that computes prompts, where it is another.
        shares: As `Decoder` has it.
        pairs: As `Decoder` has it.
        room: As `Decoder` has it; one with states reserves all.

    Raises:
        UnsupportedError: If it has states, and joins past and present keys anew.
    """
    if prefill is not None:
        return SplitDecoder(engine, parts, capacity, prefill, pairs=pairs, room=room)
    states = states_of(engine)
    if not states:
        return Decoder(engine, parts, capacity, shares=shares, pairs=pairs, room=room)
    if not shares:
        raise UnsupportedError(
            "a decoder with states joins past and present keys anew in each run",
            remedy="export it with edgeopt export hf:FOLDER",
        )
    return StatefulDecoder(engine, parts, capacity, states)


class StatefulDecoder(Decoder):
    """One text on a decoder with states. What it holds goes on, or is forgotten as a whole."""

    def __init__(self, engine: Any, parts: Sequence[CachePart], capacity: int, states: Sequence[StatePart]) -> None:
        """Reserve cache and states.

        Args:
            engine: An `InferenceSession` on the host.
            parts: Of its cache.
            capacity: Tokens that a text may have.
            states: Of the model.
        """
        import onnxruntime

        self._states, self._turn = tuple(states), 0
        self._memory = [[np.zeros((1, *part.shape), part.dtype) for part in states] for _ in range(2)]
        self._values_of_states = [
            [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays] for arrays in self._memory
        ]  # they borrow the arrays' memory
        # no copy of a last token makes runs even: a state would remember it
        super().__init__(engine, parts, capacity, shares=True, pairs=False)
        first = self._binding, self._single
        self._turn = 1
        second = self._bound()
        second.bind_output(LOGITS, "cpu")
        self._ways = (first, (second, bound_token(engine, self._bound()) if capacity > 1 else None))
        self._turn = 0

    @property
    def cache_bytes(self) -> int:
        """Memory that cache and states take."""
        return super().cache_bytes + sum(part.text_bytes for part in self._states)

    def reusable(self, past: int) -> int:
        """Return how many of the first `past` tokens can be kept: all that it holds, or none."""
        return past if past == self._past else 0

    def rewind(self, past: int) -> None:
        """Forget nothing, or all.

        Raises:
            ValueError: If some of the tokens were to stay.
        """
        if past not in (0, self._past):
            raise ValueError(f"states of {self._past} tokens cannot go back to {past}")
        if not past:
            for array in self._memory[self._turn]:
                array[...] = 0
        self._cut(past)

    def stored(self) -> list[NDArray[Any]]:
        """Return copies of what cache and states hold."""
        return [*super().stored(), *(array.copy() for array in self._memory[self._turn])]

    def restore(self, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Put what `stored` gave in place of what is held.

        Args:
            stored: Of the same model.
            past: All tokens that were held then.
        """
        count = len(self._parts)
        super().restore(stored[:count], past)
        for array, kept in zip(self._memory[self._turn], stored[count:], strict=True):
            array[...] = kept

    def _run(self, tokens: Sequence[int], last: int, *, is_next: bool) -> NDArray[np.float32]:
        logits = super()._run(tokens, last, is_next=is_next)
        self._turn ^= 1
        self._binding, self._single = self._ways[self._turn]
        return logits

    def _bound(self) -> Any:
        binding = super()._bound()
        before, after = self._values_of_states[self._turn], self._values_of_states[self._turn ^ 1]
        for part, old, new in zip(self._states, before, after, strict=True):
            binding.bind_ortvalue_input(part.past, old)
            binding.bind_ortvalue_output(part.present, new)
        return binding
