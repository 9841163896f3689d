"""When a stream does less, and when it does more again. Pure arithmetic.

Frames miss their budget for two reasons, and each level helps against one of them:

- They wait, since model and app are busy with the frames before. Skipping frames helps.
- They are slow: their stages alone take longer than the budget. A lighter model helps, and skipping does not.

Nothing here helps against single runs that the machine holds up. A level is taken where a replay of the last frames
says that it helps, and left when it is not needed, or does not help, any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.schedule.queueing import LATEST, QueueKind, QueuePolicy
from edgeopt.runtime.stream.forecast import Timing, TimingWindow, WindowOutcome


@dataclass(frozen=True, slots=True)
class Degradation:
    """The rules of `Stream(degrade=...)`. All counts are of served frames."""

    window: int = 30
    """Frames over which misses are counted."""
    most_missed_ratio: float = 0.1
    """Above this share of misses the stream goes down to the next level that helps."""
    calm_windows: int = 3
    """Number of windows in a row that must not need the level before it is left; it doubles each time that leaving it
    failed."""
    room_ratio: float = 0.8
    """A level is left only if a frame would then take less than this share of its limit: of the budget with a heavier
    model, of the time between two frames without skipping."""
    smaller_input: bool = False
    """Whether the last level may run the model on a smaller input, if its shape is free. The loss of accuracy was not
    measured."""

    def __post_init__(self) -> None:
        if self.window < 2 or not 0 <= self.most_missed_ratio < 1 or self.calm_windows < 1 or not self.room_ratio > 0:
            raise EdgeoptError(
                f"{self} cannot be followed",
                remedy="give a window of 2 frames or more, a share of misses from 0 up to 1, and room above 0",
            )


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A level to go to, and why."""

    level: int
    reason: str


_MOST_PATIENCE: Final = 8
_HARDLY_LIGHTER: Final = 0.9
"""A model that takes more than this share of another's time is no lighter one."""
_LIGHTEST: Final = 0.25
"""Share of the time that a lighter model may be hoped to take while none was measured."""
_PAUSE: Final = 8
"""A gap between frames of so many mean gaps is a pause of the source, and no window spans it."""
_LEAST_PAUSE_NS: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class LevelLoad:
    """The time that one level needs of the device."""

    keep_every: int = 1
    """One frame of so many is run; levels with more than 1 run the model of level 0."""
    time_ratio: float | None = 1.0
    """Time of a frame's stages over that at level 0, as it was measured before; None: not known."""


class Ladder:
    """Hears of answered frames, and says which level fits; level 0 does everything."""

    def __init__(
        self, rules: Degradation, budget_ns: int, levels: Sequence[LevelLoad], policy: QueuePolicy = LATEST
    ) -> None:
        """Begin at level 0.

        Args:
            rules: The rules.
            budget_ns: From a frame's capture to its answer.
            levels: Full quality first.
            policy: Which frames wait.
        """
        self._rules, self._budget_ns, self._policy = rules, budget_ns, policy
        self._keep_every = [level.keep_every for level in levels]
        self._ratios = [level.time_ratio for level in levels]
        self._path = [0]
        """Levels from 0 to that of now, as they were gone down."""
        self._left_out: set[int] = set()
        self._measured: set[int] = set()
        """Levels whose time ratio was measured here."""
        self._timings: list[Timing] = []
        """Timings of the window that is being filled."""
        self._history: deque[Timing] = deque(maxlen=rules.window * _MOST_PATIENCE)
        """History of all windows at this level."""
        self._calm_windows, self._patience = 0, 1
        self._tried_up = False
        """Whether this level was reached by going up, and has not proven itself yet."""
        self._compare: tuple[int, float] | None = None
        """A level whose time ratio the next window measures, and the median service before the change to or from it."""

    @property
    def level(self) -> int:
        """The level now."""
        return self._path[-1]

    def record(self, timing: Timing) -> LevelChange | None:
        """Hear of an answered frame that came in after the last change.

        Returns:
            The level to go to, or None.
        """
        if self._is_after_pause(timing):
            self._begin_anew()
        self._timings.append(timing)
        if len(self._timings) < self._rules.window:
            return None
        window = self._window(self._timings)
        self._history.extend(self._timings)
        self._timings.clear()
        self._learn(window)
        measured = window.measured
        is_bad = measured.missed_ratio > self._rules.most_missed_ratio
        if is_bad and (down := self._down(window)) is not None:
            self._calm_windows = 0
            if self._tried_up:
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
            if down.level not in self._measured:
                self._compare = (down.level, window.service_ns)
            return down
        up = self._up(self._window([*self._history][-self._patience * self._rules.window :])) if self.level else None
        self._calm_windows = 0 if is_bad and up is None else self._calm_windows + 1
        if self._tried_up and self._calm_windows >= 2 * self._rules.calm_windows:
            self._tried_up, self._patience = False, 1
        if self._calm_windows < self._rules.calm_windows * self._patience:
            return None
        if up is not None and is_bad:
            self._compare = (self.level, window.service_ns)  # it seemed no lighter, perhaps since the machine changed
        return up

    def moved(self, level: int) -> None:
        """Say that the stream is at a level now."""
        self._tried_up = level < self.level
        if self._tried_up:
            self._path.pop()
        else:
            self._path.append(level)
        self._begin_anew()
        self._calm_windows = 0

    def leave_out(self, level: int) -> None:
        """Say that a level cannot be had."""
        self._left_out.add(level)
        self._compare = None

    def _window(self, timings: Sequence[Timing]) -> TimingWindow:
        return TimingWindow(timings, self._budget_ns, self._policy)

    def _begin_anew(self) -> None:
        self._timings.clear()
        self._history.clear()

    def _is_after_pause(self, timing: Timing) -> bool:
        if len(self._timings) < 2:
            return False
        first, last = self._timings[0], self._timings[-1]
        mean_ns = (last.captured_ns - first.captured_ns) / (last.index - first.index)
        gap_ns = (timing.captured_ns - last.captured_ns) / max(timing.index - last.index, 1)
        return gap_ns > max(_PAUSE * mean_ns, _LEAST_PAUSE_NS)

    def _learn(self, window: TimingWindow) -> None:
        """Learn how much lighter a level is, from the windows before and after a change."""
        if self._compare is None:
            return
        level, other_ns = self._compare
        self._compare = None
        self._measured.add(level)
        if self._keep_every[level] > 1:
            return
        above = self._path[-2] if level == self.level else self.level
        below_ns, above_ns = (window.service_ns, other_ns) if level == self.level else (other_ns, window.service_ns)
        self._ratios[level] = (self._ratios[above] or 1.0) * min(below_ns / max(above_ns, 1), 1.0)

    def _down(self, window: TimingWindow) -> LevelChange | None:
        for level in range(self.level + 1, len(self._keep_every)):
            if level not in self._left_out and self._helps(level, window):
                return LevelChange(level, self._told(window))
        return None

    def _helps(self, level: int, window: TimingWindow) -> bool:
        """Return whether a level below helps against what was measured."""
        every = self._keep_every[level]
        if every == 1:
            return self._is_lighter_better(level, window)
        if not window.waited or (window.load / every >= 1 and self._policy.kind is not QueueKind.LATEST):
            return False  # in the second case frames would wait for ever all the same
        skipping = window.replayed(every)
        if window.load >= 1 and skipping.missed_ratio <= self._rules.most_missed_ratio:
            return True
        others = [window.measured]
        if window.load < 1:
            others.append(window.replayed(self._keep_every[self.level]))  # the window may have begun with a backlog
        return all(skipping.has_notably_more_than(other) for other in others)

    def _is_lighter_better(self, level: int, window: TimingWindow) -> bool:
        ratio = self._ratio(level, self.level)
        if ratio is not None and ratio > _HARDLY_LIGHTER:
            return False
        lighter = window.scaled(_LIGHTEST if ratio is None else ratio)
        return self._is_better(lighter, self._keep_every[level], window, self._keep_every[self.level], window.measured)

    def _is_better(
        self, lighter: TimingWindow, every: int, heavier: TimingWindow, every_heavier: int, above: WindowOutcome
    ) -> bool:
        """Return whether a lighter model serves better than the level above it, which misses too much.

        Args:
            lighter: Frames with the lighter model.
            every: One of so many is run with it.
            heavier: The same frames without it.
            every_heavier: One of so many is run without it.
            above: How they fare without it.
        """
        if lighter.load / every >= 1 > heavier.load / every_heavier and self._policy.kind is not QueueKind.LATEST:
            return False  # frames that did not wait for ever would do so
        below = lighter.replayed(every)
        if heavier.service_ns > self._budget_ns and lighter.service_ns <= _HARDLY_LIGHTER * heavier.service_ns:
            return True  # the model itself is too slow: less lateness is worth it
        return below.has_notably_more_than(above) or below.has_notably_fewer_missed_than(above)

    def _ratio(self, level: int, other: int) -> float | None:
        """Return the time of a frame's stages at one level over that at another; None: not known."""
        own, others = self._ratios[level], self._ratios[other]
        return None if own is None or not others else own / others

    def _up(self, window: TimingWindow) -> LevelChange | None:
        """Return the change to the level above where this one is not needed any more, or does not help."""
        above = self._path[-2]
        if self._keep_every[self.level] > 1:
            return self._up_from_skipping(above, window)
        return self._up_from_lighter(above, window)

    def _up_from_skipping(self, above: int, window: TimingWindow) -> LevelChange | None:
        every, room = self._keep_every[above], self._rules.room_ratio
        fuller, measured, load = window.replayed(every), window.measured, window.load / every
        if load <= room and fuller.in_time >= measured.in_time:
            busy_ns = median(timing.busy_ns for timing in window.timings)
            return LevelChange(above, _room(busy_ns, window.period_ns * every))
        if load <= (1 + room) / 2 and fuller.has_notably_more_than(measured):
            there, here = fuller.in_time_per_s, measured.in_time_per_s
            return LevelChange(above, f"{there:.1f} answers a second would be in time there, here are {here:.1f}")
        return None

    def _up_from_lighter(self, above: int, window: TimingWindow) -> LevelChange | None:
        ratio = self._ratio(above, self.level) or 1.0
        heavier, most = window.scaled(ratio), self._rules.most_missed_ratio
        fuller = heavier.replayed(self._keep_every[above])
        if window.measured.missed_ratio > most:
            # replayed, as the backlog of other levels is not its fault
            if self._is_better(window, self._keep_every[self.level], heavier, self._keep_every[above], fuller):
                return None
            return LevelChange(above, f"the lighter model does not help: {self._told(window)}")
        times_ns = sorted(timing.service_ns for timing in heavier.timings)
        slowest_ns = times_ns[int((1 - most) * (len(times_ns) - 1))]
        with_room = window.scaled(ratio / self._rules.room_ratio).replayed(self._keep_every[above])
        if slowest_ns > self._rules.room_ratio * self._budget_ns or with_room.missed_ratio > most:
            return None
        return LevelChange(above, _room(slowest_ns, self._budget_ns))

    def _told(self, window: TimingWindow) -> str:
        """Return how many frames missed the budget, and why: shares and median times as they were measured."""
        count, missed, waited = len(window.timings), window.missed, window.waited
        alone = [timing for timing in missed if timing not in waited]
        causes = []
        if alone:
            causes.append((alone, _why_alone(alone, self._budget_ns, typical_ns=window.own_ns)))
        if waited:
            causes.append((waited, _why_waited(waited)))
        parts = [f"{len(frames) / count:.0%}: {why}" if len(causes) > 1 else why for frames, why in causes]
        share = f"{len(missed) / count:.0%} of the last {count} frames missed"
        return f"{share} the budget of {self._budget_ns / 1e6:.4g} ms: {', '.join(parts)}"


def _why_alone(frames: Sequence[Timing], budget_ns: int, *, typical_ns: float) -> str:
    """Return why frames are late that nothing was in the way of."""
    service_ns = median(timing.service_ns for timing in frames)
    around_ns = median(timing.around_ns for timing in frames)
    if around_ns > service_ns:
        return f"they come in {around_ns / 1e6:.1f} ms late"
    if typical_ns > budget_ns:
        return f"a frame takes {typical_ns / 1e6:.1f} ms"
    return f"some frames take {median(timing.own_ns for timing in frames) / 1e6:.1f} ms"


def _why_waited(frames: Sequence[Timing]) -> str:
    queued_ns, turn_ns, reader_ns, occupied_ns = (
        median(column)
        for column in zip(
            *((frame.queued_ns, frame.turn_ns, frame.reader_ns, frame.occupied_ns) for frame in frames), strict=True
        )
    )
    if turn_ns > queued_ns:
        return f"they wait {turn_ns / 1e6:.1f} ms for the turns of other models"
    whom = "each other" if occupied_ns >= reader_ns else f"the app, which takes {reader_ns / 1e6:.1f} ms an answer"
    return f"they wait for {whom}, {queued_ns / 1e6:.1f} ms"


def _room(taken_ns: float, allowed_ns: float) -> str:
    return f"a frame would take {taken_ns / 1e6:.1f} ms there, {allowed_ns / 1e6:.1f} ms are allowed"
