"""Frames that keep coming: capture, waiting, deadlines, and doing less when there is no time for all."""

from edgeopt.runtime.stream.degradation import Degradation
from edgeopt.runtime.stream.events import Event, EventKind
from edgeopt.runtime.stream.result import Pipelining, StreamResult, StreamStats
from edgeopt.runtime.stream.stream import Stream

__all__ = ["Degradation", "Event", "EventKind", "Pipelining", "Stream", "StreamResult", "StreamStats"]
