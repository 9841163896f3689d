"""Several texts on a decoder, side by side in one cache: each is a row of it.

`GroupQueryAttention` takes the length of each row from the mask, so rows of any lengths take their next tokens in one
run; and a row is memory of its own, so that it can be bound alone for its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.executors._text_past import RowPasts
from edgeopt.executors.onnxruntime.decoder import (
    IDS,
    LAST,
    LOGITS,
    MASK,
    POSITIONS,
    ROOM,
    CachePart,
    Decoder,
    bind_arrays,
    bound_cache,
    laid_out,
    logits_of_run,
    paired_rows,
    quiet,
    raise_run_error,
    reserved_piece,
    takes_last,
)
from edgeopt.executors.onnxruntime.image_rows import AXES, IMAGE_SHIFTS, ImageInputs, TextShifts
from edgeopt.executors.onnxruntime.prefill import Prefill
from edgeopt.executors.onnxruntime.row_states import RowStates
from edgeopt.executors.onnxruntime.state_parts import states_of
from edgeopt.executors.onnxruntime.stateful import decoder_of

_STALE = 100.0
"""Filler behind the end of each row when a graph is tried: a graph that reads it gives logits far off."""
_ROOM, _GRAIN = 128, 32
"""Tokens that each row has memory for at first, and of which it gets a multiple: what no text has reached is not held,
as untouched memory is not. Rows grow by a quarter at least, so that few texts wait for what is copied."""
_ALIKE = 0.1
"""How far logits of a row may be from those of the row alone, over their norm: rounding of activations is below it."""


class Rows(Protocol):
    """Texts side by side."""

    is_together: bool
    """Whether the next tokens of several texts are one run."""
    count: int
    """How many texts have room."""
    capacity: int
    """Tokens that each may have."""

    def past(self, row: int) -> int:
        """Return how many tokens a row holds."""
        ...

    def run(self, row: int, tokens: Sequence[int], *, is_prompt: bool = False) -> NDArray[np.float32]:
        """Return logits behind the next tokens of a row: (tokens, vocabulary), or (1, vocabulary) behind the last.

        Args:
            row: Of the text.
            tokens: That come next.
            is_prompt: Whether they are a part of a prompt: a single one then runs as one of several.
        """
        ...

    def run_prompt(self, row: int, tokens: Sequence[int]) -> None:
        """Run the next tokens of a prompt behind which more follow, on the graph of prompts where there are two."""
        ...

    def run_first(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (rows, vocabulary) logits behind the next token of each of the first rows."""
        ...

    def reusable(self, row: int, past: int) -> int:
        """Return how many of the first `past` tokens that a row holds another text can begin with."""
        ...

    def rewind(self, row: int, past: int) -> None:
        """Forget all tokens of a row but the first `past`."""
        ...

    def swap(self, a: int, b: int) -> None:
        """Let two rows change places."""
        ...

    def copy(self, source: int, row: int, past: int) -> int:
        """Begin a row like another one, with its first `past` tokens; return how many it has now."""
        ...

    def restore(self, row: int, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Begin a row with the first `past` tokens of a cache: (1, heads, tokens, head) of each part."""
        ...

    def arrange(self, count: int, capacity: int, kept: Sequence[int]) -> None:
        """Make room for other numbers of texts and tokens; row i holds what row `kept[i]` held, the others nothing."""
        ...


class SharedRows(RowPasts):
    """All texts in one buffer of each part of the cache, (rows, heads, capacity, head)."""

    is_together = True

    def __init__(
        self,
        session: Any,
        parts: Sequence[CachePart],
        count: int,
        capacity: int,
        tokens: int = 0,
        *,
        pairs: bool = False,
        prefill: Prefill | None = None,
    ) -> None:
        """Reserve the cache.

        Args:
            session: An `InferenceSession` on the host, of a graph for which `takes_rows` holds.
            parts: Of its cache.
            count: Texts.
            capacity: Tokens that each may have.
            tokens: As `RowPasts` has it.
            pairs: As `Decoder` has it, of prompts.
            prefill: The graph of prompts, where it is another; their last token is not its.
        """
        super().__init__(count, capacity, tokens)
        self._pairs, self._prefill = pairs, prefill
        self._session, self._parts = session, tuple(parts)
        names = {input_.name for input_ in session.get_inputs()}
        self._takes_positions, self._takes_mask = POSITIONS in names, MASK in names
        self._takes_last = takes_last(session)
        self._images = ImageInputs.of(session)
        self._memory = reserved_piece(self._parts, self._tokens)
        self._options = quiet()
        self._states = RowStates(states_of(session), 0)
        self._lay_out(count, capacity, min(_ROOM, capacity))

    @property
    def cache_bytes(self) -> int:
        """Memory that the rows have so far; what is reserved beyond is not touched."""
        return self.count * self._room * sum(part.token_bytes for part in self._parts)

    def run(self, row: int, tokens: Sequence[int], *, is_prompt: bool = False) -> NDArray[np.float32]:
        """Return logits behind the next tokens of a row, as `Rows` has it.

        Raises:
            ValueError: If there are none, or more than the row still takes.
            UnsupportedError: If the engine refuses them.
        """
        after = self._after(row, tokens)
        count, is_odd = len(tokens), len(tokens) % 2 == 1
        is_padded = self._pairs and is_odd and after < self.capacity and (count > 1 or is_prompt)
        fed = [*tokens, tokens[-1]] if is_padded else tokens
        wanted = paired_rows(1, len(fed), is_padded=is_padded) if self._pairs else 1
        self._make_room(self._past[row] + len(fed))
        logits: NDArray[np.float32] = self._run_text(row, fed, wanted)
        if len(logits) < (wanted if self._takes_last else len(fed)):  # the head reads the last row alone
            self._pairs = False
            if is_padded:  # which was the copy
                is_padded, logits = False, self._run_text(row, tokens)
        self._past[row] = after
        return logits[:-1] if is_padded else logits

    def run_prompt(self, row: int, tokens: Sequence[int]) -> None:
        """Run the next tokens of a prompt behind which more follow, on the graph of prompts where there are two.

        Raises:
            ValueError: If there are none, or they leave no room.
            UnsupportedError: If the engine refuses them.
        """
        if self._prefill is None:
            self.run(row, tokens, is_prompt=True)
            return
        after = self._after(row, tokens, room=1)
        self._make_room(after + 1)  # a pair takes one more
        if row not in self._prompts:
            self._prompts[row] = self._prefill.bound([buffer[row : row + 1] for buffer in self._buffers])
        self._prefill.run(self._prompts[row], tokens, self._past[row])
        self._past[row] = after

    def run_first(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (rows, vocabulary) logits behind the next token of each of the first rows.

        Raises:
            ValueError: If there are none, or a row is full or empty.
            UnsupportedError: If the engine refuses them.
        """
        count = len(tokens)
        self._require_next(count)
        self._make_room(max(self._past[:count]) + 1)
        ids = np.asarray(tokens, np.int64)[:, None]
        logits: NDArray[np.float32] = self._run(0, count, ids, images=self._next_inputs(tokens))[:, 0]
        self._past[:count] = [past + 1 for past in self._past[:count]]
        return logits

    def rewind(self, row: int, past: int) -> None:
        """Forget all tokens of a row but the first `past`."""
        self._require_held(row, past)
        if self._states.parts and past not in (0, self._past[row]):
            raise ValueError(f"states of {self._past[row]} tokens cannot go back to {past}")
        if not past:
            self._states.clear(row)
        self._past[row] = past

    def swap(self, a: int, b: int) -> None:
        """Let two rows change places: what they hold is copied."""
        held = self._past[a], self._past[b]
        for buffer in self._buffers:
            first = buffer[a, :, : held[0]].copy()
            buffer[a, :, : held[1]] = buffer[b, :, : held[1]]
            buffer[b, :, : held[0]] = first
        self._states.swap(a, b)
        if self._shifts:
            self._shifts[a], self._shifts[b] = self._shifts[b], self._shifts[a]
        self._past[a], self._past[b] = held[1], held[0]

    def reusable(self, row: int, past: int) -> int:
        """Return how many of the first `past` tokens that a row holds another text can begin with."""
        return 0 if self._states.parts and past != self._past[row] else past  # states cannot be cut back

    def copy(self, source: int, row: int, past: int) -> int:
        """Begin a row like another one, with its first `past` tokens."""
        self._require_held(source, past)
        past = self.reusable(source, past)
        if not past:
            self._states.clear(row)
        elif source != row:
            self._states.copy(source, row)
        if source != row:
            for buffer in self._buffers:
                buffer[row, :, :past] = buffer[source, :, :past]
            if self._shifts:
                self._shifts[row].copy(self._shifts[source], past)
        self._past[row] = past
        return past

    def restore(self, row: int, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Begin a row with the first `past` tokens of a cache."""
        self._make_room(past)
        self._states.restore(row, stored[len(self._buffers) :])
        for buffer, array in zip(self._buffers, stored[: len(self._buffers)], strict=True):
            buffer[row, :, :past] = array[0, :, :past]
        if self._shifts:
            self._shifts[row].forget(past)
        self._past[row] = past

    def arrange(self, count: int, capacity: int, kept: Sequence[int]) -> None:
        """Lay the same memory out anew; what moves is copied, of one part of the cache after the other.

        Raises:
            ValueError: If it does not fit into the memory.
        """
        self._kept_pasts(count, capacity, kept)
        self._move(count, capacity, min(self._room, capacity), kept)

    def _make_room(self, tokens: int) -> None:
        """Lay rows out anew where one gets longer than any before; all stay what they are."""
        if tokens > self._room:
            most = max(-(-tokens // _GRAIN), 5 * self._room // (4 * _GRAIN)) * _GRAIN
            self._move(self.count, self.capacity, min(most, self.capacity), range(self.count))

    def _move(self, count: int, capacity: int, room: int, kept: Sequence[int]) -> None:
        pasts = [self._past[row] for row in kept]
        size, stays = self.count * self._room, (count, room) == (self.count, self._room)
        moved = [(to, row, past) for to, (row, past) in enumerate(zip(kept, pasts, strict=True)) if past]
        moved = [entry for entry in moved if not stays or entry[0] != entry[1]]
        before, states, shifts = self._buffers, self._states, self._shifts
        self._lay_out(count, capacity, room)
        states.move_to(self._states, kept)
        for to, row in enumerate(kept):
            if shifts:
                self._shifts[to].copy(shifts[row], pasts[to])
        parts = list(zip(before, self._buffers, strict=True))
        for old, new in reversed(parts) if count * room > size else parts:  # over what is moved already
            held = [old[row, :, :past].copy() for _, row, past in moved]
            for (to, _, past), text in zip(moved, held, strict=True):
                new[to, :, :past] = text
        self._past[: len(pasts)] = pasts

    def fill(self, value: float) -> None:
        """Write a number over the memory of all rows; no text is held any longer."""
        for buffer in self._buffers:
            buffer[...] = value
        self._past = [0] * self.count
        self._states = RowStates(self._states.parts, self.count)
        self._bindings.clear()
        self._prompts.clear()

    def _lay_out(self, count: int, capacity: int, room: int) -> None:
        self.count, self.capacity, self._room = count, capacity, room
        self._past = [0] * count
        self._buffers: list[NDArray[Any]] = [
            flat.reshape(count, part.heads, room, part.head)
            for flat, part in zip(laid_out(self._memory, self._parts, count * room), self._parts, strict=True)
        ]
        self._states = RowStates(self._states.parts, count)
        self._bindings: dict[tuple[int, int], tuple[Any, list[Any]]] = {}
        self._prompts: dict[int, Any] = {}
        """Row -> binding of the graph of prompts."""
        turns = self._images is not None and self._images.shifts
        self._shifts = [TextShifts(capacity) for _ in range(count)] if turns else []

    def _bound(self, first: int, after: int) -> Any:
        """Return the binding of some rows, which is made once."""
        import onnxruntime

        key = first, after
        if key not in self._bindings:
            # each value borrows the array's memory
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(buffer[first:after]) for buffer in self._buffers]
            binding = bound_cache(self._session, self._parts, values)
            values += self._states.bind(binding, first, after)
            binding.bind_output(LOGITS, "cpu")
            self._bindings[key] = binding, values
        return self._bindings[key][0]

    def _run_text(self, row: int, tokens: Sequence[int], last: int = 1) -> NDArray[np.float32]:
        """Run the next tokens of one row, rows of pictures among them."""
        text = self._shifts[row] if self._shifts else None
        known, images = self._images.feeds(tokens, self._past[row], text) if self._images else (tokens, None)
        logits: NDArray[np.float32] = self._run(row, row + 1, np.asarray(known, np.int64)[None], last, images)[0]
        return logits

    def _next_inputs(self, tokens: Sequence[int]) -> Mapping[str, NDArray[Any]] | None:
        """Return the inputs of pictures for the next token of each of the first rows."""
        if self._images is None or not self._shifts:
            return None
        shifts = np.empty((AXES, len(tokens), 1), np.int64)
        for row, token in enumerate(tokens):
            shifts[:, row] = self._shifts[row].of(self._past[row], [token])[:, 0]
        return {**self._images.without, IMAGE_SHIFTS: shifts}

    def _run(
        self,
        first: int,
        after: int,
        ids: NDArray[np.int64],
        last: int = 1,
        images: Mapping[str, NDArray[Any]] | None = None,
    ) -> NDArray[np.float32]:
        binding, pasts = self._bound(first, after), np.array(self._past[first:after])[:, None]
        lengths = pasts + ids.shape[1]
        feeds: dict[str, NDArray[Any]] = {IDS: ids}
        if self._images:  # the binding remembers those of the run before
            feeds |= images or self._images.without
        if self._takes_mask:
            feeds[MASK] = (np.arange(lengths.max()) < lengths).astype(np.int64)
        if self._takes_positions:
            feeds[POSITIONS] = (pasts + np.arange(ids.shape[1])).astype(np.int64)
        if self._takes_last:
            feeds[LAST] = np.array([last], np.int64)
        try:
            bind_arrays(binding, feeds)
            logits = logits_of_run(self._session, binding, self._options)
        except Exception as error:  # pybind raises a class per status code, with a binding always RuntimeError
            raise_run_error(error)
        self._states.advance(first, after)
        return logits


class RowsApart:
    """Each text in a cache of its own, for graphs that take one text at a time: next tokens are one run each."""

    is_together = False

    def __init__(
        self,
        session: Any,
        parts: Sequence[CachePart],
        count: int,
        capacity: int,
        *,
        shares: bool,
        pairs: bool = False,
        is_exact: bool = False,
        prefill: Prefill | None = None,
    ) -> None:
        """Take the memory of each text when it begins; `shares`, `pairs` and `is_exact` as `Decoder` has them.

        `prefill` is the graph of prompts, where it is another.
        """
        self._prefill = prefill
        self._session, self._parts, self._shares, self._pairs = session, tuple(parts), shares, pairs
        self._is_exact = is_exact
        self.count, self.capacity = count, capacity
        self._texts: list[Decoder | None] = [None] * count

    def past(self, row: int) -> int:
        """Return how many tokens a row holds."""
        text = self._texts[row]
        return 0 if text is None else text.past

    def run(self, row: int, tokens: Sequence[int], *, is_prompt: bool = False) -> NDArray[np.float32]:
        """Return logits behind the next tokens of a row: (tokens, vocabulary), or (1, vocabulary) behind the last."""
        text = self._texts[row]
        if text is None:
            text = self._texts[row] = self._begun()
        return text.run(tokens, last=1 if is_prompt else 0)

    def run_prompt(self, row: int, tokens: Sequence[int]) -> None:
        """Run the next tokens of a prompt behind which more follow, on the graph of prompts where there are two."""
        text = self._texts[row]
        if text is None:
            text = self._texts[row] = self._begun()
        text.run_prompt(tokens, is_end=False)

    def run_first(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (rows, vocabulary) logits behind the next token of each of the first rows, one run after the other.

        Where a run fails, the rows before it hold their token no longer.
        """
        before, result = [self.past(row) for row in range(len(tokens))], []
        try:
            for row, token in enumerate(tokens):
                result.append(self.run(row, [token])[-1])
        except BaseException:
            for row in range(len(result)):
                self.rewind(row, before[row])
            raise
        return np.stack(result)

    def rewind(self, row: int, past: int) -> None:
        """Forget all tokens of a row but the first `past`; memory of an empty row is given back."""
        text = self._texts[row]
        if text is not None and past:
            text.rewind(past)
        elif past:
            raise ValueError(f"row {row} holds no tokens, not {past}")
        else:
            self._texts[row] = None

    def swap(self, a: int, b: int) -> None:
        """Let two rows change places."""
        self._texts[a], self._texts[b] = self._texts[b], self._texts[a]

    def copy(self, source: int, row: int, past: int) -> int:
        """Begin a row with the first tokens that it holds itself; of others, and of older sizes, nothing is taken."""
        self.rewind(row, self.reusable(row, past) if source == row else 0)
        return self.past(row)

    def reusable(self, row: int, past: int) -> int:
        """Return how many of the first `past` tokens that a row holds another text can begin with."""
        text = self._texts[row]
        return text.reusable(past) if text is not None and text.capacity == self.capacity else 0

    def restore(self, row: int, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Begin a row with the first `past` tokens of a cache."""
        text = self._begun()
        text.restore(stored, past)
        self._texts[row] = text

    def arrange(self, count: int, capacity: int, kept: Sequence[int]) -> None:
        """Make room for other numbers of texts and tokens; what is kept keeps its own memory."""
        texts = [self._texts[row] for row in kept]
        self.count, self.capacity = count, capacity
        self._texts = [*texts, *[None] * (count - len(texts))]

    def _begun(self) -> Decoder:
        text = decoder_of(
            self._session, self._parts, self.capacity, self._prefill, shares=self._shares, pairs=self._pairs, room=ROOM
        )
        text.is_exact = self._is_exact
        return text


def takes_rows(session: Any, parts: Sequence[CachePart]) -> bool:
    """Return whether a graph gives each of two rows of different lengths the logits of that row alone.

    It is tried: what derives lengths from the mask's shape, or has one text written into it, does not.
    """
    try:
        rows = SharedRows(session, parts, 2, 16)
        rows.fill(_STALE)
        rows.run(0, [1, 2, 3, 1, 2])
        rows.run(1, [2])
        together = rows.run_first([3, 3])
        rows.fill(_STALE)  # which begins anew: not every decoder goes back by a token
        rows.run(0, [1, 2, 3, 1, 2])
        rows.run(1, [2])
        alone = np.stack([rows.run(row, [3])[-1] for row in (0, 1)])
    except (EdgeoptError, TypeError, ValueError):
        return False
    distance = np.linalg.norm(together - alone, axis=-1)
    return bool((distance <= _ALIKE * np.linalg.norm(alone, axis=-1)).all())
