"""How many threads `optimize` gives an engine where nobody says: all cores, or one where they are not faster.

All other commands take `edgeopt.system.machine.threads.engine_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeopt.graph.model import Model
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.devices.availability import require_engine
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.threads import engine_threads, physical_cores

_SECONDS = 1.0
_WORTH = 1.05
"""All cores must be so many times as fast as one thread."""


def default_threads(model: Model, recipe: Recipe, target: Target, asked: int) -> int:
    """Return what 0 threads means for a model here: all cores, or one where they are not faster.

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
    return choose_threads(model, target, fixed_shapes(recipe, model.inputs), physical_cores())


def choose_threads(model: Model, target: Target, shapes: Mapping[str, tuple[int, ...]], cores: int) -> int:
    """Return `cores`, or 1 where they are not faster than one thread.

    Args:
        model: As it came.
        target: Its providers and options.
        shapes: Static shape of each input.
        cores: Physical cores that this process may use.
    """
    if cores < 2:
        return 1
    inputs = {spec.name: np.full(shapes[spec.name], 0.5).astype(spec.dtype) for spec in model.inputs}
    if model.is_outside:
        return cores  # two sessions do not fit into memory, and a model this large gains by every core
    sessions = {count: opening_for(target, target.float_precision, count).open(model.source) for count in (1, cores)}
    runs = {str(count): call_of(session, inputs) for count, session in sessions.items()}
    ratio = compare_calls(runs, baseline="1", seconds=_SECONDS, block=10)[str(cores)]
    for session in sessions.values():
        session.close()
    return cores if ratio.speedup >= _WORTH else 1
