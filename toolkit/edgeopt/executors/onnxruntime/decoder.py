"""A decoder with its key and value cache: the memory in which a text's past lies, continued by each run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors._text_past import TextPast
from edgeopt.executors.onnxruntime.faults import said
from edgeopt.executors.onnxruntime.image_rows import AXES, IMAGE_SHIFTS, ImageInputs, ImageToken
from edgeopt.executors.onnxruntime.state_parts import state_parts
from edgeopt.graph.tensors import TensorSpec
from edgeopt.system.machine.huge_pages import huge_zeros

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
LAST = "logits_to_keep"
"""Input that may be left out: how many logits are wanted, those behind the last tokens; 0: all."""
SHARING_OP = "GroupQueryAttention"
"""The op of com.microsoft that writes what is new behind the past, in the same memory."""
PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
ROOM = 256
"""Tokens for which the memory of a text that may get longer is reserved at once."""
_RANK = 4
_ALIGNED = 64
"""Bytes of a line of the processor's cache: each part begins with one."""
_LOGITS_RANK = 3


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

    def stored_shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape for one text of so many tokens."""
        return (1, self.heads, tokens, self.head)


def cache_parts(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], free_head: int = 0, *, needs_logits: bool = True
) -> tuple[CachePart, ...]:
    """Return the cache of a decoder in the order of its layers.

    Args:
        inputs: Of the model.
        outputs: Of the model.
        free_head: Numbers of a head where the model leaves them free; 0: not known.
        needs_logits: Whether it has to give logits; a graph that computes prompts alone gives none.

    Raises:
        UnsupportedError: If it has none and no states, or a part of it is not continued by an output.
    """
    known, result = {output.name for output in outputs}, list[CachePart]()
    for spec in inputs:
        match = PAST.fullmatch(spec.name)
        if match is None:
            continue
        present = f"present.{match[1]}.{match[2]}"
        heads, head = (spec.shape[1], spec.shape[3]) if len(spec.shape) == _RANK else (None, None)
        head = head if isinstance(head, int) else free_head or None
        if present not in known or not isinstance(heads, int) or not isinstance(head, int):
            raise UnsupportedError(
                f"input {spec} is no cache that an output {present} continues",
                remedy="export the decoder with its cache: past_key_values.N.key (batch, heads, past, head)",
            )
        result.append(CachePart(spec.name, present, heads, head, spec.dtype))
    needed = {IDS, LOGITS} if needs_logits else {IDS}
    has_memory = result or state_parts(inputs, outputs)
    if not has_memory or not needed <= {spec.name for spec in inputs} | known:
        raise UnsupportedError(
            f"the model is no decoder with a cache: it takes {', '.join(spec.name for spec in inputs)}",
            remedy="export it with input_ids, past_key_values.N.key and .value, and logits, as edgeopt export does",
        )
    return tuple(result)


def reserved(parts: Sequence[CachePart], tokens: int) -> list[NDArray[Any]]:
    """Return memory of each part for so many tokens, zeros; all parts lie in one piece.

    Args:
        parts: Of a cache.
        tokens: Of all texts in it.
    """
    return laid_out(reserved_piece(parts, tokens), parts, tokens)


def reserved_piece(parts: Sequence[CachePart], tokens: int) -> NDArray[np.uint8]:
    """Return one piece of memory that holds all parts for so many tokens, zeros."""
    return huge_zeros(sum(_aligned(tokens * part.token_bytes) for part in parts))


def laid_out(piece: NDArray[np.uint8], parts: Sequence[CachePart], tokens: int) -> list[NDArray[Any]]:
    """Return the memory of each part for so many tokens, one behind the other from the beginning of a piece."""
    result, begin = list[NDArray[Any]](), 0
    for part in parts:
        size = tokens * part.token_bytes
        result.append(piece[begin : begin + size].view(part.dtype))
        begin += _aligned(size)
    return result


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def shares_cache(session: Any, parts: Sequence[CachePart]) -> bool:
    """Return whether every layer writes what is new behind the past in the same memory.

    Args:
        session: An open session, which knows what its nodes are.
        parts: Of its cache.
    """
    return 2 * [node.op for node in session.placement()].count(SHARING_OP) == len(parts)


def bound_cache(session: Any, parts: Sequence[CachePart], values: Sequence[Any]) -> Any:
    """Return a binding whose past and present are the same memory.

    Args:
        session: An `InferenceSession`.
        parts: Of its cache.
        values: An `OrtValue` of each.
    """
    binding = session.io_binding()
    for part, value in zip(parts, values, strict=True):
        binding.bind_ortvalue_input(part.past, value)
        binding.bind_ortvalue_output(part.present, value)
    return binding


def takes_last(session: Any) -> bool:
    """Return whether an `InferenceSession` computes the logits of the last tokens alone where it is asked to."""
    return LAST in {overridable_initializer.name for overridable_initializer in session.get_overridable_initializers()}


class Decoder(TextPast):
    """One text on a decoder. A run takes its next tokens and gives the logits behind each; the cache remembers them."""

    is_exact = False
    """Whether tokens are run in pairs one by one too, so that an answer has the numbers of the same text run at once;
    only where `pairs` was asked for."""

    def __init__(
        self,
        session: Any,
        parts: Sequence[CachePart],
        capacity: int,
        *,
        shares: bool,
        pairs: bool = False,
        room: int = 0,
    ) -> None:
        """Reserve the cache.

        Args:
            session: An `InferenceSession` on the host; several texts may use one, in turns or in threads.
            parts: Of its cache.
            capacity: Tokens that a text may have.
            shares: Whether each run writes behind the past in the same memory; else it gives the whole cache anew.
            pairs: Whether an even number of tokens runs where several do, as `Sums.PAIRED` needs it: a copy of the
                last stands behind an odd one, and is overwritten by what follows.
            room: Tokens for which memory is reserved at first; a longer text gets more, and its past is copied. 0: all.
        """
        super().__init__(capacity)
        self._pairs = pairs and shares
        self._session, self._parts, self._shares = session, tuple(parts), shares
        self._takes_positions = POSITIONS in {input_.name for input_ in session.get_inputs()}
        self._takes_mask = MASK in {input_.name for input_ in session.get_inputs()}
        self._takes_last = takes_last(session)
        self._images = ImageInputs.of(session)
        self._shifts = self._images.text(capacity) if self._images else None
        self._ones = np.ones((1, capacity), np.int64)
        self._counted = np.arange(capacity, dtype=np.int64)[None]
        self._room = min(room or capacity, capacity)
        self._values: dict[str, Any] = {}
        self._pair: _BoundTokens | None = None
        self._options = quiet()
        if shares:
            self._reserve(self._room)
        else:
            self._forget()

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache takes: all that is reserved, or what is held where it grows with the text."""
        tokens = self._room if self._shares else self._past
        return tokens * sum(part.token_bytes for part in self._parts)

    def run(self, tokens: Sequence[int], last: int = 0) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token; where the head has one row only, behind the last.

        Args:
            tokens: The next ones of the text.
            last: Of a part of a prompt: so many logits suffice, those behind the last tokens. What only others need is
                not computed where the graph can leave it out, and a single token runs as one of several. 0: all.

        Raises:
            ValueError: If there are none, or more than the cache still takes.
            UnsupportedError: If the engine refuses them: a token beyond the embedding, for example.
        """
        count, after = len(tokens), self._past + len(tokens)
        if not count or after > self.capacity:
            raise ValueError(f"{count} tokens behind {self._past} do not fit in {self.capacity}")
        is_padded = self._pairs and count % 2 == 1 and after < self.capacity
        is_padded = is_padded and (count > 1 or last > 0 or self.is_exact)
        fed = [*tokens, tokens[-1]] if is_padded else tokens
        wanted = paired_rows(last, len(fed), is_padded=is_padded) if self._pairs else last
        try:
            is_next = count == 1 and not last and not isinstance(fed[0], ImageToken)
            logits = self._run(fed, wanted, is_next=is_next)
            if len(logits) < (wanted if wanted and self._takes_last else len(fed)):  # the head reads the last row alone
                self._pairs = False
                if is_padded:  # which was the copy
                    is_padded, logits = False, self._run(tokens, last, is_next=False)
        except Exception as error:  # pybind raises a class per status code, with a binding always RuntimeError
            raise_run_error(error)
        if count == 1 and not is_padded:
            self._single_from = min(self._single_from, self._past)
        self._past = after
        logits = logits[:-1] if is_padded else logits
        return logits[-last:] if last else logits

    def make_room(self, tokens: int) -> None:
        """Reserve memory for so many tokens, at most the capacity; what the cache holds is copied."""
        if not self._shares or min(tokens, self.capacity) <= self._room:
            return
        held = [self._values[part.past][1] for part in self._parts]
        self._reserve(min(max(-(-tokens // ROOM) * ROOM, 2 * self._room), self.capacity))
        for part, array in zip(self._parts, held, strict=True):
            self._values[part.past][1][:, :, : self._past] = array[:, :, : self._past]

    def _run(self, tokens: Sequence[int], last: int, *, is_next: bool) -> NDArray[np.float32]:
        after = self._past + len(tokens)
        self.make_room(after)
        mask = {MASK: self._ones[:, :after]} if self._takes_mask else {}
        if is_next and self._shares and self._single is not None:
            bound, shift = self._single, 0
            if len(tokens) > 1:
                self._pair = self._pair or _BoundTokens.of(self._session, self._bound(), len(tokens))
                assert self._pair is not None  # as `_single` is there
                bound = self._pair
            if self._shifts is not None:
                shift = int(self._shifts.of(self._past, tokens)[0, 0, 0])
            return bound.run(tokens, self._past, mask, self._options, shift)
        ids, images = self._images.feeds(tokens, self._past, self._shifts) if self._images else (tokens, {})
        feeds = {IDS: np.asarray(ids, np.int64)[None], **mask, **images}
        if self._takes_positions:
            feeds[POSITIONS] = self._counted[:, self._past : after]
        if self._takes_last:
            feeds[LAST] = np.array([last], np.int64)
        return self._run_shared(feeds) if self._shares else self._run_anew(feeds)

    def run_prompt(self, tokens: Sequence[int], *, is_end: bool) -> NDArray[np.float32]:
        """Run the next part of a prompt and return logits behind its last token.

        Args:
            tokens: The next ones of the text.
            is_end: Whether the prompt ends with them.
        """
        del is_end
        return self.run(tokens, last=1)

    def rewind(self, past: int) -> None:
        """Forget all tokens but the first `past`."""
        if not self._shares and 0 <= past < self._past:
            import onnxruntime

            for part in self._parts:
                kept = np.ascontiguousarray(self._values[part.past].numpy()[:, :, :past])
                self._values[part.past] = onnxruntime.OrtValue.ortvalue_from_numpy(kept)
        super().rewind(past)

    def stored(self) -> list[NDArray[Any]]:
        """Return copies of what the cache holds: (1, heads, past, head) of each part."""
        held = (self._values[part.past] for part in self._parts)
        return [(value[1][:, :, : self._past] if self._shares else value.numpy()).copy() for value in held]

    def restore(self, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Put the first `past` tokens of what `stored` gave in place of what the cache holds.

        Args:
            stored: Of the same model, and of a text without pictures.
            past: At most the capacity, and what is stored.
        """
        import onnxruntime

        self.make_room(past)
        for part, array in zip(self._parts, stored, strict=True):
            if self._shares:
                self._values[part.past][1][:, :, :past] = array[:, :, :past]
            else:
                kept = np.ascontiguousarray(array[:, :, :past])
                self._values[part.past] = onnxruntime.OrtValue.ortvalue_from_numpy(kept)
        self._cut(0)
        self._past = past
        if self._shifts is not None:
            self._shifts.forget(past)

    def _reserve(self, room: int) -> None:
        """Take memory for so many tokens; where there is none, all stays as it was."""
        import onnxruntime

        for part, flat in zip(self._parts, reserved(self._parts, room), strict=True):
            memory = flat.reshape(1, part.heads, room, part.head)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(memory)
            self._values[part.past] = value, memory  # the value borrows the array's memory
        self._room = room
        self._binding = self._bound()
        self._binding.bind_output(LOGITS, "cpu")
        self._single = _BoundTokens.of(self._session, self._bound()) if self.capacity > 1 else None
        self._pair = None

    def _bound(self) -> Any:
        return bound_cache(self._session, self._parts, [self._values[part.past][0] for part in self._parts])

    def _run_shared(self, feeds: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        bind_arrays(self._binding, feeds)
        logits: NDArray[np.float32] = logits_of_run(self._session, self._binding, self._options)[0]
        return logits

    def _forget(self) -> None:
        import onnxruntime

        for part in self._parts:
            empty = np.zeros((1, part.heads, 0, part.head), part.dtype)
            self._values[part.past] = onnxruntime.OrtValue.ortvalue_from_numpy(empty)

    def _run_anew(self, feeds: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        import onnxruntime

        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        names = [LOGITS, *(part.present for part in self._parts)]
        logits, *present = self._session.run_with_ort_values(names, values | self._values, self._options)
        for part, value in zip(self._parts, present, strict=True):
            self._values[part.past] = value
        result: NDArray[np.float32] = logits.numpy()[0]
        return result


class _BoundTokens:
    """Runs of one token, or of a pair: all but the mask is bound once, as what surrounds a run costs time each time."""

    def __init__(self, session: Any, binding: Any, width: int, count: int) -> None:
        """Bind the tokens, their positions and their logits to memory that every run uses again.

        Args:
            session: An `InferenceSession`.
            binding: Of it, with the cache.
            width: Numbers in the logits of one token.
            count: Tokens of a run.
        """
        import onnxruntime

        self._session, self._binding = session, binding
        self._ids, self._position = np.zeros((1, count), np.int64), np.zeros((1, count), np.int64)
        self._logits = np.zeros((1, count, width), np.float32)
        images = ImageInputs.of(session)
        arrays = {IDS: self._ids, POSITIONS: self._position, **(images.without if images else {})}
        self._shift = arrays[IMAGE_SHIFTS] = np.zeros((AXES, 1, 1), np.int64)
        bind_arrays(
            binding, {input_.name: arrays[input_.name] for input_ in session.get_inputs() if input_.name in arrays}
        )
        binding.bind_ortvalue_output(LOGITS, onnxruntime.OrtValue.ortvalue_from_numpy(self._logits))

    @classmethod
    def of(cls, session: Any, binding: Any, count: int = 1) -> _BoundTokens | None:
        """Return the runs of so many tokens; None where the model does not say how many logits it gives."""
        logits = next(output for output in session.get_outputs() if output.name == LOGITS)
        width = logits.shape[-1]
        is_known = isinstance(width, int) and logits.type == "tensor(float)" and len(logits.shape) == _LOGITS_RANK
        return cls(session, binding, width, count) if is_known else None

    def run(
        self, tokens: Sequence[int], past: int, mask: Mapping[str, NDArray[np.int64]], options: Any, shift: int = 0
    ) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind the tokens; `shift` is from their places to their positions."""
        self._shift[...] = shift
        for i, token in enumerate(tokens):
            self._ids[0, i], self._position[0, i] = token, past + i
        bind_arrays(self._binding, mask)
        self._session.run_with_iobinding(self._binding, options)
        logits: NDArray[np.float32] = self._logits[0].copy()
        return logits


def bound_token(session: Any, binding: Any) -> Any:
    """Return the runs of one token on another binding of the cache; None where the width of logits is not known."""
    return _BoundTokens.of(session, binding)


def paired_rows(last: int, count: int, *, is_padded: bool) -> int:
    """Return how many last rows the head computes for `last` logits, in pairs; 0: all.

    Args:
        last: Logits that are wanted; 0: all.
        count: Rows of the run.
        is_padded: Whether the last row is a copy, whose logits nobody wants.
    """
    wanted = last + is_padded if last else 0
    return min(wanted + wanted % 2, count)


def bind_arrays(binding: Any, feeds: Mapping[str, NDArray[Any]]) -> None:
    """Bind inputs where they lie; the binding keeps the arrays, but for `LAST`, which must live as long as the run."""
    import onnxruntime

    for name, array in feeds.items():
        if name == LAST:  # what may be left out is not among the inputs that arrays are bound to
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        else:
            binding.bind_cpu_input(name, array)


def logits_of_run(session: Any, binding: Any, options: Any) -> NDArray[np.float32]:
    """Run, and return the logits; the binding keeps none: behind a long prompt they are hundreds of megabytes.

    Ctrl-C is raised behind a run, not in it: logits of another length that stayed bound would fail the next one.
    """
    try:
        session.run_with_iobinding(binding, options)
        logits: NDArray[np.float32] = binding.get_outputs()[-1].numpy()
    finally:
        binding.bind_output(LOGITS, "cpu")
    return logits


def quiet() -> Any:
    """Return options of a run whose errors are raised, not printed."""
    import onnxruntime

    made = onnxruntime.RunOptions()
    made.log_severity_level = 4
    # without it the package asks for the key, in vain, which raises inside with every run: 30 us
    made.add_run_config_entry("gpu_graph_id", "-1")
    return made


def raise_run_error(error: Exception) -> NoReturn:
    """Raise what the user can act on for an error of a run; what is no word of the engine stays what it is."""
    if not (type(error).__module__.startswith("onnxruntime") or type(error) is RuntimeError):
        raise error
    raw = str(error)
    remedies = {
        "cos_cache": "the text is longer than the model's table of positions: ask for a shorter --context",
        "lloc": "memory does not suffice: ask for a shorter --context, or close other programs",
        "idx=": "the tokenizer has tokens that the model has not: name the tokenizer.json that came with it",
    }
    remedy = next((other for word, other in remedies.items() if word in raw), "look whether the model's file is whole")
    raise UnsupportedError(f"ONNX Runtime does not run the decoder: {said(error)}", remedy=remedy) from error
