"""A model that is there while it is asked for, and frees its memory when it was not for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.serve.model_memory import Closes, MemoryPlace

M = TypeVar("M", bound=Closes)


class _Opened(Generic[M]):
    def __init__(self, model: M) -> None:
        self.model, self.users = model, 0


class Holder(Generic[M]):
    """One model, for any number of threads."""

    def __init__(
        self, open_model: Callable[[], M], keep_s: float | None = None, place: MemoryPlace | None = None
    ) -> None:
        """Open the model: what is wrong with it is known before the first request.

        Args:
            open_model: Opens it, warm.
            keep_s: Idle time after which it is freed; None: never.
            place: Its part of the memory that several models share; None: it has it for itself.
        """
        self._open, self._keep_s, self._place = open_model, keep_s, place
        self._turn, self._used_s = Lock(), monotonic()
        self._opened: _Opened[M] | None = None
        self.loads = 0
        """How often it was opened."""
        if place is not None:
            place.free = self._free
        with self.held():
            pass

    def _fresh(self) -> M:
        return self._open() if self._place is None else self._place.fill(self._open)

    @property
    def is_loaded(self) -> bool:
        """Whether a request finds it open."""
        return self._opened is not None

    @contextmanager
    def held(self) -> Iterator[M]:
        """Give the model, opened again where it was freed or broke; it stays for the block.

        Raises:
            RefusedError: If other models leave it no memory in time.
            EdgeoptError: If it does not open.
        """
        with nullcontext() if self._place is None else self._place.used(), self._leased() as model:
            yield model

    @contextmanager
    def held_if_loaded(self) -> Iterator[M | None]:
        """Give the model where it is open, without a wait; None where it is not. It stays for the block."""
        with self._turn:
            opened = self._opened
            if opened is not None:
                opened.users += 1
        if opened is None:
            yield None
            return
        with self._used(opened) as model:
            yield model

    @contextmanager
    def _leased(self) -> Iterator[M]:
        with self._turn:
            if self._opened is None:
                self._opened = _Opened(self._fresh())
                self.loads += 1
            opened = self._opened
            opened.users += 1
        with self._used(opened) as model:
            yield model

    @contextmanager
    def _used(self, opened: _Opened[M]) -> Iterator[M]:
        """Give a model that counts one more user, which is gone behind the block."""
        is_broken = False
        try:
            yield opened.model
        except EdgeoptError:
            is_broken = True  # the engine failed, or the model closed itself: the next request opens it anew
            raise
        finally:
            with self._turn:
                opened.users -= 1
                self._used_s = monotonic()
                self._opened = None if is_broken and self._opened is opened else self._opened
                is_last = self._opened is not opened and not opened.users
            if is_last:
                opened.model.close()

    def free_if_idle(self) -> bool:
        """Free the model where nobody used it for long enough; return whether it was."""
        if self._keep_s is None or not self._turn.acquire(blocking=False):
            return False
        try:
            if self._opened is None or self._opened.users or monotonic() - self._used_s < self._keep_s:
                return False
            self._end()
        finally:
            self._turn.release()
        return True

    def _free(self) -> None:
        """Free the model for another, unless somebody uses it."""
        with self._turn:
            if self._opened is None or not self._opened.users:
                self._end()

    def _end(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.model.close()
        if self._place is not None:
            self._place.left()

    def close(self) -> None:
        """Free the model."""
        with self._turn:
            self._end()
