"""A stretch of work on a cluster: models are asked about the same frames, in parts that go to whoever is free.

Borders of parts follow from the number of frames alone. The answers of a worker count if it makes of the first frame
what this machine makes of it, bit by bit. Parts that are lost go to others; what nobody answers is left to the caller.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias
from uuid import uuid4

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.measurement.accuracy.cluster.chunk import answer_chunk, stop_run
from edgeopt.measurement.accuracy.cluster.job import (
    AnsweredFrames,
    AnswerJob,
    CannotAnswer,
    FrameFiles,
    MachineTaken,
    SentFile,
)
from edgeopt.measurement.accuracy.cluster.likeness import WorkerFacts, why_unlike, worker_facts
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.pictures import PictureReader
from edgeopt.system.cluster.dask import workers_of
from edgeopt.system.cluster.store import MissingFiles, forget_old, send
from edgeopt.system.processes.time_limit import require_time
from edgeopt.system.text import plural, short

_PARTS, _MOST_FRAMES = 64, 64
"""Into how many parts frames are divided at least, where there are as many, and how many are in one at most."""
_AHEAD, _AHEAD_OF_NEXT = 2, 8
"""Parts that each worker's thread has at a time: one that it answers, and the next one; and how many of them there may
be where some are of the next model: workers answer them while this process judges the one before."""
_LOOK_S, _WORKERS_S, _PATIENCE_S = 0.2, 1.0, 5.0
"""How often it is looked at the clock, and at which workers there are; how long an answer may be on its way, which is
doubled where that is not enough."""
_MOST_SLOTS = 256
"""Threads of a worker that are believed."""
_LATE_S = 15.0
"""Seconds after which a part goes from the worker that has it to one that has nothing to do."""
_MOST_SENT, _MOST_LOST = 3, 3
"""Times that the files of one part are sent, and that a worker ends with it before it counts as what ends them."""
_OTHER_BITS = "it makes other numbers of the first frame"
Tell: TypeAlias = Callable[[int], None]
"""Hears how many frames are answered."""


@dataclass
class ModelWork:
    """A model on its way through the parts of the frames."""

    job: AnswerJob
    waiting: deque[int]
    """Numbers of parts that nobody has."""
    answered: dict[int, AnsweredFrames] = field(default_factory=dict)
    proof: str = ""
    """Hash of this machine's answer to the first frame; empty: not known yet."""
    fault: str = ""
    """Why workers do not answer this model; empty: they do."""


@dataclass
class _Hand:
    """A worker."""

    slots: int
    parts: int = 0
    """Parts that it has now."""


class ClusterSection:
    """Work of one or more models on the same frames."""

    def __init__(self, client: Any, frames: Frames, folder: Path, say: Callable[[str], None], *, is_own: bool) -> None:
        """Begin it.

        Args:
            client: Of a cluster whose workers are vetted here.
            frames: What is answered; their first is answered by the caller.
            folder: Empty; files for workers are written there.
            say: Hears one line.
            is_own: Whether the workers belong to this process alone.
        """
        self._client, self._frames, self._folder, self._say = client, frames, folder, say
        self._run, self._is_own, self._mine = uuid4().hex, is_own, None if is_own else worker_facts()
        count = len(frames) - 1
        size = max(1, min(_MOST_FRAMES, count // _PARTS))
        self.parts = [range(first, min(first + size, len(frames))) for first in range(1, len(frames), size)]
        self._files: dict[int, FrameFiles] = {}
        self._places: dict[str, Path] = {}
        self._owners: dict[int, str] = {}
        """Which worker has the files of a part: it gets the same part of the next model."""
        self._hands: dict[str, _Hand] = {}
        self._known: set[str] = set()
        self._sent, self._ends = Counter[tuple[str, int]](), Counter[tuple[int, int]]()
        self._works: list[ModelWork] = []
        self._current: ModelWork | None = None
        self.left_out: dict[str, str] = {}
        """Why workers are asked nothing, by address."""
        self._flying: dict[Any, tuple[ModelWork, int, str]] = {}
        self._given_s: dict[Any, float] = {}
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._looked_s, self._patience_s, self.is_lost = 0.0, _PATIENCE_S, False
        self._look()

    @property
    def workers(self) -> int:
        """How many workers there are that compute as this machine does."""
        return len(self._hands)

    def add(self, runnable: Runnable, *, is_evaluating: bool) -> ModelWork:
        """Return the work of a model, which begins behind those before it."""
        assert isinstance(runnable.source, bytes | Path)
        source = runnable.source
        model = self._placed(source) if isinstance(source, Path) else self._written(source)
        job = AnswerJob(
            run=self._run,
            number=len(self._works),
            model=model,
            opening=runnable.opening,
            recipe=runnable.recipe,
            inputs=runnable.inputs,
            outputs=runnable.outputs,
            is_evaluating=is_evaluating,
            first=self._files_of(range(1)),
            is_own=self._is_own,
        )
        work = ModelWork(job, deque(range(len(self.parts))))
        self._works.append(work)
        return work

    def finish(self, work: ModelWork, proof: str, tell: Tell, follow: Callable[[], None]) -> None:
        """Have all parts of a model answered, as far as there are workers that do.

        Args:
            work: Of this section.
            proof: What this machine makes of the first frame.
            tell: Hears how many frames are answered, each time that this changes.
            follow: Called where hands are free: adds the next model, if there is one.

        Raises:
            OutOfTime: At the end of a time limit.
            InvalidFileError: If a picture is not any more what it was.
        """
        self._current, work.proof, done = work, proof, -1
        for worker in {each.worker for each in work.answered.values() if each.proof != proof}:
            self._leave_out(worker, _OTHER_BITS)
        while len(work.answered) < len(self.parts) and not work.fault and not self.is_lost:
            require_time()
            self._look()
            if not self._hands:
                return
            self._hand_out(follow)
            if (count := sum(len(self.parts[part]) for part in work.answered)) != done:
                tell(done := count)
            try:
                self._take(self._events.get(timeout=_LOOK_S))
            except Empty:
                continue
        tell(sum(len(self.parts[part]) for part in work.answered))

    def forget(self, work: ModelWork) -> None:
        """Free the answers of a model, which the caller has."""
        work.waiting.clear()
        work.answered.clear()

    def end(self) -> None:
        """Let all that is still asked for end, and wait for it: nothing of it computes any more."""
        flying, self._flying = self._flying, {}
        if self.is_lost:
            return
        try:
            if flying:
                self._client.cancel([*flying], force=True)
                self._client.run(stop_run, self._run, workers=[*self._hands], on_error="ignore")
            if not self._is_own:
                self._client.run(forget_old, workers=[*self._hands], on_error="ignore")
        except Exception:  # the cluster may be what failed
            return

    def _look(self) -> None:
        """Look which workers there are, once a second: one that ended gives its parts back, one that came is vetted."""
        if monotonic() - self._looked_s < _WORKERS_S:
            return
        self._looked_s = monotonic()
        try:
            present = workers_of(self._client)
            for worker in [*self._hands]:
                if worker not in present:
                    del self._hands[worker]
                    self._take_back(worker)
                    self._say(f"cluster: the worker {worker} ended; others go on with its part")
            if not (new := [worker for worker in present if worker not in self._known]):
                return
            facts = self._client.run(worker_facts, workers=new, on_error="return") if self._mine else {}
        except Exception as error:  # whatever Dask raises where the scheduler is gone
            self._lose(error)
            return
        for worker in new:
            self._known.add(worker)
            slots, fact = min(max(int(present[worker]["nthreads"]), 1), _MOST_SLOTS), facts.get(worker)
            why = why_unlike(self._mine, fact) if self._mine else ""
            if isinstance(fact, WorkerFacts) and fact.tasks >= slots:
                why = why or "it computes for somebody else"
            if why:
                self._tell_left_out(worker, why)
            else:
                self._hands[worker] = _Hand(slots)

    def _hand_out(self, follow: Callable[[], None]) -> None:
        """Give parts to workers that have few: of the models in their order."""
        for worker, hand in self._hands.items():
            while hand.parts < _AHEAD_OF_NEXT * hand.slots:
                if not any(work.waiting for work in self._works if not work.fault):
                    follow()
                work = next((work for work in self._works if work.waiting and not work.fault), None)
                if work is None and not hand.parts:
                    work = self._take_late(worker)
                if work is None:
                    break
                if work is self._current and hand.parts >= _AHEAD * hand.slots:
                    break
                self._give(work, self._chosen(work, worker), worker, hand)

    def _take_late(self, worker: str) -> ModelWork | None:
        """Take back a part that another worker has had for long, for one that has nothing to do; return its model."""
        for future, (work, part, other) in self._flying.items():
            if work is self._current and other != worker and monotonic() - self._given_s[future] > _LATE_S:
                self._let_go(future)
                self._client.cancel([future], force=True)
                work.waiting.append(part)
                return work
        return None

    def _chosen(self, work: ModelWork, worker: str) -> int:
        """Return a part of a model for a worker: one whose files it has, else one that nobody has, else any."""
        others = [part for part in work.waiting if self._owners.get(part, worker) == worker]
        owned = [part for part in others if part in self._owners]
        part = next(iter((*owned, *others, *work.waiting)))
        work.waiting.remove(part)
        self._owners.setdefault(part, worker)
        return part

    def _give(self, work: ModelWork, part: int, worker: str, hand: _Hand) -> None:
        hand.parts += 1
        future = self._client.submit(
            answer_chunk,
            work.job,
            self._files_of(self.parts[part]),
            key=f"edgeopt-{self._run}-{work.job.number}-{part}-{uuid4().hex[:8]}",
            workers=[worker],
            priority=-work.job.number,
            pure=False,
        )
        self._flying[future], self._given_s[future] = (work, part, worker), monotonic()
        future.add_done_callback(self._events.put)

    def _take(self, future: Any) -> None:
        """Take what became of a part."""
        if future not in self._flying:
            return
        work, part, worker = self._flying[future]
        try:
            answer = future.result(timeout=self._patience_s) if future.status == "finished" else None
        except TimeoutError:  # a slow network; or the worker ended before its answer came, which `_look` finds out
            self._patience_s *= 2
            self._events.put(future)
            return
        except Exception:  # the same where Dask knows it
            self._let_go(future)
            self._put_back(work, part)
            return
        self._let_go(future)
        if future.status == "finished":
            self._take_answer(work, part, worker, answer)
        elif future.status == "error":
            error = future.exception()  # of Dask: a worker tells what it cannot do
            self._give_up(work, f"{worker} cannot answer: {type(error).__name__}: {short(str(error))}")
        else:
            self._lose(None)

    def _let_go(self, future: Any) -> None:
        _, _, worker = self._flying.pop(future)
        del self._given_s[future]
        if worker in self._hands:
            self._hands[worker].parts -= 1

    def _take_answer(self, work: ModelWork, part: int, worker: str, answer: object) -> None:
        if worker not in self._hands:
            work.waiting.appendleft(part)
        elif isinstance(answer, AnsweredFrames) and answer.worker != worker:
            work.waiting.appendleft(part)
            self._leave_out(worker, "it answers in the name of another")
        elif isinstance(answer, AnsweredFrames) and len(answer.answers) != len(self.parts[part]):
            work.waiting.appendleft(part)
            self._leave_out(worker, f"it answers {len(answer.answers)} of {plural(len(self.parts[part]), 'frame')}")
        elif isinstance(answer, AnsweredFrames):
            work.answered[part] = answer
            if work.proof and answer.proof != work.proof:
                self._leave_out(worker, _OTHER_BITS)
        elif isinstance(answer, CannotAnswer):
            work.waiting.appendleft(part)
            self._leave_out(worker, f"it cannot answer: {answer.why}")
        elif isinstance(answer, MissingFiles) and not answer.digests <= self._places.keys():
            work.waiting.appendleft(part)
            self._leave_out(worker, "it asks for files that nobody speaks of")
        elif isinstance(answer, MissingFiles) and self._sent[worker, part] < _MOST_SENT:
            self._sent[worker, part] += 1
            send(self._client, answer, self._places)
            work.waiting.appendleft(part)
        else:
            work.waiting.appendleft(part)
            taken = isinstance(answer, MachineTaken)
            self._leave_out(worker, "its machine measures" if taken else "files do not stay there: is its disk full?")

    def _leave_out(self, worker: str, why: str) -> None:
        """Ask a worker nothing more; nothing that it answered counts."""
        if self._hands.pop(worker, None) is None:
            return
        self._tell_left_out(worker, why)
        for work in self._works:
            for part in [part for part, answer in work.answered.items() if answer.worker == worker]:
                del work.answered[part]
                work.waiting.append(part)
        self._take_back(worker)

    def _tell_left_out(self, worker: str, why: str) -> None:
        self.left_out[worker] = why
        self._say(f"cluster: {worker} is left out: {why}")

    def _take_back(self, worker: str) -> None:
        """Give to others what a worker has not answered."""
        lost = [future for future, (_, _, who) in self._flying.items() if who == worker]
        for future in lost:
            work, part, _ = self._flying[future]
            self._let_go(future)
            self._put_back(work, part)
        for part in [part for part, owner in self._owners.items() if owner == worker]:
            del self._owners[part]
        if lost:
            self._client.cancel(lost, force=True)

    def _put_back(self, work: ModelWork, part: int) -> None:
        """Give a part to the next worker; one that several workers did not bring back is done where it was asked."""
        work.waiting.appendleft(part)
        self._ends[work.job.number, part] += 1
        if self._ends[work.job.number, part] == _MOST_LOST:
            self._give_up(work, "workers end before they answer, as where memory does not suffice")

    def _give_up(self, work: ModelWork, why: str) -> None:
        if not work.fault:
            work.fault = why
            self._say(f"cluster: {why}; that is done here")

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            why = f" ({type(error).__name__})" if error else ""
            done = sum(len(work.answered) for work in self._works)
            self._say(f"cluster: the scheduler is gone{why}; {plural(done, 'part')} came back, the rest is done here")

    def _files_of(self, part: range) -> FrameFiles:
        """Return a stretch of the frames as files: of pictures their own, of other kinds one that is written."""
        if part.start in self._files:
            return self._files[part.start]
        frames, read = self._frames, self._frames.read
        names = tuple(frames.names[i] for i in part)
        if isinstance(read, PictureReader):
            files = tuple(self._placed(read.path(i)) for i in part)
            made = FrameFiles(names, files, frames.kind, is_packed=False, top=read.top)
        else:
            packed = self._written(pickle.dumps([read(i) for i in part]))
            made = FrameFiles(names, (packed,), frames.kind, is_packed=True)
        self._files[part.start] = made
        return made

    def _placed(self, path: Path) -> SentFile:
        try:
            file = SentFile(sha256_of(path), str(path.absolute()))
        except OSError as error:
            raise InvalidFileError(f"{path} cannot be read: {error.strerror}", remedy="check the file") from error
        self._places[file.digest] = path
        return file

    def _written(self, data: bytes) -> SentFile:
        digest = hashlib.sha256(data).hexdigest()
        path = self._folder / digest
        path.write_bytes(data)
        self._places[digest] = path
        return SentFile(digest, str(path.absolute()))


@contextmanager
def open_section(
    client: Any, frames: Frames, folder: Path, say: Callable[[str], None], *, is_own: bool
) -> Iterator[ClusterSection]:
    """Yield a section; at its end nothing of it computes any more. The arguments are those of `ClusterSection`."""
    section = ClusterSection(client, frames, folder, say, is_own=is_own)
    try:
        yield section
    finally:
        section.end()
