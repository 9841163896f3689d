"""A decoder with its key and value cache: the memory in which a text's past lies, continued by each run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
SHARING_OP = "GroupQueryAttention"
"""The op of com.microsoft that writes what is new behind the past, in the same memory."""
_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_RANK = 4


@dataclass(frozen=True, slots=True)
class CachePart:
    """Keys or values of one layer: (rows, heads, tokens, head)."""

    past: str
    """Name of the input."""
    present: str
    """Name of the output that continues it."""
    heads: int
    head: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Memory that one token takes."""
        return self.heads * self.head * np.dtype(self.dtype).itemsize


def cache_parts(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], free_head: int = 0
) -> tuple[CachePart, ...]:
    """Return the cache of a decoder in the order of its layers.

    Args:
        inputs: Of the model.
        outputs: Of the model.
        free_head: Numbers of a head where the model leaves them free; 0: not known.

    Raises:
        UnsupportedError: If it has none, or a part of it is not continued by an output.
    """
    known, found = {one.name for one in outputs}, list[CachePart]()
    for one in inputs:
        match = _PAST.fullmatch(one.name)
        if match is None:
            continue
        present = f"present.{match[1]}.{match[2]}"
        heads, head = (one.shape[1], one.shape[3]) if len(one.shape) == _RANK else (None, None)
        head = head if isinstance(head, int) else free_head or None
        if present not in known or not isinstance(heads, int) or not isinstance(head, int):
            raise UnsupportedError(
                f"input {one} is no cache that an output {present} continues",
                remedy="export the decoder with its cache: past_key_values.N.key (batch, heads, past, head)",
            )
        found.append(CachePart(one.name, present, heads, head, one.dtype))
    if not found or not {IDS, LOGITS} <= {one.name for one in inputs} | known:
        raise UnsupportedError(
            f"the model is no decoder with a cache: it takes {', '.join(one.name for one in inputs)}",
            remedy="export it with input_ids, past_key_values.N.key and .value, and logits, as edgeopt export does",
        )
    return tuple(found)


class Decoder:
    """One text on a decoder. A run takes its next tokens and gives the logits behind each; the cache remembers them."""

    def __init__(self, session: Any, parts: Sequence[CachePart], capacity: int, *, shares: bool) -> None:
        """Reserve the cache.

        Args:
            session: An `InferenceSession` on the host; several texts may use one, in turns or in threads.
            parts: Of its cache.
            capacity: Tokens that a text may have.
            shares: Whether each run writes behind the past in the same memory; else it gives the whole cache anew.
        """
        self.capacity, self._session, self._parts, self._shares = capacity, session, tuple(parts), shares
        self._takes_positions = POSITIONS in {one.name for one in session.get_inputs()}
        self._takes_mask = MASK in {one.name for one in session.get_inputs()}
        self._ones = np.ones((1, capacity), np.int64)
        self._counted = np.arange(capacity, dtype=np.int64)[None]
        self._past = 0
        self._values: dict[str, Any] = {}
        self._options = _quiet()
        self._binding = self._bound() if shares else None
        if not shares:
            self._forget()

    @property
    def past(self) -> int:
        """Tokens that the cache holds."""
        return self._past

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache takes: all that is reserved, or what is held where it grows with the text."""
        tokens = self.capacity if self._shares else self._past
        return tokens * sum(part.token_bytes for part in self._parts)

    def run(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token; where the head has one row only, behind the last.

        Raises:
            ValueError: If there are none, or more than the cache still takes.
            UnsupportedError: If the engine refuses them: a token beyond the embedding, for example.
        """
        count, after = len(tokens), self._past + len(tokens)
        if not count or after > self.capacity:
            raise ValueError(f"{count} tokens behind {self._past} do not fit in {self.capacity}")
        ids = np.asarray(tokens, np.int64)[None]
        feeds = {IDS: ids}
        if self._takes_mask:
            feeds[MASK] = self._ones[:, :after]
        if self._takes_positions:
            feeds[POSITIONS] = self._counted[:, self._past : after]
        try:
            logits = self._run_shared(feeds) if self._shares else self._run_anew(feeds)
        except Exception as error:  # pybind raises a class per status code, with a binding always RuntimeError
            if not (type(error).__module__.startswith("onnxruntime") or type(error) is RuntimeError):
                raise
            raise UnsupportedError(
                f"ONNX Runtime does not run the decoder: {' '.join(str(error).split())[:300]}",
                remedy="check that the tokenizer belongs to the model, and that memory suffices",
            ) from error
        self._past = after
        return logits

    def rewind(self, past: int) -> None:
        """Forget all tokens but the first `past`."""
        if not 0 <= past <= self._past:
            raise ValueError(f"the cache holds {self._past} tokens, not {past}")
        if not self._shares and past < self._past:
            import onnxruntime

            for part in self._parts:
                kept = np.ascontiguousarray(self._values[part.past].numpy()[:, :, :past])
                self._values[part.past] = onnxruntime.OrtValue.ortvalue_from_numpy(kept)
        self._past = past

    def _bound(self) -> Any:
        import onnxruntime

        binding = self._session.io_binding()
        for part in self._parts:
            memory = np.zeros((1, part.heads, self.capacity, part.head), part.dtype)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(memory)
            self._values[part.past] = value, memory  # the value borrows the array's memory
            binding.bind_ortvalue_input(part.past, value)
            binding.bind_ortvalue_output(part.present, value)
        return binding

    def _run_shared(self, feeds: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        import onnxruntime

        assert self._binding is not None
        for name, array in feeds.items():
            self._binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        self._binding.bind_output(LOGITS, "cpu")
        self._session.run_with_iobinding(self._binding, self._options)
        logits: NDArray[np.float32] = self._binding.get_outputs()[-1].numpy()[0]
        return logits

    def _forget(self) -> None:
        import onnxruntime

        for part in self._parts:
            empty = np.zeros((1, part.heads, 0, part.head), part.dtype)
            self._values[part.past] = onnxruntime.OrtValue.ortvalue_from_numpy(empty)

    def _run_anew(self, feeds: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        import onnxruntime

        given = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        names = [LOGITS, *(part.present for part in self._parts)]
        logits, *present = self._session.run_with_ort_values(names, given | self._values, self._options)
        for part, value in zip(self._parts, present, strict=True):
            self._values[part.past] = value
        found: NDArray[np.float32] = logits.numpy()[0]
        return found


def _quiet() -> Any:
    """Return options of a run whose errors are raised, not printed."""
    import onnxruntime

    made = onnxruntime.RunOptions()
    made.log_severity_level = 4
    return made
