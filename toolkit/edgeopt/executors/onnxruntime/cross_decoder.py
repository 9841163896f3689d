"""A decoder that looks at what an encoder gave: keys and values of that are computed once, with the first tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS, quiet, raise_run_error
from edgeopt.graph.tensors import TensorSpec

HIDDEN, SEEN = "encoder_hidden_states", "encoder_attention_mask"
LOOKS = "cross_attentions"
"""Output of a decoder that tells where some of its heads look: (1, heads, tokens, rows of what the encoder gave)."""
HAS_PAST = "use_cache_branch"
"""Input of a graph that is both decoders."""
_PART = re.compile(r"past_key_values\.(\d+)\.(decoder|encoder)\.(key|value)")


class CrossCache:
    """Names of a decoder's cache, and what an empty one looks like."""

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        """Read the inputs of the decoder that takes a past.

        Raises:
            UnsupportedError: If it has none.
        """
        self.own, self.cross = dict[str, str](), dict[str, str]()
        """Inputs to the outputs that continue them: of the answer itself, and of what the encoder gave."""
        self.empty = dict[str, NDArray[Any]]()
        for spec in inputs:
            match = _PART.fullmatch(spec.name)
            if match is None:
                continue
            heads, head = spec.shape[1], spec.shape[3]
            if not isinstance(heads, int) or not isinstance(head, int):
                raise UnsupportedError(f"input {spec} does not tell its heads", remedy="export the decoder again")
            found = self.own if match[2] == "decoder" else self.cross
            found[spec.name] = spec.name.replace("past_key_values", "present", 1)
            self.empty[spec.name] = np.zeros((1, heads, 0, head), spec.dtype)
        if not self.own or not self.cross:
            raise UnsupportedError(
                "the decoder has no cache of its own answer and of what the encoder gave",
                remedy="export it with a past: optimum-cli export onnx --task automatic-speech-recognition-with-past, "
                "or text2text-generation-with-past",
            )

    @property
    def token_bytes(self) -> int:
        """Memory that a token of the answer takes."""
        return sum(self._bytes(name) for name in self.own)

    @property
    def heard_bytes(self) -> int:
        """Memory that one row of what the encoder gave takes."""
        return sum(self._bytes(name) for name in self.cross)

    def _bytes(self, name: str) -> int:
        array = self.empty[name]
        return int(array.shape[1] * array.shape[3] * array.itemsize)


class CrossDecoder:
    """One answer. Its first run takes the tokens it begins with, each run after it one token."""

    def __init__(
        self,
        first: Any,
        following: Any,
        cache: CrossCache,
        heard: Heard,
        capacity: int,
        suppress: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> None:
        """Take what the encoder gave.

        Args:
            first: An `InferenceSession` of the decoder without a past; not used where the encoder made the cross cache.
            following: Of the one with a past; the same where one graph does both.
            cache: Of `following`.
            heard: What the encoder gave.
            capacity: Tokens that the answer may have.
            suppress: Tokens that are never chosen, and those that are not chosen first.
        """
        import onnxruntime

        self.capacity, self._cache, self._past = capacity, cache, 0
        self._never, self._not_first = (np.asarray(one, np.int64) for one in suppress)
        self._options, self._wrap = quiet(), onnxruntime.OrtValue.ortvalue_from_numpy
        self._first, self._following = first, following
        if any(output.name == LOOKS for output in following.get_outputs()):
            self._options.only_execute_path_to_fetches = True  # what tells where heads look is not computed unasked
        self._beside = {SEEN: self._wrap(np.ones((1, heard.rows), np.int64))}
        self._beside |= {} if heard.hidden is None else {HIDDEN: heard.hidden}
        self._cross = {name: heard.cross[output] for name, output in cache.cross.items() if output in heard.cross}
        self._own = dict[str, Any]()

    @property
    def past(self) -> int:
        """Tokens that the cache holds."""
        return self._past

    def run(self, tokens: Sequence[int], last: int = 0) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token; what is never chosen is minus infinity.

        Raises:
            ValueError: If there are none, more than the cache takes, or several behind the first run.
            UnsupportedError: If the engine refuses them.
        """
        count = len(tokens)
        if not count or self._past + count > self.capacity or (self._past and count > 1):
            raise ValueError(f"{count} tokens behind {self._past} do not fit in {self.capacity}")
        is_first = not self._past
        try:
            logits = self._run_first(tokens) if is_first else self._run_next(tokens)
        except Exception as error:  # pybind raises a class per status code
            raise_run_error(error)
        self._past += count
        if len(self._never):
            logits[:, self._never] = -np.inf
        if is_first and len(self._not_first):
            logits[-1, self._not_first] = -np.inf
        return logits

    def looks(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (heads, tokens, rows): how much some heads look at each row of the encoder behind each token.

        Nothing is kept of it: the answer stays where it is.

        Raises:
            ValueError: If there are no tokens, or more than the cache takes.
            UnsupportedError: If the engine refuses them.
        """
        if not tokens or len(tokens) > self.capacity:
            raise ValueError(f"{len(tokens)} tokens do not fit in {self.capacity}")
        empty = {name: self._wrap(self._cache.empty[name]) for name in self._cache.own}
        try:
            ran = self._ran(self._following, [LOOKS], tokens, empty | self._cross, has_past=True)
        except Exception as error:  # pybind raises a class per status code
            raise_run_error(error)
        return np.array(ran[0].numpy()[0], np.float32)

    def run_prompt(self, tokens: Sequence[int], *, is_end: bool) -> NDArray[np.float32]:
        """Run the next part of what the decoder is given, as `Decoder.run_prompt` does."""
        del is_end
        return self.run(tokens, last=1)

    def reusable(self, past: int) -> int:
        """Return how many of the first `past` tokens that are held can be kept."""
        return past

    def fork(self) -> CrossDecoder:
        """Return another answer that goes on behind the same tokens; nothing is copied until one of them runs."""
        return copy(self)

    def rewind(self, past: int) -> None:
        """Stay where the answer is: nothing is guessed here, so nothing is forgotten."""
        if past != self._past:
            raise ValueError(f"the cache holds {self._past} tokens, and forgets none")

    def _run_first(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        empty = {name: self._wrap(array) for name, array in self._cache.empty.items()}
        if self._cross:
            self._own = {name: empty[name] for name in self._cache.own}
            return self._run_next(tokens)
        names = [LOGITS, *self._cache.own.values(), *self._cache.cross.values()]
        logits, *present = self._ran(self._first, names, tokens, empty, has_past=False)
        self._own = dict(zip(self._cache.own, present, strict=False))
        self._cross = dict(zip(self._cache.cross, present[len(self._own) :], strict=True))
        return _copied(logits)

    def _run_next(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        names = [LOGITS, *self._cache.own.values()]
        logits, *present = self._ran(self._following, names, tokens, self._own | self._cross, has_past=True)
        self._own = dict(zip(self._cache.own, present, strict=True))
        return _copied(logits)

    def _ran(
        self, session: Any, names: Sequence[str], tokens: Sequence[int], past: Mapping[str, Any], *, has_past: bool
    ) -> list[Any]:
        values = {IDS: self._wrap(np.asarray(tokens, np.int64)[None]), **self._beside, **past}
        values[HAS_PAST] = self._wrap(np.array([has_past]))
        known = {input_.name for input_ in session.get_inputs()}
        feeds = {name: value for name, value in values.items() if name in known}
        run: list[Any] = session.run_with_ort_values(list(names), feeds, self._options)
        return run


def _copied(logits: Any) -> NDArray[np.float32]:
    return np.array(logits.numpy()[0], np.float32)


@dataclass(frozen=True, slots=True)
class Heard:
    """An encoder's output, left in the engine's memory."""

    rows: int
    hidden: Any = None
    """(1, rows, width) as an `OrtValue`; None where the encoder made keys and values of it."""
    cross: Mapping[str, Any] = field(default_factory=dict)
    """Keys and values of it, by the encoder's output: (1, heads, rows, size of a head) each."""


def encoded(session: Any, fed: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> Heard:
    """Return what an encoder gives.

    Args:
        session: An `InferenceSession`.
        fed: Its inputs.
        outputs: Names of those of keys and values; one alone: of what it gives.

    Raises:
        UnsupportedError: If the engine refuses them.
    """
    import onnxruntime

    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in fed.items()}
    try:
        run = session.run_with_ort_values(list(outputs), values, quiet())
    except Exception as error:  # pybind raises a class per status code
        raise_run_error(error)
    if len(outputs) == 1:
        return Heard(int(run[0].shape()[1]), run[0])
    return Heard(int(run[0].shape()[2]), cross=dict(zip(outputs, run, strict=True)))
