"""Points along the frontier of speed and loss: pruned models, each repaired and measured whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.steps.prune.costs import Costs
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.greedy import CutChoice, choices
from edgeopt.steps.prune.network.depth import groups_inside
from edgeopt.steps.prune.repairs import Mended
from edgeopt.steps.prune.sensitivity import Sensitivity
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited

SAVED = (0.03, 0.04, 0.05, 0.06, 0.075, 0.09, 0.12, 0.16, 0.20, 0.30, 0.50)
"""Shares of the dense model's time at which points are made."""
UNTIMED = (0.05, 0.09, 0.16)
"""The same where nothing is timed: no such point is chosen unless it was asked for, so a few show what it costs."""
LEAST_SPEEDUP = 1.03
"""Below it the dense model stays: so little is not worth any loss."""
MOST_LOSS = 0.5
"""Most of a point's own loss: beyond it no point is made, nor any faster one."""
_CUT = Note(NoteKind.WARNING, "the time limit ended the search", LONGER)
_MOST_TRIES = 4
"""Most tries of a speed that was asked for: the table's estimate is mended by what was measured."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The wished share or speed; nothing: points all along the frontier."""

    ratio: float = 0.0
    """Share of the channels that can be removed, by number."""
    speedup: float = 0.0
    """Speedup of the whole model, measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """One pruned model."""

    model: Model
    keep: Mapping[str, int]
    """Channels that stay, by the name of each group that lost any."""
    kept: Mapping[str, NDArray[np.int64]]
    """Which ones, sorted."""
    removed_blocks: tuple[str, ...]
    repair: str
    """Name of the repair of its weights; empty: none was made."""
    expected_ratio: float
    """Speed against the dense model, by the latency table."""
    measured: Ratio | None
    """The same, measured in turns; None where the target is not here."""
    loss: float
    """Loss on held-out pictures: 0 none, 1 everything."""

    def is_twin_of(self, other: Point) -> bool:
        """Whether the same is gone of both: only their weights differ."""
        return (self.keep, self.removed_blocks) == (other.keep, other.removed_blocks)

    @property
    def speedup(self) -> float:
        """The best known figure of its speed."""
        return self.expected_ratio if self.measured is None else self.measured.speedup


@dataclass(frozen=True, slots=True)
class Frontier:
    """The frontier, the fastest last, and what is to be said of it."""

    points: tuple[Point, ...]
    frontier: tuple[Point, ...]
    """All that were made, also those that are not faster."""
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class PruneSearch:
    """The functions that the search needs of others."""

    dense: Dense
    costs: Costs
    loss: Callable[[Model], float]
    """Loss of a model against the dense one, on held-out pictures."""
    repair: Callable[[Mapping[str, NDArray[np.int64]]], Iterable[Mended]]
    """Returns the dense model with some channels kept, its weights mended, in the best way first; see `Repairs`."""
    measure: Callable[[Model], Ratio] | None
    """Returns a whole model's speed against the dense one; None: the target is not here."""
    progress: Callable[[str, int, int], None] | None = None
    on_point: Callable[[Point], None] | None = None
    ends_at_s: float = math.inf
    """Second of the monotonic clock at which the points so far are all; without a ranking by then there are none."""
    cut: Note = _CUT
    """Note for a search that `ends_at_s` ended."""
    device: str = ""
    """The device that is not here and whose times the costs predict; empty: nothing does."""

    @property
    def saved(self) -> tuple[float, ...]:
        """Shares of the dense model's time, or of its multiplications, at which points are made."""
        return SAVED if self.measure or self.device else UNTIMED


def find_points(search: PruneSearch, goal: Goal | None = None) -> Frontier:
    """Return pruned models, the fastest last; none where none is worth its loss.

    Args:
        search: The model, and what judges it.
        goal: One point in place of the frontier; it is given even where it loses much.
    """
    goal, made, notes = goal or Goal(), list[Point](), list[Note]()
    try:
        for point in _asked(search, goal) if goal.ratio or goal.speedup else _frontier(search):
            made.append(point)
    except OutOfTime:
        notes.append(search.cut)
    if goal.ratio or goal.speedup:
        made = made[-1:]
    faster = tuple(point for point in made if _is_faster(point, search.measure is not None))
    return Frontier(faster, tuple(made), tuple(notes or _notes(made, faster, search)))


def _choices(search: PruneSearch) -> Iterator[CutChoice]:
    dense = search.dense
    with limited(search.ends_at_s):
        steps = {group.name: dense.removal(group.name).levels for group in dense.free}
    inside = groups_inside(dense.blocks, dense.groups)
    most = sum(1 for counts in steps.values() if counts) + len(inside)

    def judged(count: int) -> None:
        if search.progress:
            search.progress("cuts judged", count, max(most, count))

    return choices(
        search.costs, steps, Sensitivity(dense, search.loss, progress=judged, ends_at_s=search.ends_at_s), inside
    )


def _frontier(search: PruneSearch) -> Iterator[Point]:
    """Yield a point at each share of time saved, until nothing is left of the answers."""
    ahead = list(search.saved)
    for choice in _choices(search):
        if not ahead or monotonic() > search.ends_at_s:
            return
        if choice.saved_ratio < ahead[0]:
            continue
        ahead = [number for number in ahead if number > choice.saved_ratio]
        points = _points(search, choice)
        first = next(points)
        if first.loss > MOST_LOSS:
            return
        yield first
        if search.measure:
            yield from points


def _asked(search: PruneSearch, goal: Goal) -> Iterator[Point]:
    """Yield points that come nearer and nearer to what was asked for."""
    whole = sum(group.channels for group in search.dense.free)
    wanted, tries, last = goal.speedup, 0, None
    for choice in _choices(search):
        last = choice
        if goal.ratio:
            if _removed(search.dense, choice) < goal.ratio * whole:
                continue
            yield next(_points(search, choice))
            return
        if choice.speedup < wanted:
            continue
        point = next(_points(search, choice))
        yield point
        tries += 1
        if point.speedup >= goal.speedup or tries == _MOST_TRIES:
            return
        wanted, last = choice.speedup * goal.speedup / point.speedup, None
    if last is not None:
        yield next(_points(search, last))


def _removed(dense: Dense, choice: CutChoice) -> int:
    inside = groups_inside(dense.blocks, dense.groups)
    gone = {name for block in choice.removed for name in inside[block]}
    return sum(
        group.channels if group.name in gone else group.channels - choice.keep.get(group.name, group.channels)
        for group in dense.free
    )


def _points(search: PruneSearch, choice: CutChoice) -> Iterator[Point]:
    """Yield what is made of a choice, by each way of repair that may be the best: they are equally fast."""
    dense, kept = search.dense, search.dense.kept(choice.keep)
    measured: Ratio | None = None
    for mended in search.repair(kept):
        model = dense.without(mended.model, choice.removed)
        if measured is None and search.measure:
            measured = search.measure(model)
        loss = search.loss(dense.without(mended.judged, choice.removed))
        point = Point(model, choice.keep, kept, choice.removed, mended.how, choice.speedup, measured, loss)
        if search.on_point:
            search.on_point(point)
        yield point


def _is_faster(point: Point, is_measured: bool) -> bool:
    """Whether a point saves what is worth a loss: proven where it can be measured."""
    if point.speedup < LEAST_SPEEDUP:
        return False
    return not is_measured or (point.measured is not None and point.measured.low > 1)


def _notes(made: Sequence[Point], faster: Sequence[Point], search: PruneSearch) -> Iterable[Note]:
    if faster:
        return
    if not made:
        yield Note(NoteKind.INFO, "the dense model stays: every cut that saves time loses too much")
        return
    best = max(made, key=lambda point: point.speedup)
    basis = f"as predicted for {search.device}" if search.device else "by the number of multiplications"
    text = f"{best.measured}" if best.measured else f"{best.expected_ratio:.2f}x {basis}"
    yield Note(NoteKind.INFO, f"the dense model stays: pruned it is {text} as fast, and {LEAST_SPEEDUP:g}x pays")
