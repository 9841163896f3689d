"""The events of a stream besides answers: each change with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """The subject of an event."""

    GAP = "gap"
    """The source was away and came back."""
    STALLED = "stalled"
    """The source has given no frame for a while."""
    FULL = "full"
    """Frames that wait have reached the memory they may take."""
    FAILED = "failed"
    """A frame's run ended in an error."""
    HUNG = "hung"
    """A frame's run did not end, and was given up."""
    DEGRADED = "degraded"
    """Less is done for each second, so that the budget is kept."""
    RECOVERED = "recovered"
    """There is room again for more."""
    PIPELINING = "pipelining"
    """Whether stages overlap, as measured."""
    DRIFT = "drift"
    """Frames are no longer like those of calibration, or are so again."""
    LEFT_BEHIND = "left_behind"
    """A thread of the stream is still in a call that does not return."""


@dataclass(frozen=True, slots=True)
class Event:
    """One of them."""

    kind: EventKind
    """What kind of thing happened."""
    at_s: float
    """Since the stream began."""
    frame: int
    """How many frames had come in."""
    reason: str
    """What happened, in words for a person."""

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s, frame {self.frame}: {self.kind}: {self.reason}"
