"""Models in turns with whole frames, so that a drifting machine slows all alike.

They take turns as `calls.py` has it (A B B A) on the same pictures, the first of them opened twice: its second copy
shows what this machine makes of no difference at all. `optimize`, `compare` and `check` measure by `take_turns`, and
judge by its `ratio`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Session
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.closed_loop import Marked, MarkedFrames, Pictures
from edgeopt.measurement.resources.anchor import AnchorTimes, measure_anchor
from edgeopt.measurement.resources.readings import CounterReading, take_reading
from edgeopt.measurement.resources.trust import Trust, judge_turns
from edgeopt.measurement.samples import Samples, join_samples
from edgeopt.measurement.statistics.ratio import (
    Ratio,
    centre_of_rounds,
    parts_worth_judging,
    ratio_of_rounds,
    round_logs,
)
from edgeopt.measurement.turns.calls import MIN_ROUNDS, round_order
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.system.amounts import Percent
from edgeopt.system.device_clock import device_clock
from edgeopt.system.machine.place import PlaceLostError, current_place
from edgeopt.system.processes.time_limit import OutOfTime, limited, require_time, time_left_s
from edgeopt.tasks import FrameTask

LEAST_WHOLE = 2
"""Rounds that must be whole where a time limit ends a run: one has no interval."""


class WholeSubject(Protocol):
    """Something else than one model whose whole frames are timed, such as a pipeline of several."""

    def mark(self, frames: Pictures, clock: Clock) -> Marked:
        """Return its frames, to be run with marks."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


Opened: TypeAlias = tuple[FrameTask, Session] | WholeSubject
"""One side of the turns: a task with its session, or a subject that marks its own stages."""


def mark_frames(opened: Opened, frames: Pictures, clock: Clock) -> Marked:
    """Return the frames of what takes turns, to be run with marks."""
    return MarkedFrames(frames, *opened, clock) if isinstance(opened, tuple) else opened.mark(frames, clock)


class TurnsPlace(Protocol):
    """Another machine that computes for this process, and times blocks of frames itself."""

    @property
    def readings(self) -> Sequence[CounterReading]:
        """Counters of that machine since the turns began."""
        ...

    def begin_turns(self) -> None:
        """Forget the counters of earlier turns."""
        ...

    def pace_of(self, opened: Mapping[str, Opened], first: str, frames: Pictures) -> tuple[float, float]:
        """Return the seconds of a frame of the first, and those to open them all."""
        ...

    def run_interleaved(
        self,
        frames: Pictures,
        variants: Mapping[str, Opened],
        *,
        seconds: float,
        enough: int | None,
        block: int,
        least_rounds: int,
        seed: int,
        clock: Clock,
        on_round: Callable[[float], None] | None,
    ) -> Mapping[str, Samples]:
        """Run a leg, in a fresh process there; as the function of this name."""
        ...

    def note_loss(self, error: PlaceLostError) -> None:
        """Note that what was measured is less than was wished for."""
        ...


def close_opened(opened: Opened) -> None:
    """Free what takes turns."""
    (opened[1] if isinstance(opened, tuple) else opened).close()


def run_interleaved(
    frames: Pictures,
    variants: Mapping[str, Opened],
    *,
    seconds: float,
    enough: int | None = None,
    block: int = 25,
    least_rounds: int = MIN_ROUNDS,
    seed: int = 0,
    clock: Clock = device_clock,
    on_round: Callable[[float], None] | None = None,
    until_s: float = math.inf,
) -> Mapping[str, Samples]:
    """Run blocks of frames of each variant in turns (A B B A) and return one run per variant.

    The first block of each variant is marked as warm-up; `round_id` numbers the rounds from 0.

    Args:
        frames: One or more; all variants of a round get the same ones in the same order.
        variants: Task and loaded session of each, or what marks its own stages.
        seconds: How long to go on; the least rounds run whatever it says.
        enough: Stop before that once each variant has so many frames after warm-up; None: never.
        block: Frames per block, at least 1.
        least_rounds: One or more; one has no interval by itself.
        seed: Of the order.
        clock: Nanoseconds that never go back.
        on_round: Hears after each round which share of the run is over.
        until_s: Instant on the monotonic clock at which rounds end, once two are whole.

    Raises:
        ValueError: If there is no frame, a block is empty or there are not two variants.
        OutOfTime: At the end of a time limit, before two rounds are whole; those that are whole by then do.
    """
    if len(variants) < 2 or block < 1:
        raise ValueError(f"need two variants and blocks of one frame or more, got {len(variants)} and {block}")
    rng, zero_ns, epoch_ns = np.random.default_rng(seed), clock(), time.time_ns()
    marked = {name: mark_frames(variant, frames, clock) for name, variant in variants.items()}
    for run in marked.values():
        _run_block(run, 0, block)
    rounds = 0
    wanted = least_rounds if enough is None else max(least_rounds, -(-enough // (2 * block)))
    while rounds < least_rounds or (clock() - zero_ns < seconds * 1e9 and (enough is None or rounds < wanted)):
        try:
            with limited(until_s if rounds >= LEAST_WHOLE else math.inf):
                for name in round_order(tuple(variants), rng):
                    _run_block(marked[name], len(marked[name]) - block, block)
        except OutOfTime:
            if rounds < LEAST_WHOLE:
                raise
            break
        rounds += 1
        if on_round:
            spent = max((clock() - zero_ns) / max(seconds * 1e9, 1.0), 0.0 if enough is None else rounds / wanted)
            on_round(min(1.0, spent, rounds / least_rounds))
    return {name: _samples(run, name, block, rounds, zero_ns, epoch_ns) for name, run in marked.items()}


def _run_block(run: Marked, first: int, block: int) -> None:
    for index in range(first, first + block):
        require_time()
        run.run(index)


def _samples(run: Marked, name: str, block: int, rounds: int, zero_ns: int, epoch_ns: int) -> Samples:
    """Return the rows of the warm-up and of all whole rounds."""
    rows = np.arange(len(run))
    return in_rounds(run.samples(rows < block, zero_ns=zero_ns, epoch_ns=epoch_ns, variant=name), block, rounds)


def in_rounds(samples: Samples, block: int, rounds: int) -> Samples:
    """Return the rows of the warm-up and of the whole rounds, with the number of its round at each.

    Args:
        samples: A block of warm-up, then two blocks a round.
        block: Frames of it.
        rounds: How many are whole.
    """
    rows, whole = np.arange(len(samples)), block * (1 + 2 * rounds)
    samples = replace(samples, round_id=np.maximum(rows - block, 0) // (2 * block))
    return samples if len(rows) == whole else samples.select(rows < whole)


AGAIN = " again"
"""Ending of the label of the first one's second copy."""
PICTURES = 32
_BLOCK_SECONDS = 0.04
"""Short against a neighbour's bursts, long against a cache refill."""
_MOST_LEGS = 4
_SLOW_S = 0.5
_OPENINGS = 4.0
"""A leg lasts at least so many times as long as opening its sessions, and five rounds."""


@dataclass(frozen=True, slots=True)
class TurnsMachine:
    """The clock and the collector that a run in turns uses; tests script them."""

    clock: Clock = device_clock
    read: Callable[[], CounterReading] = take_reading
    measure_anchor: Callable[[], AnchorTimes] = measure_anchor


HERE = TurnsMachine()


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run in turns lasts, and how it is cut."""

    seconds: float
    """Time for frames; the least rounds run whatever it is."""
    enough: int | None = None
    """Stop before that once each model has so many frames after warm-up; None: never."""
    most_legs: int = _MOST_LEGS
    block_seconds: float = _BLOCK_SECONDS
    least_block: int = 1
    """Frames of one model in a row, at least."""
    least_rounds: int = MIN_ROUNDS
    until_s: float = math.inf
    """Instant on the monotonic clock at which rounds end, once two are whole; openings may go on behind it."""

    def legs(self, block: int, frame_s: float, models: int, open_s: float) -> int:
        """Return into how many legs a run is cut.

        Args:
            block: Frames of one model in a row.
            frame_s: Seconds of one.
            models: How many take turns.
            open_s: Seconds to open them all.
        """
        least_s = 2 * self.least_rounds * block * frame_s * models
        return max(1, min(self.most_legs, int(self.seconds / max(least_s, _OPENINGS * open_s))))


@dataclass(frozen=True)
class Turns:
    """Raw samples of one interleaved run, and what the machine did meanwhile."""

    samples: Mapping[str, Samples]
    """Samples by label; the second copy of the first has its label and `AGAIN`."""
    readings: tuple[CounterReading, ...]
    anchors: tuple[AnchorTimes, ...]
    workers: int
    """Threads that ran at once."""
    seconds: float
    judged: tuple[str, ...] = ()
    """Parts that are judged, however little they take; empty: those that take a hundredth of the whole."""
    programs_s: float = 0.0
    """Processor seconds of programs that computed for a process of its own; the system does not count them for us."""

    @property
    def baseline(self) -> str:
        """The label of the first one."""
        return next(iter(self.samples))

    @cached_property
    def trust(self) -> Trust:
        """Whether the run can be believed."""
        return judge_turns(self.null_rounds, self.readings, self.anchors, workers=self.workers)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that can be judged, `execute` and the whole first."""
        return self.judged or parts_worth_judging(dict(self.samples))

    def with_models(self, names: Collection[str]) -> Turns:
        """Return the turns with the samples of these models only."""
        return replace(self, samples={name: sample for name, sample in self.samples.items() if name in names})

    def ratio(self, label: str, part: str, *, against: str = "", margin: float = 0.02) -> Ratio:
        """Return the ratio of one to another (the first), judged beside the first one's ratio to itself."""
        logs = self._logs(label, against or self.baseline, part)
        return ratio_of_rounds(logs, pairs=self._pairs, margin=margin, null=self.null(part, margin))

    def centre(self, label: str, part: str, *, against: str = "") -> float:
        """Return the logarithm of the ratio alone: what this process gives where several are asked."""
        return centre_of_rounds(self._logs(label, against or self.baseline, part))

    def null(self, part: str, margin: float = 0.02) -> Ratio:
        """Return the ratio of the first one's second copy to the first one."""
        return ratio_of_rounds(self._null_logs(part), pairs=self._pairs, margin=margin)

    @property
    def null_rounds(self) -> NDArray[np.float64]:
        """(n,) log of the first one's whole frame over its second copy's, one a round."""
        return self._null_logs(self.samples[self.baseline].whole)

    @property
    def _pairs(self) -> int:
        rounds = self.samples[self.baseline].steady().round_id
        assert rounds is not None
        return 2 * (int(rounds.max()) + 1)

    def _null_logs(self, part: str) -> NDArray[np.float64]:
        return round_logs(self.samples[self.baseline + AGAIN], self.samples[self.baseline], part)

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
    machine: TurnsMachine = HERE,
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

    Raises:
        OutOfTime: Where a time limit leaves none for two rounds.
    """
    place: TurnsPlace | None = current_place()
    if place is not None:
        place.begin_turns()
    first = next(iter(openers))
    opened_by = {**openers, first + AGAIN: openers[first]}
    readers = readers_of(frames.spread(PICTURES))
    rng, readings, anchors = np.random.default_rng(seed), [machine.read()], [machine.measure_anchor()]
    legs: list[Mapping[str, Samples]] = []
    spent_ns, count, block, clock = 0, pace.most_legs, 1, machine.clock
    while len(legs) < count:
        began, opened = clock(), dict[str, Opened]()
        try:
            with limited(pace.until_s if legs else math.inf):
                for name in rng.permutation(list(opened_by)).tolist():
                    require_time()
                    opened[name] = opened_by[name]()
                open_s = (clock() - began) / 1e9
                if not legs:
                    if place is None:
                        frame_s = _frame_s(mark_frames(opened[first], readers, clock))
                    else:
                        frame_s, open_s = place.pace_of(opened, first, readers)
                    block = frames_of_block(pace, frame_s, len(opened))
                    count = pace.legs(block, frame_s, len(opened), open_s)
                began, before = clock(), len(legs) / count
                legs.append(
                    (partial(run_interleaved, until_s=pace.until_s) if place is None else place.run_interleaved)(
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
        except (OutOfTime, PlaceLostError) as error:
            if not legs:
                raise
            if place is not None and isinstance(error, PlaceLostError):
                place.note_loss(error)
            break
        finally:
            for one in opened.values():
                close_opened(one)
        spent_ns += clock() - began
        readings.append(machine.read())
        anchors.append(machine.measure_anchor())
    samples = {name: join_legs([leg[name] for leg in legs]) for name in opened_by}
    if place is not None:
        readings, anchors = [*place.readings], []
    return Turns(samples, tuple(readings), tuple(anchors), workers, spent_ns / 1e9)


def _frame_s(marked: Marked) -> float:
    """Return the shortest of three frames; of a slow model one is enough."""
    shortest_s = marked.run_unmarked(0) / 1e9
    if shortest_s < _SLOW_S:
        shortest_s = min(shortest_s, *(marked.run_unmarked(0) / 1e9 for _ in range(2)))
    return max(shortest_s, 1e-6)


def frames_of_block(pace: Pace, frame_s: float, models: int) -> int:
    """Return how many frames of a model follow each other: fewer than the pace says where a time limit asks for it.

    Raises:
        OutOfTime: If not even single frames fit.
    """
    block = max(pace.least_block, min(25, round(pace.block_seconds / frame_s)))
    require_time((1 + 2 * LEAST_WHOLE) * frame_s * models)
    with limited(pace.until_s):
        left_s = time_left_s()
    if left_s < math.inf:
        block = max(1, min(block, int(left_s / ((1 + 2 * pace.least_rounds) * frame_s * models))))
    return block


def _tell_share(tell: Callable[[int, int], None], before: float, legs: int, share: float) -> None:
    """Tell how far all legs are, of which this one has done a share."""
    tell(round(100 * (before + share / legs)), Percent(100))


def join_legs(legs: Sequence[Samples]) -> Samples:
    """Return the rows of all legs with rounds numbered through."""
    rounds, offset = [], 0
    for leg in legs:
        assert leg.round_id is not None
        rounds.append(leg.round_id + offset)
        offset += int(leg.round_id.max()) + 1
    return replace(join_samples(legs), round_id=np.concatenate(rounds))
