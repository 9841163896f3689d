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
from dataclasses import dataclass
from threading import Condition
from time import monotonic
from typing import Protocol, TypeVar

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.schedule.memory import resident_bytes
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.system.machine.memory import give_back
from edgeopt.system.text import format_bytes

_MIB = 1 << 20
_SHORTEST = 16
"""Tokens: nobody is advised to take a shorter context."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Least memory of a model: known from its files before it is open, with every part once it is."""

    weights_bytes: int
    """Weights, and what engines hold of them beside the cache."""
    cache_bytes: int = 0
    """Cache of all slots, each with a whole context; 0: there is none, or it is not known yet."""
    draft_bytes: int = 0
    """Weights and cache of the smaller model that guesses; 0: there is none."""
    context: int = 0
    """Tokens of a slot."""
    slots: int = 1

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return self.weights_bytes + self.cache_bytes + self.draft_bytes

    def __str__(self) -> str:
        parts = {"weights": self.weights_bytes, "cache": self.cache_bytes, "its draft": self.draft_bytes}
        shown = [f"{name} {format_bytes(size)}" for name, size in parts.items() if size]
        return f"{format_bytes(self.total_bytes)} of memory" + (f" ({', '.join(shown)})" if len(shown) > 1 else "")

    def remedy(self, limit_bytes: int) -> str:
        """Return what would fit into so much memory, and how much all of it takes."""
        raised = f"raise --memory to {-(-self.total_bytes // _MIB)}MiB"
        fits = [*self._that_fit(limit_bytes), raised]
        return " or ".join(fits) if len(fits) > 1 else f"{raised}, or serve a smaller form of it"

    def _that_fit(self, limit_bytes: int) -> Iterator[str]:
        """Yield options with which it fits; without a draft only where the others do not suffice beside it."""
        none = f"--draft none ({format_bytes(self.total_bytes - self.draft_bytes)})"
        if self.draft_bytes and self.total_bytes - self.draft_bytes <= limit_bytes:
            yield none
        smaller = [*self._smaller_caches(limit_bytes - self.weights_bytes - self.draft_bytes)]
        if smaller or not self.draft_bytes or self.total_bytes - self.draft_bytes <= limit_bytes:
            yield from smaller
        else:
            yield from (f"--draft none {option}" for option in self._smaller_caches(limit_bytes - self.weights_bytes))

    def _smaller_caches(self, free_bytes: int) -> Iterator[str]:
        if not self.cache_bytes or free_bytes <= 0:
            return
        if (slots := free_bytes * self.slots // self.cache_bytes) and self.slots > 1:
            yield f"--slots {slots}"
        if self.context and (tokens := free_bytes * self.context // self.cache_bytes) >= _SHORTEST:
            yield f"--context {tokens}"


class Closes(Protocol):
    """A resource that can be freed."""

    def close(self) -> None:
        """Free it."""
        ...


M = TypeVar("M", bound=Closes)


class ModelMemory:
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

    def place(self, name: str, needs: MemoryNeeds) -> MemoryPlace:
        """Return the place of a model, which it has not taken yet.

        Args:
            name: Of the model.
            needs: Least memory that it takes, as far as its files tell.

        Raises:
            EdgeoptError: If it would not fit into an empty room.
        """
        self.require_possible(name, needs)
        place = MemoryPlace(self, name, needs)
        self._places.append(place)
        return place

    def require_possible(self, name: str, needs: MemoryNeeds) -> None:
        """Raise where a model does not fit into an empty memory.

        Raises:
            EdgeoptError: If so.
        """
        if self.limit_bytes is not None and needs.total_bytes > self.limit_bytes:
            problem = f"{name} takes {needs}, more than --memory {format_bytes(self.limit_bytes)}"
            raise EdgeoptError(problem, remedy=needs.remedy(self.limit_bytes))

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
    """One model's part of the memory."""

    def __init__(self, room: ModelMemory, name: str, needs: MemoryNeeds) -> None:
        """Bind to the memory that makes it."""
        self._room, self.name, self.size_bytes = room, name, needs.total_bytes
        self._least = needs
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
        needs = max(self._least, getattr(model, "needs", self._least), key=lambda needs: needs.total_bytes)
        seen = resident_bytes() - before if is_alone and self._is_alone() else 0  # the first has the libraries' too
        try:
            self._room.require_possible(self.name, needs)
        except EdgeoptError:
            model.close()
            self.left()
            raise
        with self._room._changed:
            self.size_bytes = max(needs.total_bytes, seen)
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
