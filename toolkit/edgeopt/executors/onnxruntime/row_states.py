"""States of several texts side by side, a row each; of a decoder without states there is nothing here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.state_parts import StatePart


class RowStates:
    """Two memories: a run reads the states of its rows in one, and what it writes to the other is copied back."""

    def __init__(self, parts: Sequence[StatePart], count: int) -> None:
        """Begin with zeros, as every text does.

        Args:
            parts: Of the decoder.
            count: Rows.
        """
        self.parts = tuple(parts)
        self._held, self._made = ([np.zeros((count, *part.shape), part.dtype) for part in self.parts] for _ in range(2))

    def bind(self, binding: Any, first: int, after: int) -> list[Any]:
        """Let runs of some rows read and write their states; return what must live as long as the binding."""
        import onnxruntime

        values = list[Any]()
        for part, held, made in zip(self.parts, self._held, self._made, strict=True):
            old, new = (onnxruntime.OrtValue.ortvalue_from_numpy(array[first:after]) for array in (held, made))
            binding.bind_ortvalue_input(part.past, old)
            binding.bind_ortvalue_output(part.present, new)
            values += [old, new]
        return values

    def advance(self, first: int, after: int) -> None:
        """Take the states that a run of some rows has written."""
        for held, made in zip(self._held, self._made, strict=True):
            held[first:after] = made[first:after]

    def clear(self, row: int) -> None:
        """Begin a row anew."""
        for held in self._held:
            held[row] = 0

    def swap(self, a: int, b: int) -> None:
        """Let two rows change places."""
        for held in self._held:
            held[[a, b]] = held[[b, a]]

    def copy(self, source: int, row: int) -> None:
        """Begin a row like another one."""
        for held in self._held:
            held[row] = held[source]

    def restore(self, row: int, stored: Sequence[NDArray[Any]]) -> None:
        """Begin a row with stored states, (1, ...) each."""
        for held, array in zip(self._held, stored, strict=True):
            held[row] = array[0]

    def move_to(self, other: RowStates, kept: Sequence[int]) -> None:
        """Copy rows into the first ones of another layout."""
        for old, new in zip(self._held, other._held, strict=True):
            new[: len(kept)] = old[list(kept)]
