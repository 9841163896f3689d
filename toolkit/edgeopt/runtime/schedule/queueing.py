"""Frames that wait: which one is served next, and which one is given up; in an app and in a measurement alike."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from edgeopt.errors import EdgeoptError

T = TypeVar("T")


class QueueKind(StrEnum):
    """The fate of a frame that arrives while all workers are busy."""

    FIFO = "fifo"
    """It waits, however long."""
    BOUNDED = "bounded"
    """It waits if there is room, else it is refused."""
    LATEST = "latest"
    """It takes the place of the older frame of its stream, which is given up."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The kind of queue, and the room of a bounded one."""

    kind: QueueKind
    depth: int = 0
    """Bounded: frames of all streams that may wait."""

    def __post_init__(self) -> None:
        if (self.depth > 0) != (self.kind is QueueKind.BOUNDED):
            raise ValueError(f"a {self.kind} queue has no depth {self.depth}")

    def __str__(self) -> str:
        return f"{self.kind}:{self.depth}" if self.depth else self.kind.value


FIFO = QueuePolicy(QueueKind.FIFO)
LATEST = QueuePolicy(QueueKind.LATEST)


def parse_queue(text: str) -> QueuePolicy:
    """Return the policy for `fifo`, `bounded:8` or `latest`.

    Raises:
        EdgeoptError: If the text is none of these, or the depth is not above zero.
    """
    if text.strip() in ("fifo", "latest"):
        return QueuePolicy(QueueKind(text.strip()))
    match = re.fullmatch(r"bounded:([0-9]+)", text.strip())
    if match and int(match[1]) > 0:
        return QueuePolicy(QueueKind.BOUNDED, int(match[1]))
    raise EdgeoptError(f"{text!r} is not a queue", remedy="write fifo, bounded:8 or latest")


class Queue(Generic[T]):
    """The waiting frames under one policy, or their rows in a timetable."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._waiting: deque[T] = deque()
        self._streams: deque[int] = deque()
        self._newest: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._streams) if self._policy.kind is QueueKind.LATEST else len(self._waiting)

    def offer(self, item: T, stream: int = 0) -> T | None:
        """Let an item wait; return the one that is given up for it (perhaps itself), or None."""
        policy = self._policy
        if policy.kind is QueueKind.LATEST:
            older, self._newest[stream] = self._newest.get(stream), item
            if older is None:
                self._streams.append(stream)  # a newer item keeps the place, so no stream starves another
            return older
        if policy.depth and len(self._waiting) >= policy.depth:
            return item
        self._waiting.append(item)
        return None

    def take(self) -> T | None:
        """Return what has waited longest (latest: the newest of that stream), or None."""
        if self._policy.kind is QueueKind.LATEST:
            return self._newest.pop(self._streams.popleft()) if self._streams else None
        return self._waiting.popleft() if self._waiting else None
