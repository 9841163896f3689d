"""A part of the work that fails is told, and costs no other part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.optimization.run import Run
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited


@contextmanager
def told_where_it_fails(run: Run, what: str) -> Iterator[None]:
    """Do a part of the work; where it fails, say why and go on: what was made is measured, bundled and reported."""
    try:
        with limited(run.context.ends_at):
            yield
    except OutOfTime:
        told = Note(NoteKind.WARNING, f"time limit reached in {what}: what it had not finished is left out", LONGER)
        run.context.notes.append(told)
        run.listener.say(f"warning: {told}")
    except Exception as error:
        if run.replay:
            raise
        said = error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
        remedy = error.remedy if isinstance(error, EdgeoptError) else "the other candidates are not concerned"
        note = Note(NoteKind.WARNING, f"{what} failed after {run.candidates[-1].name}: {said}", remedy)
        run.context.notes.append(note)
        run.listener.say(f"warning: {note}")
