"""How many threads `optimize` gives an engine where nobody says: one, the fast cores or all, by what is fastest.

All other commands take `edgeopt.system.machine.threads.engine_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgeopt.graph.model import Model
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.devices.availability import require_engine
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.threads import engine_threads, physical_cores, usual_threads

_SECONDS = 1.0
_WORTH = 1.05
"""More threads must be so many times as fast as fewer."""


def default_threads(model: Model, recipe: Recipe, target: Target, asked: int) -> int:
    """Return what 0 threads means for a model here: the fastest of one thread, the fast cores and all.

    Args:
        model: As it came.
        recipe: Bound to the model; it says the shapes that are left free.
        target: One that says its threads, or is not this machine, is not measured.
        asked: By a person; 0: nothing. What was asked for is not measured either.

    Raises:
        UnavailableError: If the target's engine is to be measured and is not here.
    """
    if asked or target.threads or target.why_not_here():
        return engine_threads(0)
    require_engine(target, 1)
    counts = counts_to_try(usual_threads(), physical_cores())
    return choose_threads(model, target, fixed_shapes(recipe, model.inputs), counts)


def counts_to_try(fast: int, cores: int) -> list[int]:
    """Return the numbers of threads that are worth a measurement, the least first.

    Args:
        fast: Physical cores of the fastest kind.
        cores: All physical cores: a model may gain by slow ones too.
    """
    return sorted({1, fast, cores})


def choose_threads(model: Model, target: Target, shapes: Mapping[str, tuple[int, ...]], counts: Sequence[int]) -> int:
    """Return the least number of threads that no larger one beats.

    Args:
        model: As it came.
        target: Its providers and options.
        shapes: Static shape of each input.
        counts: Numbers of threads, the least first.
    """
    if len(counts) < 2:
        return counts[0]
    inputs = {spec.name: np.full(shapes[spec.name], 0.5).astype(spec.dtype) for spec in model.inputs}
    if model.is_outside:
        return counts[1]  # two sessions do not fit into memory, and a model this large gains by every fast core
    sessions = {count: opening_for(target, target.float_precision, count).open(model.source) for count in counts}
    runs = {str(count): call_of(session, inputs) for count, session in sessions.items()}
    ratios = compare_calls(runs, baseline=str(counts[0]), seconds=_SECONDS, block=10)
    for session in sessions.values():
        session.close()
    best, speed = counts[0], 1.0
    for count in counts[1:]:
        if ratios[str(count)].speedup >= _WORTH * speed:
            best, speed = count, ratios[str(count)].speedup
    return best
