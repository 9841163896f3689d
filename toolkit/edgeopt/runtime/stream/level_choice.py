"""Which level a stream runs at: it opens lighter models beside the stream, and tells of each change."""

from __future__ import annotations

from functools import partial
from typing import Final

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream.clockwork import Running
from edgeopt.runtime.stream.degradation import Degradation, Ladder, LevelChange
from edgeopt.runtime.stream.events import EventKind
from edgeopt.runtime.stream.forecast import Timing
from edgeopt.runtime.stream.frame_queue import FrameQueue
from edgeopt.runtime.stream.levels import Level, Rung, levels_of
from edgeopt.runtime.stream.runner import Runner

_JOIN_S: Final = 30.0


class LevelChoice:
    """The level now. Whoever calls `record` holds the queue's lock."""

    def __init__(self, desk: FrameQueue, given: Runtime | Pipeline, rules: Degradation | None, budget_ns: int) -> None:
        """Begin at full quality.

        Args:
            desk: Frames are skipped there.
            given: What runs at level 0.
            rules: None: it stays there.
            budget_ns: Of a frame.
        """
        levels = levels_of(given, smaller_input=rules is not None and rules.smaller_input)
        self._desk, self._levels, self._own = desk, levels, levels[0].open()
        self.rung = Rung(levels[0].name, self._own)
        self._ladder = (
            None if rules is None else Ladder(rules, budget_ns, [level.load for level in levels], desk.policy)
        )
        self._opened: dict[int, Runner] = {0: self._own}
        self._opening: Running | None = None
        self._since = 0
        """Frames before this one came in at another level."""

    def record(self, rung: Rung, timing: Timing) -> Rung:
        """Hear of a served frame and what it was run with; return what the next one is run with."""
        if self._ladder is None or self._opening is not None or timing.index < self._since or rung is not self.rung:
            return self.rung
        change = self._ladder.record(timing)
        if change is not None:
            self._go(change)
        return self.rung

    def close(self) -> None:
        """Close the models that were opened here; call it when nothing runs any more."""
        if self._opening is not None:
            self._opening.join(_JOIN_S)
        for runner in {id(other): other for other in self._opened.values()}.values():
            if runner is not self._own:
                runner.close()

    def _go(self, change: LevelChange) -> None:
        level = self._levels[change.level]
        if change.level in self._opened:
            self._move(change, self._opened[change.level])
        elif level.load.keep_every > 1:
            self._move(change, self._own)
        else:
            self._opening = self._desk.clockwork.start(partial(self._open, change, level), "edgeopt-lighter")

    def _open(self, change: LevelChange, level: Level) -> None:
        """Open a model while the stream goes on."""
        assert self._ladder is not None
        try:
            runner = level.open()
        except EdgeoptError as error:
            with self._desk.changes:
                self._ladder.leave_out(change.level)
                self._desk.tell(EventKind.DEGRADED, f"{level.name} does not open: {error.problem}")
                self._opening = None
            return
        with self._desk.changes:
            self._opened[change.level] = runner
            self._opening = None
            if not self._desk.is_stopped:
                self._move(change, runner)

    def _move(self, change: LevelChange, runner: Runner) -> None:
        assert self._ladder is not None
        level, is_down = self._levels[change.level], change.level > self._ladder.level
        self._ladder.moved(change.level)
        self.rung = Rung(level.name, runner, level.load.keep_every)
        self._desk.keep_every = level.load.keep_every
        self._since = self._desk.fed
        kind = EventKind.DEGRADED if is_down else EventKind.RECOVERED
        self._desk.tell(kind, f"{level.name}: {change.reason}")
