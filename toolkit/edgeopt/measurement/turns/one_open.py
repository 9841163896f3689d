"""Models in turns that memory does not hold together: one is open at a time, and each turn opens it anew.

A turn is an opening, a frame of warm-up and a block. Two turns of one model in a row (A B B A) share an opening. Since
no session outlives its turn, a round says as much as a fresh process does: none agrees with the next one because its
weights lie in the same place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from edgeopt.measurement.load.closed_loop import Pictures
from edgeopt.measurement.samples import Samples, join_samples
from edgeopt.measurement.statistics.ratio import LEAST_RANKED
from edgeopt.measurement.turns.calls import round_order
from edgeopt.measurement.turns.interleaved import (
    AGAIN,
    HERE,
    LEAST_WHOLE,
    PICTURES,
    Opened,
    Pace,
    Turns,
    TurnsMachine,
    close_opened,
    join_legs,
    mark_frames,
)
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.system.machine.memory import give_back
from edgeopt.system.processes.time_limit import OutOfTime, limited, require_time

LEAST_ROUNDS = LEAST_RANKED
"""Fewer prove nothing."""


def proof_seconds(turns_s: Sequence[float]) -> float:
    """Return what the least rounds that prove anything take.

    Args:
        turns_s: What a turn of each model takes with its opening; the first one's is also that of its copy.
    """
    each = (*turns_s, turns_s[0])
    return LEAST_ROUNDS * (2 * sum(each) - sum(each) / len(each))  # the middle one of a round is opened once


def take_turns_one_open(
    openers: Mapping[str, Callable[[], Opened]],
    frames: Frames,
    pace: Pace,
    *,
    workers: int = 1,
    seed: int = 0,
    machine: TurnsMachine = HERE,
    tell: Callable[[int, int], None] | None = None,
) -> Turns:
    """Run whole frames of all models in turns, and of a second copy of the first, one of them open at a time.

    Args:
        openers: One or more by label; each call opens a session of its own.
        frames: Where the pictures come from; reading one is the stage `load`.
        pace: How long; at least six rounds run whatever it says, in a single leg.
        workers: Threads of a session.
        seed: Of the order.
        machine: Its clock and sensors.
        tell: Hears between turns how many of the least turns are over, of how many.

    Raises:
        OutOfTime: Where a time limit leaves none for two rounds; those that are whole by then do.
    """
    first = next(iter(openers))
    opened_by = {**openers, first + AGAIN: openers[first]}
    readers, rng, clock = readers_of(frames.spread(PICTURES)), np.random.default_rng(seed), machine.clock
    readings, anchors, began_ns = [machine.read()], [machine.measure_anchor()], clock()
    turn, done = _Turn(readers, pace, machine), list[dict[str, Samples]]()
    of = LEAST_ROUNDS * (2 * len(opened_by) - 1)
    while len(done) < LEAST_ROUNDS or (
        clock() - began_ns < pace.seconds * 1e9 and len(done) * 2 * turn.block < (pace.enough or np.inf)
    ):
        try:
            parts: dict[str, list[Samples]] = {name: [] for name in opened_by}
            with limited(pace.until_s if len(done) >= LEAST_WHOLE else math.inf):
                for name, group in groupby(round_order(tuple(opened_by), rng)):
                    if not done:  # with fewer than two rounds all would be in vain
                        require_time(turn.took_s * LEAST_WHOLE * (2 * len(opened_by) - 1) - (clock() - began_ns) / 1e9)
                    place, count = (len(done), bool(parts[name])), len([*group])
                    parts[name].append(turn.take(name, opened_by[name], place, count))
                    if tell:
                        tell(min(turn.count, of), of)
        except OutOfTime:
            if len(done) < LEAST_WHOLE:
                raise
            break
        done.append({name: join_samples(part) for name, part in parts.items()})
        readings.append(machine.read())
        anchors.append(machine.measure_anchor())
    samples = {name: join_legs([_as_round(other[name]) for other in done]) for name in opened_by}
    return Turns(samples, tuple(readings), tuple(anchors), workers, (clock() - began_ns) / 1e9)


def _as_round(samples: Samples) -> Samples:
    return replace(samples, round_id=np.zeros(len(samples), np.int64))


class _Turn:
    """Opens a model, runs it and closes it."""

    def __init__(self, readers: Pictures, pace: Pace, machine: TurnsMachine) -> None:
        self._readers, self._pace, self._clock = readers, pace, machine.clock
        self._zero_ns, self._epoch_ns = self._clock(), time.time_ns()
        self.block, self.took_s, self.count = 0, 0.0, 0
        """Frames of a turn, known from the first one on; what the first turn took; how many there were."""

    def take(self, name: str, opener: Callable[[], Opened], place: tuple[int, bool], count: int) -> Samples:
        """Return the frames of one or two turns in a row, the warm-up first.

        Args:
            name: Of the model.
            opener: Opens it.
            place: Which round it is, and whether the model had its first turn of it.
            count: Of turns.
        """
        require_time()
        give_back()
        began = self._clock()
        opened = opener()
        try:
            marked = mark_frames(opened, self._readers, self._clock)
            warm_s = max(marked.run(0) / 1e9, 1e-6)
            if not self.block:
                self.block = max(self._pace.least_block, min(25, round(self._pace.block_seconds / warm_s)))
            begin = (2 * place[0] + place[1]) * self.block
            for index in range(begin, begin + count * self.block):
                require_time()
                marked.run(index)
            warmup = np.arange(len(marked)) < 1
            samples = marked.samples(warmup, zero_ns=self._zero_ns, epoch_ns=self._epoch_ns, variant=name)
        finally:
            close_opened(opened)
        self.took_s = self.took_s or (self._clock() - began) / 1e9
        self.count += count
        return samples
