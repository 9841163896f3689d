"""States of a decoder beside keys and values: memories of convolutions and recurrences, as large for any text.

A state is changed by each run as a whole. It cannot be cut back to fewer tokens: only the state itself can go on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec

STATE = re.compile(r"past_key_values\.(\d+)\.(conv_state|recurrent_state)")
"""Names of onnxruntime-genai's builder."""
_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}


@dataclass(frozen=True, slots=True)
class StatePart:
    """One state of one layer."""

    past: str
    """Name of the input."""
    present: str
    """Name of the output that continues it."""
    shape: tuple[int, ...]
    """Shape for one text, without the axis of texts."""
    dtype: str

    @property
    def text_bytes(self) -> int:
        """Memory that one text takes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def stored_shape(self, _tokens: int) -> tuple[int, ...]:
        """Return the shape for one text of any number of tokens."""
        return (1, *self.shape)


def state_parts(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[StatePart, ...]:
    """Return the states of a decoder in the order of its layers; empty: it has none.

    Args:
        inputs: Of the model.
        outputs: Of the model.

    Raises:
        UnsupportedError: If one is of no fixed size, or no output continues it.
    """
    known, result = {output.name for output in outputs}, list[StatePart]()
    for spec in inputs:
        match = STATE.fullmatch(spec.name)
        if match is None:
            continue
        present = f"present.{match[1]}.{match[2]}"
        shape = tuple(side for side in spec.shape[1:] if isinstance(side, int))
        if present not in known or len(shape) != len(spec.shape) - 1:
            raise UnsupportedError(
                f"input {spec} is no state of fixed size that an output {present} continues",
                remedy="export the decoder with its states: past_key_values.N.conv_state (batch, ...)",
            )
        result.append(StatePart(spec.name, present, shape, spec.dtype))
    return tuple(result)


def states_of(engine: Any) -> tuple[StatePart, ...]:
    """Return the states of an `InferenceSession`."""
    inputs, outputs = (
        [
            TensorSpec(value.name, _DTYPES.get(value.type, "float32"), tuple(value.shape))
            for value in values
            if ".conv_state" in value.name or ".recurrent_state" in value.name
        ]
        for values in (engine.get_inputs(), engine.get_outputs())
    )
    return state_parts(inputs, outputs)
