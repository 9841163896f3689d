"""A stream's answers, and how it has been doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeopt.graph.tensors import ReducedPicture, Sample
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stream.events import Event


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The answer for one frame."""

    index: int
    """Index of the frame among all that came in; frames missing between two results were dropped or failed."""
    name: str
    """Name of the frame in its source: a file, or `source#12`."""
    sample: Sample = field(repr=False)
    """The frame as it was fed; of a JPEG that was decoded at a part of its size, that part. `print` leaves it out."""
    answer: Any
    """The answer as `predict` returns it."""
    age_ns: int
    """Time from the capture of the frame until you get the answer, waiting included."""
    latency_ns: int
    """Time from the beginning of the first stage to the answer."""
    times_ns: Mapping[str, int]
    """Time of each stage; `wait` is all other time between capture and answer."""
    missed: bool
    """Whether the age exceeded the budget."""
    artefact: str
    """File of the model that answered."""
    level: str
    """`full`, or how far the stream was degraded."""

    @property
    def frame(self) -> Sample:
        """The frame as the source gave it, in its whole size: a part is enlarged each time that it is asked for."""
        return self.sample.enlarged() if isinstance(self.sample, ReducedPicture) else self.sample


@dataclass(frozen=True, slots=True)
class Pipelining:
    """The gain of overlapping stages on the first frames."""

    used: bool
    """Whether the preprocess of the next frame runs beside the execute of this one."""
    serial_period_ms: float
    """Median time between two answers, one frame after the other."""
    pipelined_period_ms: float
    """The same with stages overlapped."""
    added_age_ms: float
    """How much older the median answer is for it."""


@dataclass(frozen=True, slots=True)
class StreamStats(Stats):
    """Counts since the start, times of the last frames (`stages` begins with `wait`), and what happened."""

    queue: str
    """Which frames wait: `latest`, `fifo` or `bounded:8`."""
    budget_ms: float
    """Time that a frame may take from its capture to its answer."""
    answers_per_s: float | None
    """Rate of the last answers; None before the second answer."""
    waiting_growth_ratio: float | None
    """Seconds by which the wait grows each second, over the last answers; None before the third answer."""
    gaps: int
    """Number of times that the source was away."""
    gap_s: float
    """Total time for which the source was away."""
    level: str
    """`full`, or how far the stream is degraded now."""
    artefact: str
    """File of the model that answers now."""
    pipelining: Pipelining | None
    """Measured gain of overlapping stages; None: not measured, since the source is slower than the model or `pipelined`
    was given."""
    events: tuple[Event, ...]
    """The last events, in order of time."""
