"""How frames would fare at another level: the frames of a window, replayed with other times or fewer of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from edgeopt.runtime.schedule.queueing import Queue, QueueKind, QueuePolicy

_DISTURBED: Final = 4.0
"""A run that takes more than so many medians was held up by the machine: a lighter model is held up alike."""

_NOTABLE: Final = 1.25
"""So many times as many frames are no accident of one window, if they are also more by"""
_LEAST_ADDED: Final = 0.1
"""so many for each answer of the window."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When an answered frame came in, and how its age came about."""

    index: int
    """Number among all frames that came in, dropped ones too."""
    captured_ns: int
    age_ns: int
    """Time from its capture to its answer: waiting, turn, service, and the rest around them."""
    queued_ns: int
    """It waited while the frames before it kept model or app busy."""
    turn_ns: int
    """It waited while other models of a scheduler ran."""
    service_ns: int
    """Its stages, from the begin of the first to the answer, without waiting."""
    occupied_ns: int
    """How long it kept the model from the next frame: less than the service where stages overlap."""
    reader_ns: int
    """How long the app worked on the answer before this one: no frame is begun meanwhile."""

    @property
    def around_ns(self) -> int:
        """The time before and after its stages though nothing was in its way, such as a source that is late."""
        return max(self.age_ns - self.queued_ns - self.turn_ns - self.service_ns, 0)

    @property
    def own_ns(self) -> int:
        """Its age, had nothing been in its way."""
        return self.service_ns + self.around_ns

    @property
    def busy_ns(self) -> int:
        """How long model and app were busy with it."""
        return self.occupied_ns + self.reader_ns


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """How the frames of a window fare."""

    answered: int
    missed: int
    """Answers that are too late."""
    span_ns: float
    """Time in which the frames came in."""

    @property
    def missed_ratio(self) -> float:
        """Share of the answers that are too late."""
        return self.missed / max(self.answered, 1)

    @property
    def in_time(self) -> int:
        """Answers that keep the budget."""
        return self.answered - self.missed

    @property
    def in_time_per_s(self) -> float:
        """How many of them come in a second."""
        return self.in_time * 1e9 / max(self.span_ns, 1.0)

    def has_notably_more_than(self, other: WindowOutcome) -> bool:
        """Return whether more answers keep the budget than in another outcome of the same frames, by no accident."""
        return self.in_time > _NOTABLE * other.in_time and self.in_time - other.in_time > _LEAST_ADDED * other.answered

    def has_notably_fewer_missed_than(self, other: WindowOutcome) -> bool:
        """Return whether fewer answers are late than in another outcome of the same frames, by no accident."""
        fewer = other.missed_ratio - self.missed_ratio
        return other.missed_ratio > _NOTABLE * self.missed_ratio and fewer > _LEAST_ADDED


class TimingWindow:
    """Timings of frames that were answered at one level, in order."""

    def __init__(self, timings: Sequence[Timing], budget_ns: int, policy: QueuePolicy) -> None:
        """Bind to the frames.

        Args:
            timings: At least one.
            budget_ns: From a frame's capture to its answer.
            policy: Which frames wait.
        """
        self.timings, self._budget_ns, self._policy = tuple(timings), budget_ns, policy
        self.service_ns = median(timing.service_ns for timing in self.timings)
        self.own_ns = median(timing.own_ns for timing in self.timings)
        first, last = self.timings[0], self.timings[-1]
        self.period_ns = (last.captured_ns - first.captured_ns) / max(last.index - first.index, 1)
        """Mean time between two frames of the source."""

    @property
    def missed(self) -> list[Timing]:
        """The frames that missed the budget."""
        return [timing for timing in self.timings if timing.age_ns > self._budget_ns]

    @property
    def waited(self) -> list[Timing]:
        """The missed frames that would have kept the budget if nothing had been in their way."""
        return [timing for timing in self.missed if timing.own_ns <= self._budget_ns]

    @property
    def measured(self) -> WindowOutcome:
        """How they fared."""
        return self._outcome(len(self.timings), len(self.missed))

    @property
    def load(self) -> float:
        """Share of the time between two frames of the source that a frame keeps model and app busy.

        Above 1 more and more frames wait.
        """
        busy_ns = sum(timing.busy_ns for timing in self.timings) / len(self.timings)
        return busy_ns / self.period_ns if self.period_ns > 0 else float("inf")

    def scaled(self, ratio: float) -> TimingWindow:
        """Return the frames with a model that takes `ratio` as long; what held a run up remains as it is."""
        typical_ns = self.service_ns

        def scale(timing: Timing) -> Timing:
            is_held_up = timing.service_ns > _DISTURBED * typical_ns
            added_ns = round((ratio - 1) * (typical_ns if is_held_up else timing.service_ns))
            share = timing.occupied_ns / max(timing.service_ns, 1)
            return replace(
                timing,
                age_ns=timing.age_ns + added_ns,
                service_ns=timing.service_ns + added_ns,
                occupied_ns=timing.occupied_ns + round(added_ns * share),
            )

        scaled = [scale(timing) for timing in self.timings]
        return TimingWindow(scaled, self._budget_ns, self._policy)

    def replayed(self, keep_every: int) -> WindowOutcome:
        """Return how the frames of the source would fare, had one of so many been run, beginning with no backlog."""
        queue = Queue[tuple[Timing, float]](self._policy)
        answered = missed = 0
        free_ns = 0.0

        def serve(until_ns: float) -> None:
            nonlocal answered, missed, free_ns
            while free_ns <= until_ns and (waiting := queue.take()) is not None:
                timing, captured_ns = waiting
                begin_ns = max(free_ns, captured_ns)
                if self._policy.kind is QueueKind.LATEST and begin_ns - captured_ns > self._budget_ns:
                    continue
                answered += 1
                done_ns = begin_ns + timing.turn_ns + timing.own_ns
                missed += done_ns - captured_ns > self._budget_ns
                free_ns = begin_ns + timing.busy_ns

        for index, captured_ns, timing in self._arrivals():
            if index % keep_every == 0:
                serve(captured_ns)
                queue.offer((timing, captured_ns))
        serve(float("inf"))
        return self._outcome(answered, missed)

    def _outcome(self, answered: int, missed: int) -> WindowOutcome:
        span_ns = self.timings[-1].captured_ns - self.timings[0].captured_ns + self.period_ns
        return WindowOutcome(answered, missed, span_ns)

    def _arrivals(self) -> Iterator[tuple[int, float, Timing]]:
        """Yield index, instant and times of all frames of the source; one that was not run takes those of another."""
        others = self.timings[::-1]
        skipped = 0
        for timing, following in zip(self.timings, self.timings[1:], strict=False):
            yield timing.index, float(timing.captured_ns), timing
            step_ns = (following.captured_ns - timing.captured_ns) / (following.index - timing.index)
            for k in range(1, following.index - timing.index):
                yield timing.index + k, timing.captured_ns + k * step_ns, others[skipped % len(others)]
                skipped += 1
        last = self.timings[-1]
        yield last.index, float(last.captured_ns), last
