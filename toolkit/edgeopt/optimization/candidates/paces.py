"""Which engine's INT8 is worth a search: its first form is timed against the best that another engine has."""

from __future__ import annotations

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.model import Model
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.optimization.run import Run
from edgeopt.steps._context import Engine, Setting

_SECONDS, _BLOCK = 2.0, 3
"""A look at both float models in turns."""
_LATER = 1.3
"""Times that later forms of a search may be faster than its first: with slow layers in float YOLOX gained 5 to 30 %."""


def least_int8_speed(run: Run, model: Model, engine: Engine, precision: str) -> float:
    """Return how fast the first INT8 form of an engine must be for a search to go on; 0 where nothing is known.

    Args:
        run: Its context knows what earlier searches found.
        model: The float model.
        engine: Another one than the target's own.
        precision: The scheme whose arithmetic of floats the search compares with.

    Returns:
        The time of the engine's float model over that of the form.
    """
    speeds, own = run.context.int8_speeds, run.context.engine
    if not speeds or run.untimed or model.is_outside:
        return 0.0
    best = max(pace_of(run, name) * speed for name, speed in speeds.items())
    try:
        run.paces[engine.target.name] = _pace(run, model, own, engine, precision)
    except EdgeoptError:  # the search itself tells what is wrong
        return 0.0
    return best / (_LATER * run.paces[engine.target.name])


def pace_of(run: Run, name: str) -> float:
    """Return the time of the float model on the target's own engine over that on another; 1 of its own."""
    return run.paces.get(name, 1.0)


def why_cut_short(run: Run, setting: Setting) -> list[Note]:
    """Return a note where the first form of a search was too slow to go on."""
    speeds, name = run.context.int8_speeds, setting.engine.target.name
    speed = speeds.get(name, 0.0)
    if not 0 < speed < setting.least_speed:
        return []
    best = max(speeds, key=lambda other: pace_of(run, other) * speeds[other])
    share = pace_of(run, best) * speeds[best] / (pace_of(run, name) * speed)
    detail = f"INT8 on {name} not searched further: its first form takes about {share:.1f} times as long as on {best}"
    return [Note(NoteKind.SKIPPED, detail)]


def _pace(run: Run, model: Model, own: Engine, engine: Engine, precision: str) -> float:
    inputs = run.context.inputs(1, model)[0]
    sessions = list[Session]()
    try:
        sessions.append(own.open(model, own.target.float_precision))
        sessions.append(engine.open(model, precision))
        runs = {name: call_of(session, inputs) for name, session in zip(("own", "other"), sessions, strict=True)}
        return compare_calls(runs, baseline="own", seconds=_SECONDS, block=_BLOCK)["other"].speedup
    finally:
        for session in sessions:
            session.close()
