"""One answer among several: what its writer keeps of it, and what its caller holds."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event

from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece, Writing
from edgeopt.system.processes.closing import Closing


class Request:
    """An answer on its way, between the thread that writes it and the one that reads it."""

    def __init__(self, writing: Writing, asked: AnswerOptions, priority: int, order: int, needs: int) -> None:
        """Take a text that has its prompt.

        Args:
            writing: The text.
            asked: What the answer may be.
            priority: The higher, the sooner.
            order: In which requests came.
            needs: Tokens that its row of the cache must have room for.
        """
        self.writing, self.asked, self.priority, self.order, self.needs = writing, asked, priority, order, needs
        self.overtaken = 0
        """How many later requests got a slot before it."""
        self.is_cancelled = False
        self.is_done = Event()
        self.pieces: SimpleQueue[Piece | Exception | None] = SimpleQueue()
        self.prefill_from_ns = 0

    def end(self, error: Exception | None = None) -> None:
        """Let the reader know that nothing follows, or why."""
        self.writing.break_off()
        self.pieces.put(error)
        self.is_done.set()


class SharedAnswer(Closing):
    """An answer that is written beside others: iterate over it for its pieces. It goes on whether or not it is read."""

    def __init__(self, request: Request) -> None:
        """Hold a request; where nobody holds it any longer, it is cancelled."""
        self._request, self._is_over = request, False

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        if self._is_over or self._request.is_cancelled:
            raise StopIteration
        result = self._request.pieces.get()
        if isinstance(result, Piece):
            return result
        self._is_over = True
        if result is None:
            raise StopIteration
        raise result

    def __del__(self) -> None:
        self.cancel()

    @property
    def account(self) -> Account:
        """The cost of the answer so far."""
        return self._request.writing.account

    def cancel(self) -> None:
        """End the answer before its next token; from any thread."""
        if self._request.is_done.is_set():
            return
        self._request.is_cancelled = True
        self._request.pieces.put(None)  # who waits for a piece waits no longer

    def close(self) -> None:
        """Give the slot back, and wait until it is free; the answer is over."""
        self.cancel()
        self._request.is_done.wait()

    def text(self) -> str:
        """Return the rest of the answer at once."""
        return "".join(piece.text for piece in self)
