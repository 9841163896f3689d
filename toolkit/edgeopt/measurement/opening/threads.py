"""How many threads `optimize` gives an engine where nobody says, and whether it is held to the fast cores.

One thread, the fast cores or all, by what is fastest; held only where that is proven. All other commands take
`edgeopt.system.machine.threads.engine_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.devices.availability import load_executor, require_engine
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.affinity import FAST, held_processors, threads_in_words
from edgeopt.system.machine.place import current_place
from edgeopt.system.machine.threads import engine_threads, physical_cores, usual_threads

_SECONDS = 1.0
_WORTH = 1.05
"""More threads must be so many times as fast as fewer."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """Threads of an engine, and the cores that they are held to."""

    threads: int
    cores: str = ""
    """`fast`, or empty: the system places them."""
    note: Note | None = None
    """How much faster they are held to the fast cores; None: that was not measured."""

    def __str__(self) -> str:
        return threads_in_words(self.threads, self.cores)

    def proven_over(self, other: ThreadUse, speed: Ratio) -> ThreadUse:
        """Return this use where it is proven faster than another, else the other; its note tells the ratio."""
        is_proven = speed.verdict is Change.FASTER
        detail = f"{self}: {speed} as fast as {other} on any core{'' if is_proven else ', not proven'}"
        return replace(self if is_proven else other, note=Note(NoteKind.INFO, detail))


def default_threads(model: Model, recipe: Recipe, target: Target, asked: int) -> ThreadUse:
    """Return what 0 threads means for a model here: the fastest of one thread, the fast cores, held or not, and all.

    Args:
        model: As it came.
        recipe: Bound to the model; it says the shapes that are left free.
        target: One that says its threads, or is not this machine, is not measured.
        asked: By a person; 0: nothing. What was asked for is not measured either.

    Raises:
        UnavailableError: If the target's engine is to be measured and is not here.
    """
    # calls that go one by one to another machine tell nothing of frames that follow each other there
    if asked or target.threads or target.why_not_here() or current_place() is not None:
        return ThreadUse(engine_threads(0))
    executor, fast = require_engine(target, 1), usual_threads()
    # a target that names no cores leaves it to a measurement to hold its engine to some
    may_hold = not target.cores and target.device == "cpu" and executor.holds_cores
    uses = uses_to_try(fast, physical_cores(), may_hold=may_hold and bool(held_processors(FAST, fast)))
    return choose_threads(model, target, fixed_shapes(recipe, model.inputs), uses)


def uses_to_try(fast: int, cores: int, *, may_hold: bool = False) -> list[ThreadUse]:
    """Return the uses of threads that are worth a measurement, the least first.

    Args:
        fast: Physical cores of the fastest kind.
        cores: All physical cores: a model may gain by slow ones too.
        may_hold: Whether the fast cores are tried a second time, held to them.
    """
    free = [ThreadUse(count) for count in sorted({1, fast, cores})]
    return [*free, ThreadUse(fast, FAST)] if may_hold else free


def choose_threads(
    model: Model, target: Target, shapes: Mapping[str, tuple[int, ...]], uses: Sequence[ThreadUse]
) -> ThreadUse:
    """Return the least number of threads that no larger one beats; held to cores where that is proven faster.

    Args:
        model: As it came.
        target: Its providers and options.
        shapes: Static shape of each input.
        uses: Those that are left to the system by their numbers, the least first, then those that are held.
    """
    if len(uses) < 2:
        return uses[0]
    if load_executor(target.executor).one_pool:
        return uses[1]  # every fast core, as of a model whose sessions do not fit into memory
    inputs = {spec.name: np.full(shapes[spec.name], 0.5).astype(spec.dtype) for spec in model.inputs}
    if model.is_outside:
        return uses[1]  # two sessions do not fit into memory, and a model this large gains by every fast core
    sessions = {
        str(use): opening_for(replace(target, cores=use.cores or target.cores), target.float_precision, use.threads)
        for use in uses
    }
    opened = {name: opening.open(model.source) for name, opening in sessions.items()}
    runs = {name: call_of(session, inputs) for name, session in opened.items()}
    ratios = compare_calls(runs, baseline=str(uses[0]), seconds=_SECONDS, block=10)
    best, speed = uses[0], 1.0
    for use in (use for use in uses[1:] if not use.cores):
        if ratios[str(use)].speedup >= _WORTH * speed:
            best, speed = use, ratios[str(use)].speedup
    for use in (use for use in uses if use.cores):
        # what leads by chance among several is measured anew beside the best
        again = {str(each): runs[str(each)] for each in (best, use)}
        held = compare_calls(again, baseline=str(best), seconds=_SECONDS, block=10, seed=1)[str(use)]
        best = use.proven_over(best, held)
    for session in opened.values():
        session.close()
    return best
