"""When an engine whose conversions take long is tried beside the target's own: after the others, where time allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.optimization.run import Run
from edgeopt.steps._context import Engine
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited, longer

_SHARE = 0.5
"""Share of the time left for making candidates that the first look at a heavy engine may take."""
_SPARE = 1.5
"""Times what its conversions are expected to take that must be left: expectations err by so much."""
_TELLING = 0.05
"""Share of a time limit that must be left to reckon from it which one would do."""
_LOOKS = 2
"""Conversions of a look and a float form: the model as it came, and what the steps made of it."""


def is_tried(run: Run, engine: Engine, model: Model) -> bool:
    """Return whether forms of a model are made for an engine; where they are not, a note says why.

    A heavy one is first looked at here: whether the time limit leaves room for its conversions, and whether what it
    computes is right, which takes the first of them. The others were looked at before the run began.

    Args:
        run: Its notes and its time.
        engine: Of the target, or beside it.
        model: That forms would be made of.
    """
    if engine is run.context.engine or not engine.executor.heavy:
        return True
    name = engine.target.name
    if run.replay:
        return any(candidate.profile == name for candidate in run.replay.candidates.values())
    if name in run.left_out:
        return False
    again, run.left_out = name in run.looked_at, run.left_out | {name}
    try:
        is_asked = engine.target.executor in run.plan.emit  # then only the limit itself ends it
        note = None if is_asked else _why_no_time(run, engine, model)
        if note is None and not again:
            with limited(monotonic() + _SHARE * _left_s(run)):
                fault = run.fault_of(engine.target)
            note = Note(NoteKind.SKIPPED, fault) if fault else None if is_asked else _why_no_time(run, engine, model)
    except OutOfTime:
        text = "its conversion did not end in half of the time that was left"
        note = Note(NoteKind.SKIPPED, text, _twice_as_long(run))
    except EdgeoptError as error:
        note = Note(NoteKind.SKIPPED, error.problem, error.remedy)
    run.looked_at |= {name}
    if note is None:
        run.left_out -= {name}
        return True
    run.context.notes.append(
        Note(note.kind, f"{name} not tried{' further' if again else ''}: {note.detail}", note.hint)
    )
    return False


@contextmanager
def within_its_time(run: Run, engine: Engine) -> Iterator[None]:
    """Have what a heavy engine's conversions take end before the time that is kept for measuring all candidates."""
    if engine is run.context.engine or not engine.executor.heavy:
        yield
        return
    try:
        with limited(run.context.candidates_end):
            yield
    except OutOfTime:
        text = f"time limit reached while {engine.target.name} was tried: what it had not finished is left out"
        run.context.notes.append(Note(NoteKind.WARNING, text, _twice_as_long(run)))


def _twice_as_long(run: Run) -> str:
    """Return what to do where a conversion did not end: nobody knows how much of it was left."""
    return longer(2 * run.context.time_limit_s) if run.context.time_limit_s else LONGER


def _why_no_time(run: Run, engine: Engine, model: Model) -> Note | None:
    """Return why the time limit leaves no room for the conversions to come; None: it does."""
    each_s, left_s = engine.executor.conversion_s(model.source), _left_s(run)
    needed_s, limit_s = _SPARE * _LOOKS * each_s, run.context.time_limit_s
    if needed_s <= left_s:
        return None
    text = f"a conversion takes about {each_s:.0f} s, and {max(left_s, 0.0):.0f} s are left for making candidates"
    # a longer limit is also divided among the engines before it
    is_told = limit_s is not None and left_s > _TELLING * limit_s
    return Note(NoteKind.SKIPPED, text, longer((limit_s or 0.0) * needed_s / left_s) if is_told else LONGER)


def _left_s(run: Run) -> float:
    return run.context.candidates_end - monotonic()
