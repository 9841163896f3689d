"""States of recurrent models: outputs that are an input of the next sample."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from edgeopt.graph.tensors import Tensors, TensorSpec

_DIRECTION = re.compile(
    "i|in|inputs?|o|out|outputs?|n|new|next|old|prev|previous|past|present|init|initial|0|final|last"
)
"""Words that tell the way and not the thing: `h0` and `hn`, `in_state` and `stateN`, `r1i` and `r1o`."""
_COUNTED = frozenset({"cache", "cached", "state", "states", "len", "lens", "processed", "offset"})
"""Words in the names of states that may be whole numbers, such as `cached_len_0` and `new_cached_len_0`."""


def find_states(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, str]:
    """Return the input that each state output feeds, by the input's name; none where the model is not recurrent.

    Both have one element type, shapes that can be equal, and one name but for words like `in`, `out`, `new`, `n`; or
    equal shapes and one name but for numbers, if no other does: `h0` and `h1`. A model whose inputs or outputs would
    all be states has none: it makes a picture of a picture.
    """
    states: dict[str, str] = {}
    for spec in inputs:
        fitting = [other.name for other in outputs if _is_same(spec, other)]
        if len(fitting) == 1 and fitting[0] not in states.values():
            states[spec.name] = fitting[0]
    for spec in (spec for spec in inputs if spec.name not in states):
        fitting = [
            other.name for other in outputs if _is_numbered_alike(spec, other) and other.name not in states.values()
        ]
        rivals = [other for other in inputs if _words(other.name) == _words(spec.name)]
        if len(fitting) == len(rivals) == 1:
            states[spec.name] = fitting[0]
    return states if len(states) < min(len(inputs), len(outputs)) else {}


def possible_states(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], known: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the outputs that each other input may take from the sample before, by its name: equal in shape and type.

    Only of inputs that are rows or less than pictures, and only while one input and one output stay that are none.

    Args:
        inputs: Of the model.
        outputs: Of the model.
        known: States that are certain.
    """
    free = [spec for spec in inputs if spec.name not in known]
    said = [output for output in outputs if output.name not in known.values()]
    if min(len(free), len(said)) < 2:
        return {}
    result = {
        spec.name: tuple(other.name for other in said if (spec.dtype, spec.shape) == (other.dtype, other.shape))
        for spec in free
        if "float" in spec.dtype and 1 < len(spec.shape) < 4
    }
    return {name: fitting for name, fitting in result.items() if fitting}


def _is_same(spec: TensorSpec, other: TensorSpec) -> bool:
    sizes = zip(spec.shape, other.shape, strict=False)
    fits = all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in sizes)
    fits = fits and len(spec.shape) == len(other.shape)
    return _carries(spec, other) and fits and bool(_thing(spec.name)) and _thing(spec.name) == _thing(other.name)


def _is_numbered_alike(spec: TensorSpec, other: TensorSpec) -> bool:
    same = spec.shape == other.shape and bool(spec.shape) and spec.name != other.name
    return _carries(spec, other) and same and bool(_words(spec.name)) and _words(spec.name) == _words(other.name)


def _carries(spec: TensorSpec, other: TensorSpec) -> bool:
    kept = "float" in spec.dtype or ("int" in spec.dtype and not _COUNTED.isdisjoint(_thing(spec.name)))
    return kept and spec.dtype == other.dtype


def _words(name: str) -> tuple[str, ...]:
    """Return what a name is about, without numbers."""
    return tuple(word for word in _thing(name) if not word.isdigit())


def _thing(name: str) -> tuple[str, ...]:
    """Return the words of a name without those that tell the way."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    words = re.findall(r"[a-z]+|\d+", spaced.lower())
    kept = [word for word in words if not _DIRECTION.fullmatch(word)]
    if len(kept) == 1 and len(kept[0]) == 2 and kept[0].endswith("n"):  # hn, cn: the state after n steps
        kept = [kept[0][0]]
    return tuple(kept)


class Feedback:
    """The states that a stream of samples carries from each to the next."""

    def __init__(self, states: Mapping[str, str]) -> None:
        """Begin a stream.

        Args:
            states: The output that each state input takes, by the input's name.
        """
        self._states = states
        self._carried: Tensors = {}

    def into(self, inputs: Tensors, given: Collection[str] = ()) -> Tensors:
        """Return a sample's inputs with the states of the one before it; the first keeps its own.

        Args:
            inputs: By name.
            given: States that stay as they are in the inputs.
        """
        carried = {name: value for name, value in self._carried.items() if name not in given}
        return {**inputs, **carried} if carried else inputs

    def keep(self, outputs: Tensors) -> None:
        """Keep the states for the next sample."""
        self._carried = {name: outputs[output].copy() for name, output in self._states.items()}

    def reset(self) -> None:
        """Begin another stream."""
        self._carried = {}
