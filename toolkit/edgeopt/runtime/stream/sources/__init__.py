"""Where frames come from, one file each: a camera, a video, an address, pictures, an iterator.

Each ends in `SOURCE`, a `StreamKind`: whether it fits what was given, and how it is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from edgeopt.errors import EdgeoptError, Note
from edgeopt.graph.tensors import Sample
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.stream.events import EventKind
from edgeopt.system.declared import registry
from edgeopt.system.text import short


@dataclass(frozen=True, slots=True)
class Captured:
    """A frame as it comes."""

    sample: Sample
    name: str
    stream: int = 0
    """Which sequence it belongs to: a recurrent model begins each anew."""


class Watch(Protocol):
    """The part of a stream that a source may see."""

    @property
    def now_ns(self) -> int:
        """The time."""
        ...

    def pause(self, seconds: float) -> bool:
        """Wait; return False as soon as the stream is stopped."""
        ...

    def wait_until(self, instant_ns: int) -> bool:
        """Wait for an instant; return False as soon as the stream is stopped."""
        ...

    def tell(self, kind: EventKind, reason: str) -> None:
        """Tell of something that happened."""
        ...

    def gap(self, seconds: float, reason: str) -> None:
        """Tell of a time in which the source was away."""
        ...


class Source(Protocol):
    """An open source. One thread reads it."""

    @property
    def name(self) -> str:
        """The source's name for people; no password."""
        ...

    @property
    def fps(self) -> float | None:
        """The rate that is written on it; None: it says nothing."""
        ...

    @property
    def holds(self) -> str:
        """The kind of one frame, as `Frames.kind` calls it; `sample` for the model's inputs themselves."""
        ...

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes to read before it begins."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether frames are lost that nobody takes, as those of a camera."""
        ...

    @property
    def is_paced(self) -> bool:
        """Whether frames come at a rate of the source's own, however fast they are taken."""
        ...

    @property
    def count(self) -> int | None:
        """How many frames it has; None: not known."""
        ...

    def read(self, watch: Watch) -> Captured | None:
        """Return the next frame, waiting for it; None after the last, or when the stream is stopped.

        Raises:
            EdgeoptError: If it gives no more frames though it should.
        """
        ...

    def close(self) -> None:
        """Let go of the device or file. Called once, by the thread that reads."""
        ...


@dataclass(frozen=True, slots=True)
class Wishes:
    """A stream's wishes of a source."""

    fps: float | None
    """A camera is asked for it."""
    give_up_s: float
    """A source that was away so long is gone."""
    fit: Callable[[Frames], Frames] = lambda frames: frames
    """Brings stored arrays into the model's shapes and types."""


@dataclass(frozen=True, slots=True)
class StreamKind:
    """One kind of source."""

    example: str
    """As a person writes it."""
    fits: Callable[[Any], bool]
    """Whether what was given is of this kind; no two kinds fit the same."""
    open: Callable[[Any, Wishes], Source]
    """Raises an EdgeoptError where it does not open."""


def open_source(given: Any, wishes: Wishes) -> Source:
    """Open a source of whatever kind fits.

    Args:
        given: A camera's number, a path, an address, or frames to iterate over.
        wishes: What a stream asks of it.

    Raises:
        EdgeoptError: If no kind fits, or it does not open.
    """
    from edgeopt.runtime.stream import sources

    kinds = [registry.load(sources, name).SOURCE for name in registry.names(sources)]
    for kind in kinds:
        if kind.fits(given):
            opened: Source = kind.open(given, wishes)
            return opened
    raise EdgeoptError(
        f"{short(given)} is no source of frames", remedy=f"pass {', '.join(sorted(kind.example for kind in kinds))}"
    )
