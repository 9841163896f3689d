"""The events of a stream besides answers: each change with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """The kinds of events of a stream."""

    GAP = "gap"
    """The source was away and came back."""
    STALLED = "stalled"
    """The source has sent no frame for a while."""
    ENDED = "ended"
    """A video has fewer frames than its header tells."""
    FULL = "full"
    """Waiting frames have reached their limit of memory."""
    FAILED = "failed"
    """A frame's run ended in an error."""
    HUNG = "hung"
    """A frame's run did not end, and the frame counts as failed."""
    DEGRADED = "degraded"
    """Frames are skipped, or a lighter model is used, to keep the budget."""
    RECOVERED = "recovered"
    """A level of degradation was left."""
    PIPELINING = "pipelining"
    """It was measured whether overlapping stages pays."""
    DRIFT = "drift"
    """Frames are no longer like those of calibration, or are like them again."""
    LEFT_BEHIND = "left_behind"
    """A thread of the stream stays in a call that does not return."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a stream."""

    kind: EventKind
    """Kind of the event."""
    at_s: float
    """Seconds since the stream began."""
    frame: int
    """Number of frames that had come in."""
    reason: str
    """The event in words for a person."""

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s, frame {self.frame}: {self.kind}: {self.reason}"
