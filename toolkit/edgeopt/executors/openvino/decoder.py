"""Prompts and tokens of a language model on OpenVINO: one graph, one cache in pages, weights held once.

A single token of a text is summed otherwise by OpenVINO's attention than several of one text; texts beside each other,
and any number of tokens from two on, have the same bits. So where numbers are to hang on nothing but the text (prompts,
exact answers), a single token runs with a copy of itself, which is overwritten by what follows: `Sums.PAIRED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import Placement, SessionOptions, Staged
from edgeopt.executors._text_past import RowPasts, TextPast
from edgeopt.executors.onnxruntime.decoder import ROOM, CachePart, Decoder, cache_parts
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.executors.openvino.pages import PagedGraph, PagedText, PagesUse

_PAIR = 2
_PROMPT, _WIDTHS = 7, (2, 3, 2, 5, 2)
"""Tokens of the trial of sums: those that come first, and the runs behind them, which are compared with one run."""


class OpenVinoDecoder(Staged):
    """A decoder that OpenVINO holds, for any number of texts."""

    engine_name = "OpenVINO"
    simulated: ClassVar[bool] = False

    def __init__(self, file: Path, options: SessionOptions) -> None:
        """Read and compile a decoder.

        Args:
            file: ONNX, with weights beside it.
            options: Its threads, precision and entries.

        Raises:
            EdgeoptError: If OpenVINO is not here, or refuses the graph.
        """
        self._graph = PagedGraph(file, options, PagesUse.ANSWERS)
        self.inputs, self.outputs = self._graph.inputs, self._graph.outputs
        """Those of the file, whose cache is one in floats."""
        self.held_bytes, self.token_bytes = self._graph.held_bytes, self._graph.token_bytes
        """Memory of its weights beside the file, about, and of one token in the cache."""
        self.page_bytes = self._graph.page_tokens * self.token_bytes
        """Memory of a page, of which the last one of each text may be filled in part."""
        self._parts: tuple[CachePart, ...] = ()

    def execute(self, uploaded: Any) -> Any:
        """Refuse: a runtime holds it as it holds any session, and its graph in pages answers texts alone.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("a decoder on OpenVINO writes texts, and answers no frames", remedy="call generate")

    def placement(self) -> tuple[Placement, ...]:
        """Return nothing: OpenVINO does not say where the nodes of a graph in pages run."""
        return ()

    def fitted(self, free_head: int = 0) -> tuple[CachePart, ...]:
        """Return the parts of its cache.

        Args:
            free_head: Numbers of a head in the cache where the model leaves them free.

        Raises:
            UnsupportedError: If the model is no decoder with a cache.
        """
        self._parts = cache_parts(self.inputs, self.outputs, free_head)
        return self._parts

    def text(self, capacity: int, room: int = 0) -> PagedDecoder:
        """Return a cache of its own for one text of up to `capacity` tokens; `room` as `Decoder` has it."""
        return PagedDecoder(self._graph, self._parts, capacity, room)

    def rows(self, count: int, capacity: int, tokens: int = 0, *, is_exact: bool = False) -> PagedRows:
        """Return room for several texts; see `PagedRows`."""
        return PagedRows(self._graph, self._parts, count, capacity, tokens, is_exact=is_exact)

    @cached_property
    def sums(self) -> Sums:
        """The order of sums that a token's numbers depend on; the first call runs some tokens."""
        try:
            count = _PROMPT + sum(_WIDTHS)
            whole = self._tried((count,), count)
            if not np.array_equal(whole, self._tried((_PROMPT, *_WIDTHS), count)):
                return Sums.APART
            is_alike = np.array_equal(whole, self._tried((_PROMPT, *[1] * (count - _PROMPT)), count))
        except EdgeoptError:
            return Sums.APART
        return Sums.ALIKE if is_alike else Sums.PAIRED

    def _tried(self, widths: Sequence[int], count: int) -> NDArray[np.float32]:
        """Return the logits of some tokens behind a prompt, which run in these widths."""
        decoder, tokens = self.text(count), [1 + i % 2 for i in range(count)]
        rows = [decoder.run(tokens[decoder.past : decoder.past + width]) for width in widths]
        return np.concatenate(rows)[_PROMPT:]

    def close(self) -> None:
        """Free the engine's model."""
        self._graph.close()


class PagedDecoder(TextPast):
    """One text with its pages, as `Decoder` is one on ONNX Runtime."""

    def __init__(self, graph: PagedGraph, parts: Sequence[CachePart], capacity: int, room: int = 0) -> None:
        """Reserve the cache.

        Args:
            graph: Several texts may use one, in turns or in threads.
            parts: Of its cache.
            capacity: Tokens that a text may have.
            room: Tokens for which memory is reserved at first; 0: all.
        """
        super().__init__(capacity)
        self._graph, self._parts, self._memory = graph, tuple(parts), graph.memory()
        self.is_exact, self._room = False, 0
        self._reserve(min(room or capacity, capacity))

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache takes."""
        return self._memory.stored_bytes

    def run(self, tokens: Sequence[int], last: int = 0) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token.

        Args:
            tokens: The next ones of the text.
            last: Of a part of a prompt: so many logits suffice, those behind the last tokens, and a single token runs
                as one of several. 0: all.

        Raises:
            ValueError: If there are none, or more than the cache still takes.
            UnsupportedError: If the engine refuses them.
        """
        count = len(tokens)
        return self._run(tokens, range(count - min(last or count, count), count), is_prompt=last > 0)

    def run_prompt(self, tokens: Sequence[int], *, is_end: bool) -> NDArray[np.float32]:
        """Run the next part of a prompt; return logits behind its last token where the prompt ends with it."""
        return self._run(tokens, [len(tokens) - 1] if is_end else [], is_prompt=True)

    def _run(self, tokens: Sequence[int], rows: Sequence[int], *, is_prompt: bool) -> NDArray[np.float32]:
        count, after = len(tokens), self._past + len(tokens)
        if not count or after > self.capacity:
            raise ValueError(f"{count} tokens behind {self._past} do not fit in {self.capacity}")
        is_paired = count == 1 and (is_prompt or self.is_exact) and after < self.capacity
        fed = [*tokens, *tokens] if is_paired else tokens
        self.make_room(self._past + len(fed))
        text = PagedText(fed, self._past, range(self._memory.count))
        logits = self._graph.logits(self._memory, [text], rows)
        if count == 1 and not is_paired:
            self._single_from = min(self._single_from, self._past)
        self._past = after
        return logits

    def make_room(self, tokens: int) -> None:
        """Reserve memory for so many tokens, at most the capacity; what the cache holds is copied."""
        if min(tokens, self.capacity) > self._room:
            self._reserve(min(max(-(-tokens // ROOM) * ROOM, 2 * self._room), self.capacity))

    def stored(self) -> list[NDArray[Any]]:
        """Return copies of what the cache holds: (1, heads, past, head) of each part, in floats."""
        pages = range(self._graph.pages_of(self._past))
        return [self._memory.read(part, pages, self._past) for part in self._parts]

    def restore(self, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Put the first `past` tokens of what `stored` gave in place of what the cache holds."""
        self.make_room(past)
        for part, array in zip(self._parts, stored, strict=True):
            self._memory.write(part, range(self._graph.pages_of(past)), array, past)
        self._cut(0)
        self._past = past

    def _reserve(self, room: int) -> None:
        self._memory.reserve(self._graph.pages_of(room))
        self._room = room


TextCache: TypeAlias = Decoder | PagedDecoder
"""One text on either engine."""


class PagedRows(RowPasts):
    """Several texts, whose pages lie anywhere in one memory: `Rows` of a graph over pages."""

    is_together = True

    def __init__(
        self,
        graph: PagedGraph,
        parts: Sequence[CachePart],
        count: int,
        capacity: int,
        tokens: int = 0,
        *,
        is_exact: bool = False,
    ) -> None:
        """Reserve the cache.

        Args:
            graph: Of the decoder.
            parts: Of its cache.
            count: Texts.
            capacity: Tokens that each may have.
            tokens: As `RowPasts` has it.
            is_exact: Whether each next token runs with a copy of itself, as in exact answers.
        """
        super().__init__(count, capacity, tokens)
        self._graph, self._parts, self._is_exact = graph, tuple(parts), is_exact
        self._pages = [list[int]() for _ in range(count)]
        self._free = list[int]()
        self._memory = graph.memory()
        self._grow(graph.pages_of(self._tokens) + count)  # the last page of each text may be filled in part

    def run(self, row: int, tokens: Sequence[int], *, is_prompt: bool = False) -> NDArray[np.float32]:
        """Return (1, vocabulary) logits behind the last of the next tokens of a row, as `Rows` has it.

        Raises:
            ValueError: If there are none, or more than the row still takes.
            UnsupportedError: If the engine refuses them.
        """
        return self._run_row(row, tokens, [len(tokens) - 1], is_prompt=is_prompt)

    def run_prompt(self, row: int, tokens: Sequence[int]) -> None:
        """Run the next tokens of a prompt behind which more follow; raises as `run`."""
        self._run_row(row, tokens, [], is_prompt=True)

    def run_first(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (rows, vocabulary) logits behind the next token of each of the first rows.

        Raises:
            ValueError: If there are none, or a row is full or empty.
            UnsupportedError: If the engine refuses them.
        """
        self._require_next(len(tokens))
        texts = self._next_texts(tokens)
        logits = self._graph.logits(self._memory, texts, _begins(texts))
        self._step(len(tokens))
        return logits

    def run_mixed(
        self, row: int, part: Sequence[int], tokens: Sequence[int], is_end: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Run a part of a prompt and the next token of each of the first rows at once: weights are read once for both.

        Args:
            row: Of the prompt, behind those of `tokens`.
            part: The next tokens of the prompt.
            tokens: One for each of the first rows.
            is_end: Whether the prompt ends with the part.

        Returns:
            Logits (rows, vocabulary) behind the tokens, and (1, vocabulary) behind the prompt where it ends.

        Raises:
            ValueError: As `run` and `run_first`.
            UnsupportedError: If the engine refuses them.
        """
        count, after = len(tokens), self._after(row, part)
        self._require_next(count)
        texts = [*self._next_texts(tokens), self._text(row, part, is_prompt=True)]
        *rows, begin = _begins(texts)
        wanted = [*rows, begin + len(part) - 1] if is_end else rows
        logits = self._graph.logits(self._memory, texts, wanted)
        self._step(count)
        self._past[row] = after
        return logits[:count], logits[count:]

    def reusable(self, row: int, past: int) -> int:
        """Return how many of the first `past` tokens that a row holds another text can begin with."""
        del row
        return past

    def rewind(self, row: int, past: int) -> None:
        """Forget all tokens of a row but the first `past`; its other pages are free."""
        self._require_held(row, past)
        self._past[row] = past
        self._let_go(row)

    def swap(self, a: int, b: int) -> None:
        """Let two rows change places."""
        self._pages[a], self._pages[b] = self._pages[b], self._pages[a]
        self._past[a], self._past[b] = self._past[b], self._past[a]

    def copy(self, source: int, row: int, past: int) -> int:
        """Begin a row like another one, with its first `past` tokens; return how many it has now."""
        self._require_held(source, past)
        if source != row:
            self._begin(row, past)
            self._memory.copy(self._pages[source][: len(self._pages[row])], self._pages[row])
        self.rewind(row, past)
        return past

    def restore(self, row: int, stored: Sequence[NDArray[Any]], past: int) -> None:
        """Begin a row with the first `past` tokens of a cache: (1, heads, tokens, head) of each part."""
        self._begin(row, past)
        for part, array in zip(self._parts, stored, strict=True):
            self._memory.write(part, self._pages[row], array, past)

    def arrange(self, count: int, capacity: int, kept: Sequence[int]) -> None:
        """Make room for other numbers of texts and tokens; row i holds what row `kept[i]` held: no page moves.

        Raises:
            ValueError: If it does not fit into the memory.
        """
        pasts = self._kept_pasts(count, capacity, kept)
        for row in set(range(self.count)) - set(kept):
            self.rewind(row, 0)
        empty = count - len(kept)
        self._past = [*pasts, *[0] * empty]
        self._pages = [*(self._pages[row] for row in kept), *(list[int]() for _ in range(empty))]
        self.count, self.capacity = count, capacity

    def _run_row(self, row: int, tokens: Sequence[int], rows: Sequence[int], *, is_prompt: bool) -> NDArray[np.float32]:
        after = self._after(row, tokens)
        logits = self._graph.logits(self._memory, [self._text(row, tokens, is_prompt=is_prompt)], rows)
        self._past[row] = after
        return logits

    def _next_texts(self, tokens: Sequence[int]) -> list[PagedText]:
        return [self._text(row, [token], is_prompt=False) for row, token in enumerate(tokens)]

    def _step(self, count: int) -> None:
        """Take the next token of each of the first rows into account."""
        self._past[:count] = [past + 1 for past in self._past[:count]]

    def _text(self, row: int, tokens: Sequence[int], *, is_prompt: bool) -> PagedText:
        """Return the next tokens of a row, a single one in a pair where its numbers are those of several."""
        past = self._past[row]
        is_paired = len(tokens) == 1 and (is_prompt or self._is_exact) and past + _PAIR <= self.capacity
        fed = [*tokens, *tokens] if is_paired else tokens
        self._take(row, past + len(fed))
        return PagedText(fed, past, self._pages[row])

    def _begin(self, row: int, past: int) -> None:
        """Give a row pages for so many tokens, in place of what it held."""
        self._past[row] = 0
        self._let_go(row)
        self._take(row, past)
        self._past[row] = past

    def _take(self, row: int, tokens: int) -> None:
        """Give a row the pages that it lacks for so many tokens."""
        missing = self._graph.pages_of(tokens) - len(self._pages[row])
        if missing > len(self._free):
            self._grow(self._memory.count + missing)
        self._pages[row] += [self._free.pop() for _ in range(missing)]

    def _let_go(self, row: int) -> None:
        count = self._graph.pages_of(self._past[row])
        self._free += reversed(self._pages[row][count:])
        del self._pages[row][count:]

    def _grow(self, count: int) -> None:
        self._free[:0] = reversed(range(self._memory.count, count))
        self._memory.reserve(count)


def _begins(texts: Sequence[PagedText]) -> list[int]:
    """Return the place of each text's first token in a run of all."""
    return [0, *accumulate(len(text.tokens) for text in texts)][:-1]
