"""A stream's answers, and how it has been doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeopt.graph.tensors import Sample
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stream.events import Event


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The answer for one frame."""

    index: int
    """Index of the frame among all that came in; what is missing between two results was dropped or failed."""
    name: str
    """Name of the frame in its source: a file, or `source#12`."""
    frame: Sample = field(repr=False)
    """As the source gave it; `print` leaves it out."""
    answer: Any
    """As `predict` returns it."""
    age_ns: int
    """From the capture of the frame until the answer is handed over, waiting included."""
    latency_ns: int
    """From the begin of the first stage to the answer."""
    times_ns: Mapping[str, int]
    """What each stage took; `wait` is all between capture and answer that is no stage."""
    missed: bool
    """Whether the age passed the budget."""
    artefact: str
    """File of the model that answered."""
    level: str
    """`full`, or how far the stream was degraded."""


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
    """What a frame may take from its capture to its answer."""
    answers_per_s: float | None
    """Over the last answers; None before the second."""
    waiting_growth_ratio: float | None
    """Seconds by which waiting grows in a second, over the last answers; None before the third."""
    gaps: int
    """How often the source was away."""
    gap_s: float
    """How long, all together."""
    level: str
    """`full`, or how far the stream is degraded now."""
    artefact: str
    """File of the model that answers now."""
    pipelining: Pipelining | None
    """None: not measured, since the source is slower than the model or `pipelined` was given."""
    events: tuple[Event, ...]
    """The last ones, in order of time."""
