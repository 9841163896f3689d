"""The step `prune`: pruned models of a float one, given this run's pictures, engine and clock."""

from __future__ import annotations

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.groups import require_prunable, trace
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.runtime.availability import is_by_rule, is_compiled
from edgeopt.steps._context import Context, Setting
from edgeopt.steps.prune.channel_step import channel_step
from edgeopt.steps.prune.costs import Costs
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.latency_table import LatencyTable, can_time, multiply_adds, stopwatch_of
from edgeopt.steps.prune.layer_shapes import Layers
from edgeopt.steps.prune.loss import HeldOutLoss, fitting_count, held_out
from edgeopt.steps.prune.points import Goal, Point, Search, find_points
from edgeopt.steps.prune.repairs import Repairs
from edgeopt.steps.prune.statistics import collect
from edgeopt.steps.prune.whole import WholeModels

_MOST_KEPT = 4
"""Points that go on, each to be scored and measured by the run."""
_NO_PICTURES = Note(
    NoteKind.WARNING,
    "pruned by the size of the weights alone: there are no calibration pictures",
    "pass --calib FOLDER with about 100 unlabelled pictures: they rank channels and mend what is left",
)


def prune(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    """Return pruned models, the fastest first; none where the dense model stays.

    Args:
        model: The float model, with fixed shapes.
        context: Its pictures fit and judge, its engine times.
        setting: Whose precision holds.

    Raises:
        UnsupportedError: If the model cannot be pruned: see `require_prunable`.
    """
    require_prunable(model)
    asked = context.pruning
    target, engine = context.target, setting.engine
    is_here = not (is_by_rule(target) or is_compiled(target))
    if not is_here and not asked.ratio:
        told = f"{target.name} is not here to be timed: nothing is pruned unless --prune RATIO asks"
        context.notes.append(Note(NoteKind.SKIPPED, told))
        return []
    precision = _precision(context, setting)
    step = channel_step(engine, precision, is_here=is_here)
    fitted, judged = _pictures(context, model)
    groups = trace(model)
    is_seen = context.frames.source.name != "synthetic"
    statistics = collect(model, iter(fitted), groups) if is_seen else None
    dense = Dense(model, groups, statistics, step=step.channels)
    table = LatencyTable(stopwatch_of(engine, precision) if is_here and can_time(engine) else multiply_adds)
    costs = Costs(Layers(model, groups, dense.kept_of), table, {name: one.nodes for name, one in dense.blocks.items()})
    loss = HeldOutLoss(model, context.task(model, evaluating=True), judged, context.threads)
    whole = WholeModels(model, engine, precision, judged[:4]) if is_here else None
    search = Search(
        dense,
        costs,
        loss,
        Repairs(dense, loss, fitted),
        whole.ratio if whole else None,
        context.listener.progress,
        lambda point: context.listener.say(f"  {_told(point)}"),
        context.searches_end,
    )
    try:
        found = find_points(search, Goal(asked.ratio, asked.speedup))
    finally:
        if whole:
            whole.close()
    context.notes += [*found.notes, *([] if is_seen else [_NO_PICTURES])]
    return [_outcome(one, step.note) for one in reversed(found.points[-_MOST_KEPT:])]


def _precision(context: Context, setting: Setting) -> str:
    """Return the precision in which the pruned model will run: INT8 where a later step makes it."""
    int8 = [one for one in setting.engine.target.precisions if one.startswith("w8a8")]
    runs = [one for one in int8 if not setting.engine.target.why_no_precision(one)]
    return runs[0] if context.quantizes and runs else setting.engine.target.float_precision


def _pictures(context: Context, model: Model) -> tuple[list[Tensors], list[Tensors]]:
    first = context.inputs(1, model)[0]
    taken = context.inputs(fitting_count(first), model)
    return held_out([{name: np.array(value) for name, value in one.items()} for one in taken])


def _outcome(point: Point, step: Note) -> Outcome:
    gone = len(point.keep) + len(point.removed_blocks)
    return Outcome(point.model, {"pruned": gone}, (Note(NoteKind.CHOICE, _told(point)), step))


def _told(point: Point) -> str:
    speed = f"{point.measured}" if point.measured else f"{point.expected_ratio:.2f}x"
    mended = f", repaired {point.repair}" if point.repair else ""
    return f"pruned {len(point.keep)} groups: {speed}, loss {point.loss:.3f}{mended}"
