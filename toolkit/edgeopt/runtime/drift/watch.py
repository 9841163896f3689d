"""A watch over the frames of a running app: at most so many false alarms a week, in constant time a frame.

Two charts for each figure and direction: one for what moves by two standard deviations and more, which it finds within
ten looks, one for what moves by one. Assumed is that frames that are looked at are drawn independently of each other:
at 30 frames a second every 15th, half a second apart. A camera that never moves shows one scene instead of many: its
own sketch (`DriftWatch.learned`) says what is usual there, the sketch of calibration does not.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.runtime.drift.figures import FigureReader, Figures, of_answer, reader_of
from edgeopt.runtime.drift.sketch import LEAST_FRAMES, MOST_FRAMES, Sketch, sketch_of, surprise
from edgeopt.runtime.drift.state import SURPRISE, WORDS, DriftKind, DriftState, FieldDrift
from edgeopt.system.text import plural
from edgeopt.tasks import FrameTask

EVERY: Final = 15
"""Frames from one look to the next, at least, where nobody says otherwise."""
MOST_SHARE: Final = 0.005
"""Share of the frames' time that looks may take then: models of a millisecond are looked at less often."""
_PACED: Final = 9
"""Looks whose median time decides that."""
_TOLERANCES: Final = (1.0, 0.5)
_RECENT: Final = 0.1
"""Share of the newest look in the shift that is shown: about the last ten."""


@dataclass(slots=True)
class _Chart:
    """One figure, one direction, one tolerance."""

    figure: str
    direction: int
    tolerance: float
    limit: float
    sum: float = 0.0
    scores: float = 0.0
    looks: int = 0
    since_frame: int = 0
    is_over_limit: bool = False

    def add(self, score: float, frame: int) -> bool:
        """Add a score; return whether the chart crossed its limit, or came back to zero after that."""
        if self.sum == 0:
            self.since_frame, self.scores, self.looks = frame, 0.0, 0
        self.scores += score
        self.looks += 1
        self.sum = min(max(self.sum + self.direction * score - self.tolerance, 0.0), self.limit)
        is_over_limit = self.sum >= self.limit or (self.is_over_limit and self.sum > 0)
        changed, self.is_over_limit = is_over_limit != self.is_over_limit, is_over_limit
        return changed

    @property
    def kind(self) -> DriftKind:
        return WORDS[self.figure, self.direction][0]

    def drift_at(self, frame: int) -> FieldDrift:
        return FieldDrift(self.kind, self.figure, self.direction > 0, self.scores / self.looks, self.since_frame, frame)


@dataclass(slots=True)
class _Learned:
    """Looks over a long time in little memory: where it is full, every second is let go, and half as many come in."""

    looks: list[tuple[Figures, tuple[int, ...]]] = field(default_factory=list)
    spacing: int = 1
    seen: int = 0

    def add(self, figures: Figures, classes: tuple[int, ...]) -> None:
        if self.seen % self.spacing == 0:
            self.looks.append((figures, classes))
        self.seen += 1
        if len(self.looks) > MOST_FRAMES:
            self.looks = self.looks[::2]
            self.spacing *= 2


class DriftWatch:
    """Compares frames with a sketch. Any number of threads may record frames."""

    def __init__(
        self,
        sketch: Sketch | None,
        *,
        fps: float = 30.0,
        false_alarms_per_week: float = 1.0,
        every: int | None = None,
        on_drift: Callable[[FieldDrift], None] | None = None,
    ) -> None:
        """Begin to watch.

        Args:
            sketch: The sketch with which frames are compared; None: no comparison, the watch only learns.
            fps: Frames a second, from which the length of a week in frames follows.
            false_alarms_per_week: Highest rate of false alarms, over all figures together, without nightfall.
            every: Frames from one look to the next, enough that pictures are no longer alike. None: 15, or more so that
                looks take at most 0.5 % of the frames' time, as measured in the first nine looks.
            on_drift: Called when a drift begins or ends, in the thread of the frame; it must not wait.

        Raises:
            EdgeoptError: If a number is out of range, or the sketch has too few frames for such a low rate of false
                alarms.
        """
        if not is_rate(fps) or not is_rate(false_alarms_per_week):
            problem = f"a watch at {fps:g} frames a second with {false_alarms_per_week:g} false alarms a week"
            raise EdgeoptError(problem, remedy="pass numbers above 0, such as 30 and 1")
        if every is not None and every < 1:
            raise EdgeoptError(f"a watch that looks at every {every} frames", remedy="pass 1 or more, such as 15")
        self.sketch, self.every = sketch, every or EVERY
        self._pace: list[float] | None = [] if every is None else None
        """Shares of the first looks in the time of their frames; None: nobody asks for these, or they told."""
        self._due = self._place = 0
        self._listeners = [on_drift] if on_drift else []
        self._frames = self._looks = 0
        self._turn = Lock()
        self._reader: FigureReader | None = sketch.reader if sketch else None
        self._learned = _Learned()
        self._artefact = sketch.artefact if sketch else ""
        self._began = dict.fromkeys(map(str, DriftKind), 0)
        self._active: dict[DriftKind, FieldDrift] = {}
        self._shifts: dict[str, float] = {}
        values = sketch.values if sketch else {}
        self._values = {name: values[name] for name in values if (name, 1) in WORDS}
        self._sums = {name: [0.0, *np.cumsum(normal_scores(len(each))).tolist()] for name, each in self._values.items()}
        """Figure -> the sums of the scores below each rank: the mean of a run of equal values is at hand."""
        self._classes = {int(index): number for index, number in sketch.classes.items()} if sketch else {}
        self._charts = self._charts_for(false_alarms_per_week / looks_per_week(fps, self.every))

    def _charts_for(self, rate_per_look: float) -> dict[str, tuple[_Chart, ...]]:
        """Return the charts of each figure.

        Raises:
            EdgeoptError: If no limit is high enough for the rate.
        """
        charts = 2 * len(_TOLERANCES) * max(len(self._values), 1)
        limits = {
            (size, tolerance): limit_of(size, tolerance, rate_per_look / charts)
            for size in {len(listed) for listed in self._values.values()}
            for tolerance in _TOLERANCES
        }
        made = {
            name: tuple(
                _Chart(name, direction, tolerance, limit)
                for direction in (1, -1)
                for tolerance in _TOLERANCES
                if (limit := limits[len(listed), tolerance]) is not None
            )
            for name, listed in self._values.items()
        }
        if self.sketch and not any(made.values()):
            problem = f"a sketch of {self.sketch.frames} frames is too small for so few false alarms"
            raise EdgeoptError(problem, remedy="calibrate with more frames, such as 128, or allow more false alarms")
        return made

    def listen(self, listener: Callable[[FieldDrift], None]) -> Callable[[], None]:
        """Call another listener when a drift begins or ends; return a function that stops this."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    @property
    def reader(self) -> FigureReader | None:
        """The reader of figures; None before the first frame of a watch that only learns."""
        return self._reader

    def is_due(self) -> bool:
        """Count a frame, and return whether to look at it."""
        with self._turn:
            number, self._frames = self._frames, self._frames + 1
            is_due = number >= self._due
            if is_due:
                self._due = number + self.every
        return is_due

    def spent(self, look_ns: int, frame_ns: int) -> None:
        """Take the times of a look and of its frame; without `every` they set the distance of the next looks."""
        if self._pace is None or frame_ns <= 0:
            return
        with self._turn:
            self._pace = [*(self._pace or ()), look_ns / frame_ns]
            if len(self._pace) >= _PACED:
                share, self._pace = float(np.median(self._pace)), None
                self.every = max(EVERY, math.ceil(share / MOST_SHARE))

    def look(self, inputs: Tensors, specs: Sequence[TensorSpec]) -> Figures:
        """Return the figures of a frame's inputs."""
        if self._reader is None:
            self._reader = reader_of(specs, inputs, "", {})
        return self._reader.of_inputs(inputs)

    def record(self, figures: Figures, task: FrameTask, outputs: Tensors, answer: Any, artefact: str) -> None:
        """Compare a frame.

        Args:
            figures: Figures of the frame's inputs, from `look`.
            task: The task that made the answer.
            outputs: Outputs of the model.
            answer: The answer; None: the app took the raw outputs.
            artefact: File of the model that answered; answers are compared only if the sketch is of the same model.
        """
        classes: tuple[int, ...] = ()
        self._artefact = self._artefact or artefact
        if artefact == self._artefact and self._reader is not None:
            figures = {**figures, **self._reader.of_outputs(outputs)}
            if answer is not None:
                figures |= of_answer(task, answer)
                classes = tuple(task.classes_in(answer))
        self.compare(figures, classes)

    def compare(self, figures: Figures, classes: tuple[int, ...]) -> None:
        """Compare the figures of a frame, and the classes that its answer names."""
        with self._turn:
            changes = self._add(figures, classes)
        for drift in changes:
            for listener in tuple(self._listeners):
                listener(drift)

    def _add(self, figures: Figures, classes: tuple[int, ...]) -> Sequence[FieldDrift]:
        """Add a look to the charts; return what begins and what is over."""
        frame, changes = self._place, list[FieldDrift]()
        self._place += self.every
        self._looks += 1
        self._learned.add(figures, classes)
        if SURPRISE in self._values:
            figures = {**figures, SURPRISE: surprise(classes, self._classes)}
        for name, charts in self._charts.items():
            value = figures.get(name)
            if value is None or value != value:  # NaN: the frame says nothing of it
                continue
            listed = self._values[name]
            below, upto = bisect_left(listed, value), bisect_right(listed, value)
            sums = self._sums[name]
            score = (sums[upto + 1] - sums[below]) / (upto - below + 1)  # equal values: E[exp(mean)] <= E[exp(drawn)]
            self._shifts[name] = self._shifts.get(name, 0.0) * (1 - _RECENT) + score * _RECENT
            for chart in charts:
                is_at_rest = not chart.sum and chart.direction * score <= chart.tolerance  # most are, most of the time
                if not is_at_rest and chart.add(score, frame):
                    changes += self._changed(chart, frame)
        return changes

    def _changed(self, chart: _Chart, frame: int) -> Sequence[FieldDrift]:
        """Return what a chart that crossed its limit, or came back, begins or ends: one drift of a kind at a time."""
        kind = chart.kind
        if chart.is_over_limit and kind not in self._active:
            self._active[kind] = drift = chart.drift_at(frame)
            self._began[str(kind)] += 1
            return [drift]
        listed = (other for charts in self._charts.values() for other in charts)
        if chart.is_over_limit or any(other.is_over_limit for other in listed if other.kind is kind):
            return []
        began = self._active.pop(kind, None)
        return [replace(began, is_over=True, frame=frame, since_frame=frame)] if began else []

    def state(self) -> DriftState:
        """Return the state of the watch."""
        with self._turn:
            levels = {
                name: max((1.0 if chart.is_over_limit else chart.sum / chart.limit for chart in charts), default=0.0)
                for name, charts in self._charts.items()
            }
            active, shifts = tuple(self._active.values()), dict(self._shifts)
            return DriftState(self._frames, self._looks, dict(self._began), active, levels, shifts)

    def learned(self) -> Sketch:
        """Return a sketch of the frames so far, spread over the whole time.

        Raises:
            EdgeoptError: If fewer than 32 frames were looked at.
        """
        with self._turn:
            looks, reader = list(self._learned.looks), self._reader
        sketch = sketch_of(self._artefact, "field", reader, looks) if reader else None
        if sketch is None:
            problem = f"{plural(len(looks), 'frame')} looked at: a sketch needs {LEAST_FRAMES}"
            raise EdgeoptError(problem, remedy=f"let at least {LEAST_FRAMES * self.every} frames go by")
        return sketch


# How much a figure must have moved before a watch says so: at a stated rate of false alarms, for any distribution.
#
# A figure of a frame is ranked among the n calibration frames, and its rank becomes a normal score. A CUSUM (Page
# 1954) adds the scores above a tolerance; it alarms above a limit. Where frames are drawn as the calibration frames
# were, their shares of the n + 1 gaps between these are Dirichlet(1, ..., 1), whatever the figure's distribution. For
# each draw of shares the number t > 0 with E[exp(t (score - tolerance))] = 1 bounds the rate: at most exp(-t limit)
# false alarms a look (Lorden 1971, theorem 2). The mean of this bound over the draws is what the limit keeps at the
# wanted rate, so that a calibration set that is small, or lies badly by chance, is allowed for.

_DRAWS: Final = 2000
_SEED: Final = 20261127
_LARGEST_EXPONENT: Final = 50.0
LARGEST_LIMIT: Final = 60.0
"""A chart with a higher limit would need a minute of frames at least, and is left out."""
_HALVINGS: Final = 40


def normal_scores(count: int) -> NDArray[np.float64]:
    """Return (count + 1,) the score of a frame by how many of the calibration frames lie below it."""
    from statistics import NormalDist  # which takes as long to import as all that watches

    inverse = NormalDist().inv_cdf
    return np.array([inverse((below + 0.5) / (count + 1)) for below in range(count + 1)])


@cache
def limit_of(count: int, tolerance: float, rate_per_look: float) -> float | None:
    """Return the limit of a one-sided CUSUM of normal scores.

    Args:
        count: Calibration frames.
        tolerance: Of a score, in standard deviations: what is added is the score less the tolerance.
        rate_per_look: False alarms a look, on average over calibration sets of this size.

    Returns:
        None where too few calibration frames allow none below 60.
    """
    exponents = _exponents(normal_scores(count) - tolerance)
    low, high = 0.0, LARGEST_LIMIT
    if np.exp(-exponents * high).mean() > rate_per_look:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.exp(-exponents * middle).mean() > rate_per_look:
            low = middle
        else:
            high = middle
    return high


def _exponents(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (draws,) t for each draw of shares; 0 where a chart would rise without any drift."""
    generator = np.random.default_rng(_SEED)
    shares = generator.exponential(size=(_DRAWS, len(steps)))
    shares /= shares.sum(axis=1, keepdims=True)
    low, high = np.zeros(_DRAWS), np.full(_DRAWS, _LARGEST_EXPONENT)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_above = (shares * np.exp(middle[:, None] * steps)).sum(axis=1) > 1
        high = np.where(is_above, middle, high)
        low = np.where(is_above, low, middle)
    return np.where(shares @ steps < 0, low, 0.0)


def looks_per_week(fps: float, every: int) -> float:
    """Return how often a watch looks in a week."""
    return fps * 7 * 24 * 3600 / every


def is_rate(value: float) -> bool:
    """Return whether a number can be a rate."""
    return math.isfinite(value) and value > 0
