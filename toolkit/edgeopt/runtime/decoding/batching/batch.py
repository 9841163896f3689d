"""Texts in slots: a step runs a part of one prompt, then the next token of all texts behind their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.image_rows import numbers_of
from edgeopt.executors.onnxruntime.rows import Rows
from edgeopt.runtime.decoding.batching.pace import PromptPace
from edgeopt.runtime.decoding.batching.request import Request
from edgeopt.runtime.decoding.generation import Writing
from edgeopt.runtime.decoding.prompt_plan import PromptPlan, common_start

MOST_OVERTAKEN = 8
"""Requests that came later and got a slot before; after so many it is one's turn."""
OLDEST_EVERY = 4
"""Every fourth prompt chunk goes to the oldest request, so that none starves."""


def next_admitted(waiting: Sequence[Request], fits: Callable[[Request], bool]) -> Request | None:
    """Return who gets the next free slot; None: nobody who may go fits.

    Args:
        waiting: In any order; who is passed by is counted in `overtaken`.
        fits: Whether the memory that is left holds a request.
    """
    for one in sorted(waiting, key=lambda one: (one.overtaken < MOST_OVERTAKEN, -one.priority, one.order)):
        if fits(one):
            for other in waiting:
                other.overtaken += other.order < one.order
            return one
        if one.overtaken >= MOST_OVERTAKEN:
            return None
    return None


def next_prompt(begun: Sequence[Request], left: Callable[[Request], int], turn: int) -> Request:
    """Return whose prompt goes on.

    Args:
        begun: With a slot and a prompt that is not run whole; one or more.
        left: Tokens of the prompt to run.
        turn: Which part of any prompt this is, counted from 0.
    """
    if turn % OLDEST_EVERY == OLDEST_EVERY - 1:
        return min(begun, key=lambda request: request.order)
    return min(begun, key=lambda request: (-request.priority, left(request), request.order))


_GRAIN = 32
"""Rows have room for a multiple of so many tokens, so that a few tokens more do not lay the memory out anew."""
_AHEAD_TOKENS = 16
"""Tokens that run at once while nobody asks: who comes meanwhile waits for no more."""


@dataclass(frozen=True, slots=True)
class BatchWork:
    """The runs so far, over all answers, and who is there now."""

    prompt_runs: int = 0
    prompt_tokens: int = 0
    token_runs: int = 0
    """Each gives the next token of every text that is behind its prompt."""
    tokens: int = 0
    """Tokens that these runs made."""
    reused_tokens: int = 0
    """Reused tokens of prompts: not run, as a row of the cache or a stored prefix held them."""
    layouts: int = 0
    """How often the memory was laid out for other numbers of texts and tokens."""
    answers: int = 0
    """Answers that are over."""
    ahead_tokens: int = 0
    """Tokens that were computed while nobody asked, as the next prompt of a conversation begins with them."""
    running: int = 0
    waiting: int = 0

    def __add__(self, more: BatchWork) -> BatchWork:
        """Return the sums; who is there now is the latter's."""
        sums = {name: getattr(self, name) + getattr(more, name) for name in self.__slots__}
        return BatchWork(**{**sums, "running": more.running, "waiting": more.waiting})


RunMixed: TypeAlias = Callable[
    [int, Sequence[int], Sequence[int], bool], tuple[NDArray[np.float32], NDArray[np.float32]]
]
"""Runs a part of a prompt beside next tokens: row and part of the prompt, a token for each first row, whether it ends
the prompt. Returns the logits behind each of these tokens, and those behind the prompt where it ends."""


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
        plan: PromptPlan | None = None,
        token_s: float = 0.0,
        run_mixed: RunMixed | None = None,
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
            plan: How prompts are cut into runs; None: into parts of any length, on one graph.
            token_s: Time between two tokens of a text for which prompts wait; 0: for nobody.
            run_mixed: Runs a part of a prompt and next tokens of other texts at once; None: they take turns.
        """
        self._run_mixed = run_mixed
        self._plan, self._pace = plan or PromptPlan(), PromptPace(token_s)
        self._reuses_answers = reuses_answers and not self._plan.is_split
        self._stored = stored
        self._rows, self._slots, self._tokens, self._chunk = rows, rows.count, tokens, chunk_tokens
        self._alone = alone_tokens
        self._seats: list[Request | None] = [None] * rows.count
        self._left: list[Sequence[int]] = [()] * rows.count
        """Tokens that free rows hold of texts that are over."""
        self._writing = 0
        """Texts behind their prompts: they have the first rows."""
        self._ahead = list[tuple[list[int], int]]()
        """Starts of prompts that may come, the newest last, and how many first tokens a row must still hold of each."""
        self.waiting: list[Request] = []
        self.work = BatchWork()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not any(self._seats)

    def expect(self, tokens: Sequence[int], held: int) -> None:
        """Take the beginning of a prompt that may come; `step_ahead` computes it where nobody asks.

        Args:
            tokens: With which the prompt begins.
            held: First tokens that a free row must still hold then: where another text took the row, it is too late.
        """
        whole = list(tokens[: self._plan.reusable(len(tokens))])
        # of two graphs the last token of a prompt is that of the other one
        least = self._plan.reusable(max(held - self._plan.is_split, 0))
        self._ahead = [*self._ahead, (whole, least)][-self._slots :]

    @property
    def looks_ahead(self) -> bool:
        """Whether the beginning of a prompt that may come waits to be computed."""
        return bool(self._ahead)

    def step_ahead(self) -> None:
        """Run a part of the newest text that is expected. Only where nothing else is to be done."""
        tokens, held = self._ahead[-1]
        shared = [self._plan.reusable(common_start(left, tokens)) for left in self._left]
        alike = [self._rows.reusable(row, count) for row, count in enumerate(shared)]
        row = max(range(len(alike)), key=alike.__getitem__)
        past = alike[row]
        if past < max(held, 1) or past == len(tokens) or len(tokens) >= self._rows.capacity:
            self._ahead.pop()
            return
        part = next(iter(self._filling(tokens, past, _AHEAD_TOKENS)))
        self._left[row] = tokens[:past]
        try:
            is_held = self._rows.copy(row, row, past) == past  # rows apart keep nothing where their size has changed
            if is_held:
                self._rows.run_prompt(row, part)
        except Exception:  # nobody asked for it: who does, hears of it
            is_held = False
        if not is_held:
            self._rows.rewind(row, 0)
            self._left[row] = ()
            self._ahead.pop()
            return
        self._left[row] = tokens[: past + len(part)]
        self.work += BatchWork(ahead_tokens=len(part))

    def forget(self) -> None:
        """Drop what free rows hold."""
        self._ahead.clear()
        for row, seat in enumerate(self._seats):
            if seat is None:
                self._rows.rewind(row, 0)
                self._left[row] = ()

    def step(self) -> None:
        """End what is cancelled, give free slots away, run a part of one prompt and then all next tokens."""
        self._end_cancelled()
        self._admit()
        begun = [seat for seat in self._seats[self._writing :] if seat]
        began_s, writers = perf_counter(), self._writing
        prompt, is_mixed = None, writers > 0 and self._run_mixed is not None
        if begun and (not writers or self._pace.lets_prompts_run):
            prompt = next_prompt(begun, self._prompt_left, self.work.prompt_runs)
        if prompt is not None and not is_mixed:
            self._attempt(prompt, partial(self._run_prompt, prompt))
            if writers:
                self._pace.count_prompt(perf_counter() - began_s)
        if self._writing:
            began_s = perf_counter()
            self._run_tokens(prompt if is_mixed else None)
            count = self._pace.count_mixed if is_mixed and prompt is not None else self._pace.count_tokens
            count(perf_counter() - began_s)
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
            account = one.writing.account
            one.writing.count(queue_ns=one.writing.now_ns - account.tokenize_ns - account.encode_ns)
            self._sit(one)

    def _room_for(self, request: Request) -> tuple[int, int] | None:
        """Return texts and tokens of the layout in which a request has a row; None: it must wait."""
        seated = [other for other in self._seats if other]
        if request.needs <= self._rows.capacity and len(seated) < self._rows.count:
            return self._rows.count, self._rows.capacity
        needs = -(-max(other.needs for other in [request, *seated]) // _GRAIN) * _GRAIN
        needs = min(needs, self._tokens)
        count = min(self._slots, self._tokens // needs)
        return (count, self._tokens // count) if count > len(seated) else None

    def _sit(self, request: Request) -> None:
        """Give a request a row, with as much of its prompt as any row holds."""
        layout = self._room_for(request)
        assert layout is not None
        if layout != (self._rows.count, self._rows.capacity):
            kept = [row for row, seat in enumerate(self._seats) if seat]
            self._rows.arrange(*layout, kept)
            self._seats = [self._seats[row] for row in kept] + [None] * (layout[0] - len(kept))
            self._left = [()] * layout[0]
            self.work += BatchWork(layouts=1)
        prompt = request.writing.tokens
        free = [row for row, seat in enumerate(self._seats) if seat is None]
        sources = range(self._rows.count) if self._rows.is_together else free
        shared = {row: min(common_start(self._held(row), prompt), len(prompt) - 1) for row in sources}
        alike = {row: self._rows.reusable(row, self._plan.reusable(count)) for row, count in shared.items()}
        source = max(alike, key=alike.__getitem__)
        stored, cache = self._stored(prompt)
        is_stored = stored > alike[source]
        row = max(free, key=lambda row: (row == source and not is_stored, -self._rows.past(row)))
        if is_stored:
            self._rows.restore(row, cache, stored)
            reused = stored
        else:
            reused = self._rows.copy(source, row, alike[source])
        self._seats[row], self._left[row] = request, ()
        request.writing.count(reused_tokens=reused)
        request.prefill_from_ns = request.writing.now_ns
        self.work += BatchWork(reused_tokens=reused)

    def _held(self, row: int) -> Sequence[int]:
        seat = self._seats[row]
        return self._left[row] if seat is None else self._reusable(seat, row)

    def _reusable(self, request: Request, row: int) -> Sequence[int]:
        writing = request.writing
        past, count = self._rows.past(row), writing.opening_tokens - self._plan.is_split
        if writing.is_shifted:  # the row holds the text from before
            past = min(past, self._kept(writing))
        return writing.tokens[: past if self._reuses_answers else min(past, count)]

    def _kept(self, writing: Writing) -> int:
        """Return how many first tokens of a text have the numbers of a prompt's behind a shift too."""
        return self._plan.kept(writing.fixed_tokens, writing.prompt_tokens)

    def _prompt_left(self, request: Request) -> int:
        return request.writing.opening_tokens - self._rows.past(self._seats.index(request))

    def _run_prompt(self, request: Request) -> None:
        """Run a part of a prompt; behind its end comes the first token, and the text joins the others.

        Where a graph of its own computes prompts, the last token of one is run as the next of its text, beside others'.
        """
        row, writing = self._seats.index(request), request.writing
        if self._plan.is_split and writing.opening_tokens > 1:
            past, end = self._rows.past(row), writing.opening_tokens - 1
            part = next(iter(self._filling(writing.tokens[:end], past, self._most_of(request))), [])
            if part:
                self._rows.run_prompt(row, part)
                self._count_prompt(writing, len(part))
            if past + len(part) == end:
                self._join(row)
            return
        part = self._next_part(request)
        logits = self._rows.run(row, part, is_prompt=not self._plan.is_split)
        if self._is_behind(request, part):
            self._take(request, writing.choose(logits[-1]))

    def _most_of(self, request: Request) -> int:
        """Return the most tokens of its prompt that run now; 0: all."""
        limits = [request.asked.chunk_tokens, self._chunk if self._writing else self._alone]
        return min((limit for limit in limits if limit), default=0)

    def _next_part(self, request: Request) -> Sequence[int]:
        past, end = self._rows.past(self._seats.index(request)), request.writing.opening_tokens
        most = self._most_of(request)
        return request.writing.tokens[past : min(past + most, end) if most else end]

    def _is_behind(self, request: Request, part: Sequence[int]) -> bool:
        """Count a part of a prompt that ran; where it was the last, let the text join those behind their prompts."""
        row, writing = self._seats.index(request), request.writing
        self._count_prompt(writing, len(part))
        if self._rows.past(row) < writing.opening_tokens:
            return False
        if not writing.answer:
            writing.count(prefill_ns=writing.now_ns - request.prefill_from_ns)
        self._join(row)
        return True

    def _filling(self, tokens: Sequence[int], past: int, most: int) -> list[Sequence[int]]:
        if self._plan.grain:
            return self._plan.filling(tokens, past, most)
        return [tokens[past : past + most] if most else tokens[past:]]

    def _count_prompt(self, writing: Writing, tokens: int) -> None:
        writing.count(computed_tokens=tokens)
        self.work += BatchWork(prompt_runs=1, prompt_tokens=tokens)

    def _join(self, row: int) -> None:
        """Let a text join those behind their prompts."""
        self._swap(row, self._writing)
        self._writing += 1

    def _run_tokens(self, prompt: Request | None = None) -> None:
        """Run the next token of each text behind its prompt, and a part of another's prompt with them."""
        writers = [seat for seat in self._seats[: self._writing] if seat]
        for request in writers:
            self._attempt(request, partial(self._run_forced, request))
        writers = [seat for seat in self._seats[: self._writing] if seat]
        last = [writer.writing.tokens[-1] for writer in writers]
        part, of_prompt = self._next_part(prompt) if prompt else (), np.empty((0, 0), np.float32)
        try:
            if prompt is not None and self._run_mixed is not None:
                row = self._seats.index(prompt)
                is_end = self._rows.past(row) + len(part) == prompt.writing.opening_tokens
                logits, of_prompt = self._run_mixed(row, part, last, is_end)
            else:
                logits = self._rows.run_first(last)
        except Exception:  # of one text perhaps: each is run alone, and who fails is ended alone
            if prompt is not None:
                self._attempt(prompt, partial(self._run_prompt, prompt))
            for request in writers:
                self._attempt(request, partial(self._run_alone, request))
            return
        self._counted(len(writers), 1 if self._rows.is_together else len(writers))
        chosen = list[tuple[Request, int]]()
        for request, row_logits in zip(writers, logits, strict=True):
            self._count_token(request)
            self._attempt(request, partial(self._choose, request, row_logits, chosen))
        if prompt is not None and self._is_behind(prompt, part):
            self._attempt(prompt, partial(self._choose, prompt, of_prompt[-1], chosen))
        # handed over behind the last choice: a reader that wakes before takes the interpreter from the next one
        for request, token in chosen:
            self._attempt(request, partial(self._take, request, token))

    def _run_forced(self, request: Request) -> None:
        """Run the tokens that the form of an answer forced, all but the last: nothing is chosen behind them."""
        row, writing = self._seats.index(request), request.writing
        past = self._rows.past(row)
        forced = writing.tokens[past:-1]
        if not forced:
            return
        self._rows.run(row, forced)
        self._counted(len(forced), 1)
        writing.count(computed_tokens=len(forced), runs=1, forced_tokens=len(forced))

    def _run_alone(self, request: Request) -> None:
        logits = self._rows.run(self._seats.index(request), request.writing.tokens[-1:])
        self._counted(1, 1)
        self._count_token(request)
        self._take(request, request.writing.choose(logits[-1]))

    def _count_token(self, request: Request) -> None:
        """Count the run of a text's last token: of a prompt's where no token of the answer is there."""
        writing = request.writing
        if writing.output_tokens:
            writing.count(computed_tokens=1, runs=1)
        else:
            writing.count(computed_tokens=1, prefill_ns=writing.now_ns - request.prefill_from_ns)

    def _choose(self, request: Request, logits: NDArray[np.float32], chosen: list[tuple[Request, int]]) -> None:
        chosen.append((request, request.writing.choose(logits)))

    def _take(self, request: Request, token: int) -> None:
        """Hand a text's next token over, and those that the form of the answer forces behind it."""
        writing = request.writing
        request.pieces.put(writing.take(token))
        while forced := writing.forced():
            for token in forced:
                request.pieces.put(writing.take(token))
                if writing.is_over:
                    break
        if writing.is_over:
            self._leave(request)
        elif writing.is_shifted:
            self._begin_again(request)

    def _begin_again(self, request: Request) -> None:
        """Let a text that was shifted run anew, in parts as a prompt does."""
        row, writing = self._seats.index(request), request.writing
        writing.is_shifted = False
        writing.opening_tokens = len(writing.tokens)
        self._rows.copy(row, row, min(self._rows.past(row), self._kept(writing)))  # states go back to nothing alone
        self._writing -= 1
        self._swap(row, self._writing)

    def _attempt(self, request: Request, act: Callable[[], None]) -> None:
        """Do something for one request: what fails ends this one, and no other."""
        try:
            act()
        except Exception as error:
            self._leave(request, error)

    def _leave(self, request: Request, error: Exception | None = None) -> None:
        """Free the row of a request; the last of the texts behind their prompts moves into a gap between them."""
        row = self._seats.index(request)
        self._left[row] = numbers_of(self._reusable(request, row)) if error is None else ()
        self._seats[row] = None
        if error is not None:
            self._rows.rewind(row, 0)
        if row < self._writing:
            self._writing -= 1
            self._swap(row, self._writing)
        self._end(request, error)

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self._rows.swap(a, b)
            self._seats[a], self._seats[b] = self._seats[b], self._seats[a]
            self._left[a], self._left[b] = self._left[b], self._left[a]

    def _end(self, request: Request, error: Exception | None = None) -> None:
        self.work += BatchWork(answers=1)
        self._count()
        request.end(error)

    def _counted(self, tokens: int, runs: int) -> None:
        self.work += BatchWork(token_runs=runs, tokens=tokens)

    def _count(self) -> None:
        self.work = replace(self.work, running=sum(map(bool, self._seats)), waiting=len(self.waiting))
