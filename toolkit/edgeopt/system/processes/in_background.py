"""Work that goes on in a thread while others work: hashing and reading leave a core free that opening a model needs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class InBackground(Generic[T]):
    """One piece of work that is begun at once."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Begin it.

        Args:
            work: Touches nothing that others work on meanwhile.
        """
        self._work, self._result, self._error = work, list[T](), list[BaseException]()
        self._thread = Thread(target=self._do, name="edgeopt-background", daemon=True)
        self._thread.start()

    def take(self) -> T:
        """Wait until it is done and return what it made, or raise what it raised, each time anew."""
        self._thread.join()
        if self._error:
            raise self._error[0]
        return self._result[0]

    def _do(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # raised where it is taken
            self._error.append(error)
