"""Variants in turns, so that a drifting machine slows all alike: plain calls, frames, or models with whole frames.

One round is a random order of the variants and then the same order reversed: A B B A. Every variant then has the same
mean position in time, and a linear drift cancels within the round. Models take turns on the same pictures, the first
of them opened twice: its second copy shows what this machine makes of no difference at all. `optimize`, `compare` and
`check` measure by `take_turns`, and judge by its `ratio`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample, Tensors
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.closed_loop import Marked, MarkedFrames, Pictures
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
from edgeopt.recipes.frames import Frames
from edgeopt.tasks import FrameTask

MIN_ROUNDS = 5
"""Ten pairs of blocks: fewer give an interval that no machine's noise fits."""


class Whole(Protocol):
    """Something else than one model whose whole frames are timed, such as a pipeline of several."""

    def mark(self, frames: Pictures, clock: Clock) -> Marked:
        """Return its frames, to be run with marks."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


Opened: TypeAlias = tuple[FrameTask, Session] | Whole
"""What takes turns: a task with its session, or something that marks its own stages."""


def _mark(opened: Opened, frames: Pictures, clock: Clock) -> Marked:
    return MarkedFrames(frames, *opened, clock) if isinstance(opened, tuple) else opened.mark(frames, clock)


def _close(opened: Opened) -> None:
    (opened[1] if isinstance(opened, tuple) else opened).close()


def call_of(session: Session, inputs: Tensors) -> Callable[[int], None]:
    """Return what runs a session once on the same inputs, for `compare_calls`."""

    def call(_: int) -> None:
        session.run(inputs)

    return call


def compare_calls(
    runs: Mapping[str, Callable[[int], None]],
    *,
    baseline: str,
    seconds: float,
    block: int = 25,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
) -> Mapping[str, Ratio]:
    """Call the variants in turns and return how many times as fast as the baseline each is, the baseline left out.

    Args:
        runs: One call per variant; the argument is the number of the input.
        baseline: What the others are compared with.
        seconds: How long to go on; at least five rounds run whatever it says.
        block: Calls per block.
        seed: Of the order.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If `baseline` is not among two or more `runs`.
    """
    if baseline not in runs:
        raise ValueError(f"baseline {baseline!r} is not among {', '.join(runs)}")
    times = run_blocks(runs, seconds=seconds, block=block, seed=seed, clock=clock)
    logs = {name: np.log(np.maximum(np.median(one, axis=2), 1.0)) for name, one in times.items()}
    return {
        name: ratio_of_rounds((logs[baseline] - found).mean(axis=1), pairs=found.size)
        for name, found in logs.items()
        if name != baseline
    }


def round_order(variants: tuple[str, ...], rng: np.random.Generator) -> tuple[str, ...]:
    """Return the variants in random order, then reversed."""
    order = [variants[i] for i in rng.permutation(len(variants))]
    return (*order, *reversed(order))


def run_blocks(
    runs: Mapping[str, Callable[[int], None]],
    *,
    seconds: float,
    block: int,
    seed: int,
    clock: Clock = time.perf_counter_ns,
) -> Mapping[str, NDArray[np.int64]]:
    """Call the variants in turns for a time, at least five rounds; return (rounds, 2, block) nanoseconds of each.

    Each variant first runs one block that is not kept, as warm-up.

    Args:
        runs: One call per variant; the argument counts the inputs, and all variants get the same ones.
        seconds: How long to go on.
        block: Calls per block, at least 1.
        seed: Of the order.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If there are not two variants, or a block is empty.
    """
    if len(runs) < 2 or block < 1:
        raise ValueError(f"need two variants and blocks of one call or more, got {len(runs)} and {block}")
    rng, start = np.random.default_rng(seed), clock()
    for run in runs.values():
        _time_block(run, 0, block, clock)
    rounds: list[dict[str, list[NDArray[np.int64]]]] = []
    while len(rounds) < MIN_ROUNDS or clock() - start < seconds * 1e9:
        halves: dict[str, list[NDArray[np.int64]]] = {name: [] for name in runs}
        for name in round_order(tuple(runs), rng):
            first = (2 * len(rounds) + len(halves[name])) * block
            halves[name].append(_time_block(runs[name], first, block, clock))
        rounds.append(halves)
    return {name: np.array([halves[name] for halves in rounds]) for name in runs}


def _time_block(run: Callable[[int], None], first: int, block: int, clock: Clock) -> NDArray[np.int64]:
    times = np.zeros(block, np.int64)
    for i in range(block):
        before = clock()
        run(first + i)
        times[i] = clock() - before
    return times


def run_interleaved(
    frames: Pictures,
    variants: Mapping[str, Opened],
    *,
    seconds: float,
    enough: int | None = None,
    block: int = 25,
    least_rounds: int = MIN_ROUNDS,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
    on_round: Callable[[float], None] | None = None,
) -> Mapping[str, Samples]:
    """Run blocks of frames of each variant in turns (A B B A) and return one run per variant.

    The first block of each variant is marked as warm-up; `round_id` numbers the rounds from 0.

    Args:
        frames: One or more; all variants of a round get the same ones in the same order.
        variants: Task and loaded session of each, or what marks its own stages.
        seconds: How long to go on; the least rounds run whatever it says.
        enough: Stop before that once each variant has so many frames after warm-up; None: never.
        block: Frames per block, at least 1.
        least_rounds: Two or more.
        seed: Of the order.
        clock: Nanoseconds that never go back.
        on_round: Hears after each round which share of the run is over.

    Raises:
        ValueError: If there is no frame, a block is empty or there are not two variants.
    """
    if len(variants) < 2 or block < 1:
        raise ValueError(f"need two variants and blocks of one frame or more, got {len(variants)} and {block}")
    rng, zero_ns, epoch_ns = np.random.default_rng(seed), clock(), time.time_ns()
    marked = {name: _mark(one, frames, clock) for name, one in variants.items()}
    for run in marked.values():
        for index in range(block):
            run.run(index)
    rounds = 0
    wanted = least_rounds if enough is None else max(least_rounds, -(-enough // (2 * block)))
    while rounds < least_rounds or (clock() - zero_ns < seconds * 1e9 and (enough is None or rounds < wanted)):
        for name in round_order(tuple(variants), rng):
            first = len(marked[name]) - block
            for index in range(first, first + block):
                marked[name].run(index)
        rounds += 1
        if on_round:
            spent = max((clock() - zero_ns) / max(seconds * 1e9, 1.0), 0.0 if enough is None else rounds / wanted)
            on_round(min(1.0, spent, rounds / least_rounds))
    return {name: _samples(run, name, block, zero_ns, epoch_ns) for name, run in marked.items()}


def _samples(run: Marked, name: str, block: int, zero_ns: int, epoch_ns: int) -> Samples:
    rows = np.arange(len(run))
    samples = run.samples(rows < block, zero_ns=zero_ns, epoch_ns=epoch_ns, variant=name)
    return replace(samples, round_id=np.maximum(rows - block, 0) // (2 * block))


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
    openers: Mapping[str, Callable[[], Opened]],
    frames: Frames,
    pace: Pace,
    *,
    workers: int = 1,
    seed: int = 0,
    machine: Machine = HERE,
    tell: Callable[[int, int], None] | None = None,
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
        tell: Hears between rounds how many hundredths are over, of how many.
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
            frame_s = max(min(map(_mark(opened[first], readers, clock).run_unmarked, (0, 0, 0))) / 1e9, 1e-6)
            block = max(pace.least_block, min(25, round(pace.block_seconds / frame_s)))
            least_s = 2 * pace.least_rounds * block * frame_s * len(opened)
            count = max(1, min(count, int(pace.seconds / max(least_s, _OPENINGS * open_s))))
        began, before = clock(), len(legs) / count
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
                on_round=partial(_tell_share, tell, before, count) if tell else None,
            )
        )
        spent_ns += clock() - began
        for one in opened.values():
            _close(one)
        readings.append(machine.read())
        anchors.append(machine.measure_anchor())
    samples = {name: join_legs([leg[name] for leg in legs]) for name in opened_by}
    return Turns(samples, tuple(readings), tuple(anchors), workers, spent_ns / 1e9)


def _tell_share(tell: Callable[[int, int], None], before: float, legs: int, share: float) -> None:
    """Tell how far all legs are, of which this one has done a share."""
    tell(round(100 * (before + share / legs)), 100)


def join_legs(legs: Sequence[Samples]) -> Samples:
    """Return the rows of all legs with rounds numbered through."""
    rounds, offset = [], 0
    for leg in legs:
        assert leg.round_id is not None
        rounds.append(leg.round_id + offset)
        offset += int(leg.round_id.max()) + 1
    return replace(join_samples(legs), round_id=np.concatenate(rounds))
