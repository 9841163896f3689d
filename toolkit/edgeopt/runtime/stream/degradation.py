"""When a stream does less, and when it does more again. Pure arithmetic."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from edgeopt.errors import EdgeoptError


@dataclass(frozen=True, slots=True)
class Degradation:
    """The rules. All counts are of served frames."""

    window: int = 30
    """Frames over which misses are counted."""
    most_missed_ratio: float = 0.1
    """Above this share of misses the stream goes one level down."""
    calm_windows: int = 3
    """So many windows in a row must be good before it goes up; twice as many after each time that going up failed."""
    room_ratio: float = 0.8
    """It goes up only where the frame would take less than this share of its limit there."""
    smaller_input: bool = False
    """Whether the last level may run the model on a smaller input, where its shape is free: nobody has measured what
    that costs in accuracy."""

    def __post_init__(self) -> None:
        if self.window < 2 or not 0 <= self.most_missed_ratio < 1 or self.calm_windows < 1 or not self.room_ratio > 0:
            raise EdgeoptError(
                f"{self} cannot be followed",
                remedy="give a window of 2 frames or more, a share of misses from 0 up to 1, and room above 0",
            )


@dataclass(frozen=True, slots=True)
class Change:
    """A level to go to, and why."""

    level: int
    reason: str


_MOST_PATIENCE = 8


class Ladder:
    """Watches misses and service times, and says which level fits; level 0 does everything.

    Skipping frames helps where a frame fits the budget and frames come too fast; a lighter model helps where a frame
    does not fit.
    """

    def __init__(self, rules: Degradation, budget_ns: int, keep_every: tuple[int, ...]) -> None:
        """Begin at level 0.

        Args:
            rules: The rules.
            budget_ns: Of a frame.
            keep_every: Of each level: one frame of so many is run. Levels with more than 1 skip frames, with the model
                of level 0.
        """
        self.level = 0
        self._rules, self._budget_ns, self._keep_every = rules, budget_ns, keep_every
        self._misses: deque[bool] = deque(maxlen=rules.window)
        self._service_ns: deque[int] = deque(maxlen=rules.window)
        self._good_windows, self._patience, self._since = 0, 1, 0
        self._tried_up = False
        """Whether this level was reached by going up, and has not proven itself yet."""
        self._before_ns = [0.0] * len(keep_every)
        """Median service time of each level when it was left downwards."""
        self._ratio = [0.0] * len(keep_every)
        """How many times as long the level above takes; 0: not known."""

    def record(self, service_ns: int, period_ns: float, *, missed: bool) -> Change | None:
        """Hear of a served frame that came in after the last change.

        Args:
            service_ns: From the begin of its first stage to the answer.
            period_ns: Between two frames of the source.
            missed: Whether it missed the budget.

        Returns:
            The level to go to, or None.
        """
        self._misses.append(missed)
        self._service_ns.append(service_ns)
        self._since += 1
        if self._since % self._rules.window:
            return None
        ratio = sum(self._misses) / len(self._misses)
        if ratio > self._rules.most_missed_ratio:
            self._good_windows = 0
            return self._down(ratio)
        self._good_windows += 1
        self._learn()
        if self._tried_up and self._good_windows >= 2 * self._rules.calm_windows:
            self._tried_up, self._patience = False, 1
        if self.level and self._good_windows >= self._rules.calm_windows * self._patience:
            return self._up(period_ns)
        return None

    def moved(self, level: int) -> None:
        """Say that the stream is at a level now."""
        self._tried_up = level < self.level
        self.level = level
        self._misses.clear()
        self._service_ns.clear()
        self._good_windows = self._since = 0

    def leave_out(self, level: int) -> None:
        """Say that a level cannot be had."""
        self._keep_every = tuple(0 if i == level else every for i, every in enumerate(self._keep_every))

    def _down(self, ratio: float) -> Change | None:
        service = median(self._service_ns)
        self._before_ns[self.level] = service
        if self._tried_up:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        fits = service <= self._budget_ns
        for level in range(self.level + 1, len(self._keep_every)):
            every = self._keep_every[level]
            if every == 0 or (every > 1 and not fits):
                continue
            budget = f"the budget of {self._budget_ns / 1e6:.4g} ms"
            told = f"{ratio:.0%} of the last {self._rules.window} frames missed {budget}"
            what = "they wait for each other" if fits else f"a frame takes {service / 1e6:.1f} ms"
            return Change(level, f"{told}: {what}")
        return None

    def _learn(self) -> None:
        """Learn how much lighter this level is, at its first good window."""
        above = self._above()
        if self.level and not self._ratio[self.level] and self._before_ns[above]:
            self._ratio[self.level] = max(1.0, self._before_ns[above] / max(median(self._service_ns), 1))

    def _above(self) -> int:
        """Return the next level up that can be had, and that misses would lead down from."""
        level = self.level - 1
        while level > 0 and (self._keep_every[level] == 0 or not self._before_ns[level]):
            level -= 1
        return max(level, 0)

    def _up(self, period_ns: float) -> Change | None:
        above = self._above()
        slowest = sorted(self._service_ns)[int(0.9 * (len(self._service_ns) - 1))]
        same_model = self._keep_every[self.level] > 1
        expected = slowest * (1.0 if same_model else self._ratio[self.level] or 1.0)
        limit = min(self._budget_ns, period_ns * self._keep_every[above]) if same_model else self._budget_ns
        if expected > self._rules.room_ratio * limit:
            return None
        return Change(above, f"a frame would take {expected / 1e6:.1f} ms there, {limit / 1e6:.1f} ms are allowed")
