"""Models measured in turns: whole frames on the same pictures, the first model opened twice.

Its second copy runs along and shows what this machine makes of no difference at all. `optimize`, `compare` and `check`
measure by this one function, and judge by this one ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Sample
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.interleaved import MIN_ROUNDS, run_interleaved
from edgeopt.measurement.resources.anchor import Anchor, measure_anchor
from edgeopt.measurement.resources.readings import Reading, take_reading
from edgeopt.measurement.resources.trust import Trust, judge_trust
from edgeopt.measurement.samples import Samples, join_samples
from edgeopt.measurement.statistics.ratio import (
    Ratio,
    centre_of_rounds,
    parts_worth_judging,
    ratio_of_rounds,
    round_logs,
)
from edgeopt.measurement.workers import Pipeline
from edgeopt.recipes.frames import Frames

AGAIN = " again"
"""After the first one's label: its second copy."""
PICTURES = 32
_BLOCK_SECONDS = 0.04
"""Short against a neighbour's bursts, long against a cache refill."""
_MOST_LEGS = 4
_OPENINGS = 4.0
"""A leg lasts at least so many times as long as opening its sessions, and five rounds."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run in turns asks of the machine; tests script it."""

    clock: Clock = time.perf_counter_ns
    read: Callable[[], Reading] = take_reading
    measure_anchor: Callable[[], Anchor] = measure_anchor


HERE = Machine()


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run in turns lasts, and how it is cut."""

    seconds: float
    """To run frames; the least rounds run whatever it says."""
    enough: int | None = None
    """Stop before that once each model has so many frames after warm-up; None: never."""
    most_legs: int = _MOST_LEGS
    block_seconds: float = _BLOCK_SECONDS
    least_block: int = 1
    """Frames of one model in a row, at least."""
    least_rounds: int = MIN_ROUNDS


@dataclass(frozen=True)
class Turns:
    """Raw samples of one interleaved run, and what the machine did meanwhile."""

    samples: Mapping[str, Samples]
    """By label; the second copy of the first has its label and `AGAIN`."""
    readings: tuple[Reading, ...]
    anchors: tuple[Anchor, ...]
    workers: int
    """Threads that ran at once."""
    seconds: float

    @property
    def baseline(self) -> str:
        """The label of the first one."""
        return next(iter(self.samples))

    @cached_property
    def trust(self) -> Trust:
        """Whether the run can be believed."""
        return judge_trust(self.samples[self.baseline], self.readings, self.anchors, workers=self.workers)

    @property
    def parts(self) -> tuple[str, ...]:
        """What can be judged, `execute` and `frame` first."""
        return parts_worth_judging(dict(self.samples))

    def ratio(self, label: str, part: str, *, against: str = "", margin: float = 0.02) -> Ratio:
        """Return the ratio of one to another (the first), judged beside the first one's ratio to itself."""
        logs = self._logs(label, against or self.baseline, part)
        return ratio_of_rounds(logs, pairs=self._pairs, margin=margin, null=self.null(part, margin))

    def centre(self, label: str, part: str, *, against: str = "") -> float:
        """Return the logarithm of the ratio alone: what this process gives where several are asked."""
        return centre_of_rounds(self._logs(label, against or self.baseline, part))

    def null(self, part: str, margin: float = 0.02) -> Ratio:
        """Return the ratio of the first one's second copy to the first one."""
        logs = round_logs(self.samples[self.baseline + AGAIN], self.samples[self.baseline], part)
        return ratio_of_rounds(logs, pairs=self._pairs, margin=margin)

    @property
    def _pairs(self) -> int:
        rounds = self.samples[self.baseline].steady().round_id
        assert rounds is not None
        return 2 * (int(rounds.max()) + 1)

    def _logs(self, label: str, against: str, part: str) -> NDArray[np.float64]:
        """Return the rounds; both copies of the first one count, which takes a quarter of the variance away."""
        if label == self.baseline:
            return -self._logs(against, label, part)
        logs = round_logs(self.samples[label], self.samples[against], part)
        if against != self.baseline:
            return logs
        mean: NDArray[np.float64] = (logs + round_logs(self.samples[label], self.samples[against + AGAIN], part)) / 2
        return mean


def take_turns(
    openers: Mapping[str, Callable[[], Pipeline]],
    frames: Frames,
    pace: Pace,
    *,
    workers: int = 1,
    seed: int = 0,
    machine: Machine = HERE,
) -> Turns:
    """Run whole frames of all models in turns, and of a second copy of the first.

    The time is cut into legs. Each opens everything anew, in another order: two sessions of one model may differ by
    some percent for as long as they live, because their weights and buffers lie elsewhere in memory.

    Args:
        openers: One or more by label; each call opens a session of its own.
        frames: Where the pictures come from; reading one is the stage `load`.
        pace: How long.
        workers: Threads of a session.
        seed: Of the order.
        machine: Its clock and sensors.
    """
    first = next(iter(openers))
    opened_by = {**openers, first + AGAIN: openers[first]}
    chosen = frames.spread(PICTURES)
    readers: list[Callable[[], Sample]] = [partial(chosen.read, i) for i in range(len(chosen))]
    rng, readings, anchors = np.random.default_rng(seed), [machine.read()], [machine.measure_anchor()]
    legs: list[Mapping[str, Samples]] = []
    spent_ns, count, block, clock = 0, pace.most_legs, 1, machine.clock
    while len(legs) < count:
        began = clock()
        opened = {name: opened_by[name]() for name in rng.permutation(list(opened_by)).tolist()}
        open_s = (clock() - began) / 1e9
        if not legs:
            frame_s = max(_seconds_a_frame(opened[first], readers[0], clock), 1e-6)
            block = max(pace.least_block, min(25, round(pace.block_seconds / frame_s)))
            least_s = 2 * pace.least_rounds * block * frame_s * len(opened)
            count = max(1, min(count, int(pace.seconds / max(least_s, _OPENINGS * open_s))))
        began = clock()
        legs.append(
            run_interleaved(
                readers,
                {name: opened[name] for name in opened_by},
                seconds=pace.seconds / count,
                enough=None if pace.enough is None else -(-pace.enough // count),
                block=block,
                least_rounds=pace.least_rounds,
                seed=seed + len(legs),
                clock=clock,
            )
        )
        spent_ns += clock() - began
        for _, session in opened.values():
            session.close()
        readings.append(machine.read())
        anchors.append(machine.measure_anchor())
    samples = {name: join_legs([leg[name] for leg in legs]) for name in opened_by}
    return Turns(samples, tuple(readings), tuple(anchors), workers, spent_ns / 1e9)


def join_legs(legs: Sequence[Samples]) -> Samples:
    """Return the rows of all legs with rounds numbered through."""
    rounds, offset = [], 0
    for leg in legs:
        assert leg.round_id is not None
        rounds.append(leg.round_id + offset)
        offset += int(leg.round_id.max()) + 1
    return replace(join_samples(legs), round_id=np.concatenate(rounds))


def _seconds_a_frame(pipeline: Pipeline, read: Callable[[], Sample], clock: Clock) -> float:
    task, session = pipeline

    def once() -> float:
        started = clock()
        inputs, geometry = task.preprocess(read())
        task.postprocess(session.run(inputs), geometry)
        return (clock() - started) / 1e9

    return min(once() for _ in range(3))
