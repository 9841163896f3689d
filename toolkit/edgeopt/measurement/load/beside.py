"""Two models on one device: each alone, both whenever they like, and both by the runtime's scheduler.

The four run in turns, in short blocks, so that what the machine does meanwhile meets all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import Sample, Tensors
from edgeopt.measurement.load.arrivals import Arrivals, Phases, make_arrivals
from edgeopt.measurement.load.closed_loop import MarkedFrames, Pictures
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.open_loop import run_open
from edgeopt.measurement.load.run import LoadPlan, Tell
from edgeopt.measurement.load.workers import Pipeline, run_together
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.runtime.schedule.lane import Lane
from edgeopt.runtime.schedule.queueing import LATEST, QueuePolicy
from edgeopt.runtime.schedule.turns import Terms, Ticket
from edgeopt.system.machine.affinity import held_to
from edgeopt.system.order_statistic import order_statistic
from edgeopt.tasks import FrameTask, Task

_ROUNDS: Final = 8
_LEAST_BLOCK_S: Final = 1.0
_WARMUP_S: Final = 1.0
"""Seconds before each block, in which the scheduler learns when frames come."""
_MARGIN: Final = 0.10
"""A p99 within a tenth of that alone counts as kept."""
_DRAIN_S: Final = 0.5


class Arrangement(StrEnum):
    """Who runs when."""

    ALONE = "alone"
    BESIDE = "beside"
    """Both whenever they like."""
    SCHEDULED = "scheduled"
    """Models run by priority, in turns where they share cores."""


@dataclass(frozen=True, slots=True)
class BesideWish:
    """The wish of `--beside`."""

    model: str
    rate_per_s: float | None
    """None: one frame after the other."""


@dataclass(frozen=True)
class Member:
    """A model of the arrangement."""

    name: str
    readers: Pictures
    plain: Pipeline
    """As it runs alone and beside."""
    scheduled: Pipeline
    """As a scheduler opens it."""
    cores: tuple[int, ...] | None
    """Cores to which a scheduler holds it; None: any."""


@dataclass(frozen=True, slots=True)
class ModelShare:
    """One model's share in one arrangement, all rounds together."""

    name: str
    arrangement: Arrangement
    frames: int
    dropped: int
    """Given up for newer ones, or still waiting at the end."""
    answers_per_s: float
    p50_ms: float
    p99_ms: float
    rounds_p99_ms: tuple[float, ...]
    p99_ratio: Ratio | None
    """p99 alone over this p99; None: this is alone."""


@dataclass(frozen=True)
class Beside:
    """Both models in all arrangements; the first has the priority."""

    shares: tuple[ModelShare, ...]
    in_turns: bool
    """Whether the scheduler lets them take turns; otherwise each has cores of its own."""
    cores: Mapping[str, tuple[int, ...] | None]

    def share(self, place: int, arrangement: Arrangement) -> ModelShare:
        """Return what the first (0) or the second (1) model got."""
        return [share for share in self.shares if share.arrangement is arrangement][place]

    @property
    def is_kept(self) -> bool | None:
        """Whether the first keeps its p99 within a tenth of that alone by the scheduler; None: not decided."""
        ratio = self.share(0, Arrangement.SCHEDULED).p99_ratio
        assert ratio is not None
        return is_kept(ratio)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        shares = [asdict(share) for share in self.shares]
        cores = {name: None if held is None else list(held) for name, held in self.cores.items()}
        return {"in_turns": self.in_turns, "cores": cores, "is_kept": self.is_kept, "shares": shares}


def is_kept(ratio: Ratio, margin: float = _MARGIN) -> bool | None:
    """Return whether what has this speed, with alone as 1, is at most a share slower; None: not decided."""
    limit = 1 / (1 + margin)
    return True if ratio.low >= limit else False if ratio.high < limit else None


def parse_beside(text: str) -> BesideWish:
    """Return the wish for `MODEL` or `MODEL@15fps`.

    Raises:
        EdgeoptError: If it names no model.
    """
    match = re.fullmatch(r"(.+?)(?:@([0-9]+(?:\.[0-9]+)?)fps)?", text.strip())
    if not match or (match[2] and not float(match[2])):
        raise EdgeoptError(f"{text!r} is no model with a rate", remedy="write MODEL or MODEL@15fps")
    return BesideWish(match[1], float(match[2]) if match[2] else None)


def run_beside(
    first: Member,
    second: Member,
    plan: LoadPlan,
    rate_per_s: float | None,
    *,
    seconds: float,
    min_frames: int,
    tell: Tell | None = None,
) -> Beside:
    """Run all arrangements in rounds.

    Args:
        first: Has the priority.
        second: Camera frames, the newest wins.
        plan: Of the first; an open load.
        rate_per_s: Of the second; None: one frame after the other.
        seconds: Least time of each arrangement, all rounds together.
        min_frames: Least frames of the first in each arrangement, all rounds together.
        tell: Hears progress.
    """
    assert plan.rate_per_s is not None
    block_s = max(_LEAST_BLOCK_S, max(seconds, min_frames / plan.rate_per_s) / _ROUNDS)
    terms = {first.name: Terms(priority=1, fps=_steady_rate(plan)), second.name: Terms()}
    lane = Lane(terms) if first.cores == second.cores else None
    found: dict[tuple[int, Arrangement], list[Samples]] = {}
    blocks = [(number, pair) for number in range(_ROUNDS) for pair in _order(number)]
    for done, (number, (places, arrangement)) in enumerate(blocks):
        if tell is not None:
            tell("arrangements", done, len(blocks))
        runs = {}
        for place in places:
            member = (first, second)[place]
            load = partial(_open, plan=plan) if place == 0 else partial(_other, rate_per_s=rate_per_s)
            runs[place] = partial(_run, member, load, block_s, number, lane, arrangement is Arrangement.SCHEDULED)
        for place, samples in _together(runs).items():
            found.setdefault((place, arrangement), []).append(samples.steady())
    if tell is not None:
        tell("arrangements", len(blocks), len(blocks))
    names = (first.name, second.name)
    shares = tuple(
        _share(names[place], other, found[place, other], found[place, Arrangement.ALONE])
        for place in (0, 1)
        for other in Arrangement
    )
    return Beside(shares, lane is not None, {other.name: other.cores for other in (first, second)})


def _steady_rate(plan: LoadPlan) -> float | None:
    """Return the frames a second that a scheduler may count on, as an app knows of its cameras."""
    is_steady = plan.load.takes_phases and (plan.streams == 1 or plan.phases is Phases.UNIFORM)
    return plan.rate_per_s if is_steady else None


def _order(number: int) -> Iterator[tuple[tuple[int, ...], Arrangement]]:
    """Yield who runs in the blocks of a round; every other round goes the other way."""
    both = (0, 1)
    blocks: list[tuple[tuple[int, ...], Arrangement]] = [
        ((0,), Arrangement.ALONE),
        (both, Arrangement.BESIDE),
        (both, Arrangement.SCHEDULED),
        ((1,), Arrangement.ALONE),
    ]
    yield from blocks if number % 2 == 0 else reversed(blocks)


def _together(runs: Mapping[int, Callable[[], Samples]]) -> dict[int, Samples]:
    result: dict[int, Samples] = {}

    def call(place: int) -> None:
        result[place] = runs[place]()

    run_together([partial(call, place) for place in runs], lambda: None)
    return result


Load = Callable[[Pictures, Pipeline, float, int], Samples]
"""Frames, what runs them, seconds after warm-up and number of the round to samples."""


def _run(member: Member, load: Load, block_s: float, number: int, lane: Lane | None, is_scheduled: bool) -> Samples:
    if not is_scheduled:
        return load(member.readers, member.plain, block_s, number)
    task, session = member.scheduled
    with ExitStack() as held:
        if lane is None:
            held.enter_context(held_to(member.cores))
        else:
            in_turns = _InTurns(task, lane, member.name)
            held.callback(in_turns.give_up)
            task = cast("Task", in_turns)  # a timed frame needs no more of it
        return load(member.readers, (task, session), block_s, number)


class _InTurns(FrameTask):
    """A task that takes a turn for each frame, from preprocess to postprocess."""

    def __init__(self, task: FrameTask, lane: Lane, name: str) -> None:
        self._task, self._lane, self._name = task, lane, name
        self.decoding = task.decoding
        self._ticket: Ticket | None = None

    @property
    def stages(self) -> tuple[str, str]:
        return self._task.stages

    def preprocess(self, frame: Sample) -> tuple[Tensors, Any]:
        self._ticket = self._lane.enter(self._name)
        return self._task.preprocess(frame)

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        answer = self._task.postprocess(outputs, geometry)
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        self._lane.leave(ticket.turn)
        return answer

    def count(self, answer: Any) -> int:
        return self._task.count(answer)

    def give_up(self) -> None:
        """Let others have the turn of a frame that failed."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._lane.leave(ticket.turn, is_typical=False)


def _open(frames: Pictures, pipeline: Pipeline, seconds: float, number: int, *, plan: LoadPlan) -> Samples:
    load = plan.load
    arrivals = make_arrivals(
        load,  # type: ignore[arg-type]
        seconds=_WARMUP_S + seconds,
        streams=plan.streams,
        phases=plan.phases,
        jitter_ms=plan.jitter_ms,
        seed=plan.seed + number,
    )
    return run_open(
        frames, [pipeline], arrivals, queue=plan.queue, warmup_s=_WARMUP_S, first_frames=1, drain_s=_DRAIN_S
    )


def _other(frames: Pictures, pipeline: Pipeline, seconds: float, number: int, *, rate_per_s: float | None) -> Samples:
    """Run the second model for as long as the first."""
    seconds += _WARMUP_S
    if rate_per_s is None:
        return _one_after_the_other(frames, pipeline, seconds)
    arrivals = make_arrivals(FixedRate(rate_per_s), seconds=max(seconds, 1.5 / rate_per_s), seed=number)
    return _serve(frames, pipeline, arrivals, LATEST)


def _serve(frames: Pictures, pipeline: Pipeline, arrivals: Arrivals, queue: QueuePolicy) -> Samples:
    return run_open(frames, [pipeline], arrivals, queue=queue, warmup_s=_WARMUP_S, first_frames=1, drain_s=_DRAIN_S)


def _one_after_the_other(frames: Pictures, pipeline: Pipeline, seconds: float) -> Samples:
    clock, (task, session) = time.perf_counter_ns, pipeline
    marked, epoch_ns, begun = MarkedFrames(frames, task, session, clock), time.time_ns(), clock()
    while clock() - begun < seconds * 1e9 or len(marked) < 2:
        marked.run(len(marked))
    ends = np.cumsum(marked.frame_ns)
    warmup = ends < min(_WARMUP_S * 1e9, ends[-1] / 2)
    return marked.samples(warmup, zero_ns=begun, epoch_ns=epoch_ns)


def _share(name: str, arrangement: Arrangement, rounds: Sequence[Samples], alone: Sequence[Samples]) -> ModelShare:
    times, times_alone = ([np.sort(samples.served().response_ns) for samples in every] for every in (rounds, alone))
    if not all(map(len, (*times, *times_alone))):
        raise EdgeoptError(f"no frame of {name} was served in a round", remedy="measure longer with --seconds")
    tails, tails_alone = (np.array([order_statistic(array, 0.99) for array in every]) for every in (times, times_alone))
    whole = np.sort(np.concatenate(times))
    is_alone = arrangement is Arrangement.ALONE
    return ModelShare(
        name,
        arrangement,
        len(whole),
        sum(int(samples.lost.sum()) for samples in rounds),
        len(whole) / sum(map(_seconds, rounds)),
        order_statistic(whole, 0.5) / 1e6,
        order_statistic(whole, 0.99) / 1e6,
        tuple(float(tail) / 1e6 for tail in tails),
        None if is_alone else ratio_of_rounds(np.log(tails_alone / tails), pairs=len(rounds), margin=_MARGIN),
    )


def _seconds(rows: Samples) -> float:
    """Return how long the rows took, from the first arrival to the last answer."""
    came = rows.started_ns if rows.intended_ns is None else rows.intended_ns
    assert came is not None
    assert rows.done_ns is not None
    return float(rows.done_ns.max() - came.min()) / 1e9
