"""Texts in slots: a step runs a part of one prompt, then the next token of all texts behind their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.rows import Rows
from edgeopt.runtime.decoding.batching.admission import next_admitted, next_prompt
from edgeopt.runtime.decoding.batching.request import Request
from edgeopt.runtime.decoding.language_model import common_start

_GRAIN = 32
"""Rows have room for a multiple of so many tokens, so that a few tokens more do not lay the memory out anew."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was run, over all answers, and who is there now."""

    prompt_runs: int = 0
    prompt_tokens: int = 0
    token_runs: int = 0
    """Each gives the next token of every text that is behind its prompt."""
    tokens: int = 0
    """That these runs gave."""
    reused_tokens: int = 0
    """Of prompts: not run, as a row of the cache or a stored prefix held them."""
    layouts: int = 0
    """How often the memory was laid out for other numbers of texts and tokens."""
    answers: int = 0
    """That are over."""
    running: int = 0
    waiting: int = 0

    def __add__(self, more: Work) -> Work:
        """Return the sums; who is there now is the latter's."""
        sums = {name: getattr(self, name) + getattr(more, name) for name in self.__slots__}
        return Work(**{**sums, "running": more.running, "waiting": more.waiting})


class Batch:
    """Slots over the rows of a cache. Rows of texts behind their prompts come first, so that one run takes them all."""

    def __init__(
        self,
        rows: Rows,
        tokens: int,
        chunk_tokens: int,
        alone_tokens: int,
        stored: Callable[[Sequence[int]], tuple[int, list[NDArray[Any]]]] = lambda _: (0, []),
        *,
        reuses_answers: bool = True,
    ) -> None:
        """Begin empty.

        Args:
            rows: As many as there are slots at most.
            tokens: Memory of all rows.
            chunk_tokens: Of a prompt at once while others write; 0: all of it.
            alone_tokens: Of a prompt at once where no text waits for its next token; 0: all of it.
            stored: Gives how many first tokens of a prompt are stored, and their cache.
            reuses_answers: Whether a prompt may go on behind an answer; else only behind what ran as a prompt, whose
                numbers are those of any prompt.
        """
        self._reuses_answers = reuses_answers
        self._stored = stored
        self._rows, self._slots, self._tokens, self._chunk = rows, rows.count, tokens, chunk_tokens
        self._alone = alone_tokens
        self._seats: list[Request | None] = [None] * rows.count
        self._left: list[Sequence[int]] = [()] * rows.count
        """Tokens that free rows hold of texts that are over."""
        self._writing = 0
        """Texts behind their prompts: they have the first rows."""
        self.waiting: list[Request] = []
        self.work = Work()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not any(self._seats)

    def forget(self) -> None:
        """Drop what free rows hold."""
        for row, seat in enumerate(self._seats):
            if seat is None:
                self._rows.rewind(row, 0)
                self._left[row] = ()

    def step(self) -> None:
        """End what is cancelled, give free slots away, run a part of one prompt and then all next tokens."""
        self._end_cancelled()
        self._admit()
        begun = [one for one in self._seats[self._writing :] if one]
        if begun:
            one = next_prompt(begun, self._prompt_left, self.work.prompt_runs)
            self._attempt(one, lambda: self._run_prompt(one))
        if self._writing:
            self._run_tokens()
        self._count()

    def end_all(self, error: Exception | None = None) -> None:
        """End all answers, the waiting ones too."""
        for one in [*self.waiting, *(one for one in self._seats if one)]:
            one.end(error)
        self.waiting.clear()
        self._seats, self._writing = [None] * self._rows.count, 0
        self._count()

    def _end_cancelled(self) -> None:
        for one in [one for one in self.waiting if one.is_cancelled]:
            self.waiting.remove(one)
            self._end(one)
        for one in [one for one in self._seats if one and one.is_cancelled]:
            self._leave(one)

    def _admit(self) -> None:
        while self.waiting:
            one = next_admitted(self.waiting, lambda one: self._room_for(one) is not None)
            if one is None:
                return
            self.waiting.remove(one)
            one.writing.count(queue_ns=one.writing.now_ns - one.writing.account.tokenize_ns)
            self._sit(one)

    def _room_for(self, one: Request) -> tuple[int, int] | None:
        """Return texts and tokens of the layout in which a request has a row; None: it must wait."""
        seated = [other for other in self._seats if other]
        if one.needs <= self._rows.capacity and len(seated) < self._rows.count:
            return self._rows.count, self._rows.capacity
        needs = -(-max(other.needs for other in [one, *seated]) // _GRAIN) * _GRAIN
        needs = min(needs, self._tokens)
        count = min(self._slots, self._tokens // needs)
        return (count, self._tokens // count) if count > len(seated) else None

    def _sit(self, one: Request) -> None:
        """Give a request a row, with as much of its prompt as any row holds."""
        layout = self._room_for(one)
        assert layout is not None
        if layout != (self._rows.count, self._rows.capacity):
            kept = [row for row, seat in enumerate(self._seats) if seat]
            self._rows.arrange(*layout, kept)
            self._seats = [self._seats[row] for row in kept] + [None] * (layout[0] - len(kept))
            self._left = [()] * layout[0]
            self.work += Work(layouts=1)
        prompt = one.writing.tokens
        free = [row for row, seat in enumerate(self._seats) if seat is None]
        sources = range(self._rows.count) if self._rows.is_together else free
        alike = {row: min(common_start(self._held(row), prompt), len(prompt) - 1) for row in sources}
        source = max(alike, key=alike.__getitem__)
        stored, cache = self._stored(prompt)
        is_stored = stored > alike[source]
        row = max(free, key=lambda row: (row == source and not is_stored, -self._rows.past(row)))
        if is_stored:
            self._rows.restore(row, cache, stored)
            reused = stored
        else:
            reused = self._rows.copy(source, row, alike[source])
        self._seats[row], self._left[row] = one, ()
        one.writing.count(reused_tokens=reused)
        one.prefill_from_ns = one.writing.now_ns
        self.work += Work(reused_tokens=reused)

    def _held(self, row: int) -> Sequence[int]:
        seat = self._seats[row]
        return self._left[row] if seat is None else self._reusable(seat, row)

    def _reusable(self, one: Request, row: int) -> Sequence[int]:
        past, count = self._rows.past(row), one.writing.prompt_tokens
        return one.writing.tokens[: past if self._reuses_answers else min(past, count)]

    def _prompt_left(self, one: Request) -> int:
        return one.writing.prompt_tokens - self._rows.past(self._seats.index(one))

    def _run_prompt(self, one: Request) -> None:
        """Run a part of a prompt; behind its end comes the first token, and the text joins the others."""
        row, writing = self._seats.index(one), one.writing
        past = self._rows.past(row)
        limits = [writing.prompt_tokens - past, one.asked.chunk_tokens, self._chunk if self._writing else self._alone]
        part = writing.tokens[past : past + min(limit for limit in limits if limit)]
        logits = self._rows.run(row, part, is_prompt=True)
        writing.count(computed_tokens=len(part))
        self.work += Work(prompt_runs=1, prompt_tokens=len(part))
        if past + len(part) < writing.prompt_tokens:
            return
        writing.count(prefill_ns=writing.now_ns - one.prefill_from_ns)
        self._swap(row, self._writing)
        self._writing += 1
        self._take(one, logits[-1])

    def _run_tokens(self) -> None:
        writers = [one for one in self._seats[: self._writing] if one]
        last = [one.writing.tokens[-1] for one in writers]
        try:
            logits = self._rows.run_first(last)
        except Exception:  # of one text perhaps: each is run alone, and who fails is ended alone
            for one in writers:
                self._attempt(one, lambda one=one: self._run_alone(one))  # type: ignore[misc]
            return
        self._counted(len(writers), 1 if self._rows.is_together else len(writers))
        for one, row in zip(writers, logits, strict=True):
            one.writing.count(computed_tokens=1, runs=1)
            self._attempt(one, lambda one=one, row=row: self._take(one, row))  # type: ignore[misc]

    def _run_alone(self, one: Request) -> None:
        logits = self._rows.run(self._seats.index(one), one.writing.tokens[-1:])
        self._counted(1, 1)
        one.writing.count(computed_tokens=1, runs=1)
        self._take(one, logits[-1])

    def _take(self, one: Request, logits: NDArray[np.float32]) -> None:
        """Choose a text's next token and hand it over."""
        one.pieces.put(one.writing.take(one.writing.choose(logits)))
        if one.writing.is_over:
            self._leave(one)

    def _attempt(self, one: Request, act: Callable[[], None]) -> None:
        """Do something for one request: what fails ends this one, and no other."""
        try:
            act()
        except Exception as error:
            self._leave(one, error)

    def _leave(self, one: Request, error: Exception | None = None) -> None:
        """Free the row of a request; the last of the texts behind their prompts moves into a gap between them."""
        row = self._seats.index(one)
        self._left[row] = self._reusable(one, row) if error is None else ()
        self._seats[row] = None
        if error is not None:
            self._rows.rewind(row, 0)
        if row < self._writing:
            self._writing -= 1
            self._swap(row, self._writing)
        self._end(one, error)

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self._rows.swap(a, b)
            self._seats[a], self._seats[b] = self._seats[b], self._seats[a]
            self._left[a], self._left[b] = self._left[b], self._left[a]

    def _end(self, one: Request, error: Exception | None = None) -> None:
        self.work += Work(answers=1)
        self._count()
        one.end(error)

    def _counted(self, tokens: int, runs: int) -> None:
        self.work += Work(token_runs=runs, tokens=tokens)

    def _count(self) -> None:
        self.work = replace(self.work, running=sum(map(bool, self._seats)), waiting=len(self.waiting))
