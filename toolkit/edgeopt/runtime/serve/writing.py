"""One answer on its way: written in a thread at the model's speed, read by a client at its own.

What is written waits in memory for a slow client, which is at most one answer of the context: the model and the others
do not wait for it.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from time import monotonic, perf_counter_ns
from typing import Protocol

from edgeopt.runtime.decoding.batching.prompt_turns import Scoring
from edgeopt.runtime.decoding.generation import Account, Piece
from edgeopt.runtime.decoding.sampling import TokenOdds
from edgeopt.runtime.serve.refused import RefusedError


class ServedAnswer(Protocol):
    """An answer as it is written, of whatever model."""

    @property
    def account(self) -> Account:
        """The cost so far."""
        ...

    def __enter__(self) -> ServedAnswer: ...

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[Piece]: ...

    def cancel(self) -> None:
        """End it before its next token; from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """How an answer ended."""

    account: Account
    reason: str
    """As `Account.reason`, or `time`: the limit on time ended it."""
    opening_ns: int = 0
    """Until the model was there: seconds, where nobody had asked for a while and it was let go."""


@dataclass(frozen=True, slots=True)
class PromptPiece(Piece):
    """A prompt that is repeated before its answer."""

    tokens: tuple[Piece, ...] = ()
    """Its tokens with their probabilities; none where nobody asks for these."""


@dataclass(frozen=True, slots=True)
class Echo:
    """How a prompt is repeated before its answer."""

    text: str
    tokens: Sequence[int]
    """Those that the client sent, at the end of the prompt's."""
    bytes_of: Callable[[int], bytes]
    """Returns what a token writes."""
    odds: Callable[[], Scoring] | None
    """Gives the probabilities of the prompt's tokens; None: nobody asks for them."""
    prompt_tokens: int
    """Tokens of the prompt with all that stands before it."""
    is_first: bool = True
    """Whether it is the first answer to the prompt, for which the probabilities count as computed."""


class EchoedAnswer:
    """An answer with its prompt before it, or the prompt alone."""

    def __init__(self, echo: Echo, begin: Callable[[], ServedAnswer] | None) -> None:
        """Prepare; nothing runs yet.

        Args:
            echo: How the prompt is repeated.
            begin: Gives the answer; None: nothing is written behind the prompt.
        """
        self._echo, self._begin = echo, begin
        self._answer: ServedAnswer | None = None
        self._is_cancelled, self._reason = False, ""
        self._wait_ns = self._odds_ns = 0

    @property
    def account(self) -> Account:
        """The cost so far, the prompt's probabilities included."""
        count, before_ns = self._echo.prompt_tokens, self._wait_ns + self._odds_ns
        computed = count if self._echo.odds and self._echo.is_first else 0
        account = self._answer.account if self._answer else Account(count, reason=self._reason)
        return replace(
            account,
            token_at_ns=tuple(at_ns + before_ns for at_ns in account.token_at_ns),
            queue_ns=account.queue_ns + self._wait_ns,
            prefill_ns=account.prefill_ns + self._odds_ns,
            computed_tokens=account.computed_tokens + computed,
        )

    def __enter__(self) -> EchoedAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer is not None:
            self._answer.__exit__(None, None, None)

    def __iter__(self) -> Iterator[Piece]:
        tokens = self._told()
        if self._is_cancelled:
            self._reason = "cancelled"
            return
        yield PromptPiece(self._echo.tokens[-1] if self._echo.tokens else 0, self._echo.text, 0, tokens=tokens)
        if self._begin is None:
            self._reason = "length"
            return
        self._answer = self._begin()
        if self._is_cancelled:
            self._answer.cancel()
        yield from self._answer

    def _told(self) -> tuple[Piece, ...]:
        """Return the tokens of the prompt with their probabilities, as far as nobody cancels it."""
        if self._echo.odds is None:
            return ()
        begun_ns, odds = perf_counter_ns(), list[TokenOdds]()
        with closing(self._echo.odds()) as telling:
            for each in telling:
                if each is None:
                    self._wait_ns = perf_counter_ns() - begun_ns
                if self._is_cancelled:
                    break
                odds += [each] if each is not None else []
        self._odds_ns = perf_counter_ns() - begun_ns - self._wait_ns
        own, characters = self._echo.tokens, codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(
            Piece(token, characters.decode(self._echo.bytes_of(token)), 0, each.logprob, each.likely)
            for token, each in zip(own, odds[len(odds) - len(own) :], strict=False)
        )

    def cancel(self) -> None:
        """End it before its next token; from any thread."""
        self._is_cancelled = True
        if self._answer is not None:
            self._answer.cancel()


_LAST_RUN_S = 0.5
"""An answer whose time is over ends behind the run that is on its way: so long is waited for it."""
Begin = Callable[[], AbstractContextManager[ServedAnswer]]
Event = Piece | Written | BaseException


class AnswerWriting:
    """Writes one answer; an event loop reads it."""

    def __init__(self, begin: Begin, end_s: float) -> None:
        """Prepare; nothing runs yet.

        Args:
            begin: Gives the answer, in a thread; the model stays for its block.
            end_s: When it ends at the latest, as `time.monotonic`.
        """
        self._begin, self._end_s = begin, end_s
        self._loop, self._events = asyncio.get_running_loop(), asyncio.Queue[Event]()
        self._answer: ServedAnswer | None = None
        self._is_cancelled = self._is_late = False
        self._opening_ns = 0

    def start(self, threads: Executor, over: Callable[[], None]) -> None:
        """Begin to write.

        Args:
            threads: One of them writes.
            over: Called by the event loop when nothing more is written.
        """
        done = self._loop.run_in_executor(threads, self._write)
        left_s = max(self._end_s - monotonic(), 0.0)
        timers = [
            self._loop.call_later(left_s, self._expire),
            self._loop.call_later(left_s + _LAST_RUN_S, self._give_up),
        ]

        def end(_: object) -> None:
            for timer in timers:
                timer.cancel()
            over()

        done.add_done_callback(end)

    def _expire(self) -> None:
        """End the answer: its time is over, whether or not tokens come."""
        self._is_late = True
        self.cancel()

    def _give_up(self) -> None:
        """Let the reader go where a run of the model goes on and on: its slot is free when it is over."""
        account = self._answer.account if self._answer is not None else Account()
        self._events.put_nowait(self._late(account))

    def cancel(self) -> None:
        """End the answer before its next token, or before its first run."""
        self._is_cancelled = True
        if self._answer is not None:
            self._answer.cancel()

    async def events(self) -> AsyncIterator[list[Piece] | Written]:
        """Yield all pieces that are there, each time there are any; at last how it ended.

        Raises:
            RefusedError: If the prompt does not fit.
            Exception: What broke the answer.
        """
        while True:
            event = await self._events.get()
            pieces = list[Piece]()
            while isinstance(event, Piece):
                pieces.append(event)
                if self._events.empty():
                    break
                event = self._events.get_nowait()
            if pieces:
                yield pieces
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Written):
                yield event
                return

    def _tell(self, event: Event) -> None:
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the server was ended by force: nobody reads
            self.cancel()

    def _write(self) -> None:
        begun_ns = perf_counter_ns()
        try:
            with self._begin() as answer:
                self._opening_ns = perf_counter_ns() - begun_ns
                self._answer = answer
                if self._is_cancelled:
                    answer.cancel()
                for piece in answer:
                    self._tell(piece)
            account = answer.account
            is_late = self._is_late and account.reason == "cancelled"
            self._tell(self._late(account) if is_late else Written(account, account.reason, self._opening_ns))
        except ValueError as error:
            self._tell(RefusedError(400, str(error), code="context_length_exceeded", param="prompt"))
        except BaseException as error:
            self._tell(error)

    def _late(self, account: Account) -> Event:
        """Return how an answer ends whose time is over."""
        if account.token_at_ns:
            return Written(account, "time", self._opening_ns)
        return RefusedError(503, "no token came within the time limit of this server", code="time_limit")
