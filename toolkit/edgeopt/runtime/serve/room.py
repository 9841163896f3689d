"""Memory that several models share: who is closed for whom, and who waits.

A model that is asked for and not in memory takes its place there. Where that does not fit, the model that was used
least recently goes; one that is answering goes when its answers are over, and takes no new ones until then, so that a
busy model starves nobody. Places are taken in the order in which they were asked for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from time import monotonic
from typing import Protocol, TypeVar

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.schedule.memory import resident_bytes
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.system.machine.memory import give_back
from edgeopt.system.text import format_bytes

_REMEDY = "raise --memory, or serve a smaller form of it"


class Closes(Protocol):
    """A resource that can be freed."""

    def close(self) -> None:
        """Free it."""
        ...


M = TypeVar("M", bound=Closes)


class Room:
    """The memory of all models of a server; any number of threads may use it."""

    def __init__(self, limit_bytes: int | None = None, patience_s: float = 300.0) -> None:
        """Begin empty.

        Args:
            limit_bytes: Memory of all models together; None: no limit.
            patience_s: How long a request waits for memory at most.
        """
        self.limit_bytes, self._patience_s = limit_bytes, patience_s
        self._changed = Condition()
        self._places, self._queue = list[MemoryPlace](), deque[MemoryPlace]()
        self._is_closed = False

    def place(self, name: str, needed_bytes: int) -> MemoryPlace:
        """Return the place of a model, which it has not taken yet.

        Args:
            name: Of the model.
            needed_bytes: Least memory that it takes, as far as its files tell.

        Raises:
            EdgeoptError: If it would not fit into an empty room.
        """
        self.require_possible(name, needed_bytes)
        place = MemoryPlace(self, name, needed_bytes)
        self._places.append(place)
        return place

    def require_possible(self, name: str, needed_bytes: int) -> None:
        """Raise where a model does not fit into an empty room.

        Raises:
            EdgeoptError: If so.
        """
        if self.limit_bytes is not None and needed_bytes > self.limit_bytes:
            needs, limit = format_bytes(needed_bytes), format_bytes(self.limit_bytes)
            raise EdgeoptError(f"{name} takes {needs} of memory, more than --memory {limit}", remedy=_REMEDY)

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self, end_s: float, name: str) -> None:
        """Wait for a change.

        Raises:
            RefusedError: If the time is over, or the room closed.
        """
        if self._is_closed:
            raise RefusedError(503, "the server ends", code="server_ends")
        if not self._changed.wait(max(end_s - monotonic(), 0.0)) and monotonic() >= end_s:
            text = f"{name} found no memory within {self._patience_s:g} s: the other models are answering"
            raise RefusedError(503, text, code="memory_timeout")

    def _going_for(self, place: MemoryPlace) -> list[MemoryPlace]:
        """Return who goes for a place: idle models first, then those used least recently; none where it fits."""
        taken = [other for other in self._places if other.is_taken and other is not place]
        over = sum(other.size_bytes for other in taken) + place.size_bytes - (self.limit_bytes or math.inf)
        going = list[MemoryPlace]()
        for other in sorted(taken, key=lambda other: (other.users > 0, other.used_s)):
            if over <= 0:
                break
            going.append(other)
            over -= other.size_bytes
        return going

    def trim(self) -> None:
        """Close idle models where those in memory turned out to take more than they may."""
        while (other := self._surplus()) is not None:
            other.free()
            give_back()

    def _surplus(self) -> MemoryPlace | None:
        with self._changed:
            taken = sorted((place for place in self._places if place.is_taken), key=lambda place: place.used_s)
            if sum(place.size_bytes for place in taken) <= (self.limit_bytes or math.inf):
                return None
            return next((place for place in taken[:-1] if not place.users), None)


class MemoryPlace:
    """One model's part of the room."""

    def __init__(self, room: Room, name: str, needed_bytes: int) -> None:
        """Bind to a room, which makes it."""
        self._room, self.name, self.size_bytes = room, name, needed_bytes
        self._least_bytes = needed_bytes
        self.is_taken = False
        self.users = 0
        """Requests that use the model now, or wait for it."""
        self.used_s = monotonic()
        self._is_leaving = False
        self.free: Callable[[], object] = lambda: None
        """Frees the model, which nobody uses."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the model in memory for the block, once it is there; wait while it is about to go.

        Raises:
            RefusedError: If that takes too long.
        """
        room = self._room
        with room._changed:
            end_s = monotonic() + room._patience_s
            while self._is_leaving:
                room._wait(end_s, self.name)
            self.users += 1
        try:
            yield
        finally:
            with room._changed:
                self.users -= 1
                self.used_s = monotonic()
                room._changed.notify_all()
            room.trim()

    def fill(self, open_model: Callable[[], M]) -> M:
        """Return the model, opened when there is memory for it.

        Raises:
            RefusedError: If others did not leave in time.
            EdgeoptError: If it does not open, or its weights and cache take more than the whole room.
        """
        self._take()
        is_alone, before = self._is_alone(), resident_bytes()
        try:
            model = open_model()
        except BaseException:
            self.left()
            raise
        model_bytes = int(getattr(model, "memory_bytes", 0))
        seen = resident_bytes() - before if is_alone and self._is_alone() else 0  # the first has the libraries' too
        try:
            self._room.require_possible(self.name, max(self._least_bytes, model_bytes))
        except EdgeoptError:
            model.close()
            self.left()
            raise
        with self._room._changed:
            self.size_bytes = max(self._least_bytes, model_bytes, seen)
        self._room.trim()
        return model

    def left(self) -> None:
        """Give the memory back: the model is closed."""
        with self._room._changed:
            self.is_taken = self._is_leaving = False
            self._room._changed.notify_all()

    def _is_alone(self) -> bool:
        """Return whether no other model is being used, so that memory that came or went is this one's."""
        with self._room._changed:
            return not any(other.users for other in self._room._places if other is not self)

    def _take(self) -> None:
        room = self._room
        with room._changed:
            if self.is_taken:  # it broke, and is opened anew
                return
            room._queue.append(self)
        try:
            self._make_room()
        finally:
            with room._changed:
                room._queue.remove(self)
                for other in room._places:
                    other._is_leaving = False
                room._changed.notify_all()

    def _make_room(self) -> None:
        """Take the memory, and close others until this model fits.

        Raises:
            RefusedError: If they did not leave in time.
        """
        end_s = monotonic() + self._room._patience_s
        while (other := self._next_to_go(end_s)) is not None:
            other.free()
            give_back()

    def _next_to_go(self, end_s: float) -> MemoryPlace | None:
        """Return an idle model that goes next, waiting for one; None: this one fits and has taken its place."""
        room = self._room
        with room._changed:
            while True:
                if room._queue[0] is self:
                    going = room._going_for(self)
                    if not going:
                        self.is_taken = True
                        return None
                    for other in room._places:
                        other._is_leaving = other in going
                    if not going[0].users:
                        return going[0]
                room._wait(end_s, self.name)
