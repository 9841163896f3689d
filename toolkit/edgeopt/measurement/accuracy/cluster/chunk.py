"""The part that runs on a worker: a stretch of frames is answered by a session that stays open for the next one."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError
from edgeopt.executors import Session
from edgeopt.measurement.accuracy.cluster.job import (
    AnsweredFrames,
    AnswerJob,
    CannotAnswer,
    FrameFiles,
    MachineTaken,
    SentFile,
    prove,
)
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.system.cluster.dask import worker_address
from edgeopt.system.cluster.store import MissingFiles, machine_lock, read_stored
from edgeopt.system.disk.locks import hold
from edgeopt.system.text import printable, shorten
from edgeopt.tasks import Task, make_task

_LOOK_S, _LONGEST_S = 0.02, 60.0
"""How often it is looked whether what was stopped has ended, and how long at most."""
_COLUMNS = 200
"""Width of an error as it is told."""
_stopped: set[str] = set()
"""Runs whose answers nobody waits for any more."""
_running: Counter[str] = Counter()
"""How many stretches of each run this process answers now."""
_counting = threading.Lock()


class _MachineTakenError(Exception):
    """Somebody measures on this machine."""


class _StoppedError(Exception):
    """Nobody waits for the answers."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The model that a thread of this worker has open."""

    key: tuple[str, int]
    session: Session
    task: Task
    proof: str


class _OfThread(threading.local):
    opened: _Opened | None = None


_of_thread = _OfThread()
"""Tasks reuse their buffers: each thread has one of its own."""


def answer_chunk(job: AnswerJob, part: FrameFiles) -> AnsweredFrames | MissingFiles | MachineTaken | CannotAnswer:
    """Return the answers to a stretch of frames, or why there are none."""
    try:
        return _answered(job, part)
    except Exception as error:
        return CannotAnswer(worker_address(), _line(error))


def _answered(job: AnswerJob, part: FrameFiles) -> AnsweredFrames | MissingFiles | MachineTaken:
    worker = worker_address()
    opened = _of_thread.opened
    is_open = opened is not None and opened.key == (job.run, job.number)
    wanted = part.files if is_open else (job.model, *job.first.files, *part.files)
    content = {file: read_stored(file.digest, file.origin) for file in wanted}
    if absent := frozenset(file.digest for file, data in content.items() if data is None):
        return MissingFiles(worker, absent)
    known = {file: data for file, data in content.items() if data is not None}
    try:
        with _counted(job.run), nullcontext() if job.is_own else hold(machine_lock(), is_shared=True, on_wait=_leave):
            opened = _open(job, known)

            def look(what: str, done: int, of: int) -> None:
                if job.run in _stopped:
                    raise _StoppedError("nobody waits for the answers")

            frames = part.frames([known[file] for file in part.files])
            return AnsweredFrames(worker, opened.proof, tuple(answers(opened.session, opened.task, frames, look)))
    except _MachineTakenError:
        return MachineTaken(worker)


def _line(error: Exception) -> str:
    text = error.problem if isinstance(error, EdgeoptError) else str(error)
    return printable(shorten(next(iter(text.splitlines()), ""), _COLUMNS)) or type(error).__name__


async def stop_run(run: str) -> None:
    """Let what a run asked for end after the frame at hand, and wait until it did."""
    _stopped.add(run)
    for _ in range(int(_LONGEST_S / _LOOK_S)):
        if not _running[run]:
            return
        await asyncio.sleep(_LOOK_S)


def _open(job: AnswerJob, content: dict[SentFile, bytes]) -> _Opened:
    """Return a job's model open in this thread; what it had open before is closed."""
    opened, key = _of_thread.opened, (job.run, job.number)
    if opened and opened.key == key:
        return opened
    if opened:
        _of_thread.opened = None
        opened.session.close()
    session = job.opening.with_entries(job.opening.sharing).open(content[job.model])
    task = make_task(job.recipe, job.inputs, job.outputs, evaluating=job.is_evaluating)
    proof, _ = prove(session, task, job.first.frames([content[file] for file in job.first.files]))
    _of_thread.opened = _Opened(key, session, task, proof)
    return _of_thread.opened


def _leave() -> None:
    raise _MachineTakenError


@contextmanager
def _counted(run: str) -> Iterator[None]:
    with _counting:
        _running[run] += 1
    try:
        yield
    finally:
        with _counting:
            _running[run] -= 1
