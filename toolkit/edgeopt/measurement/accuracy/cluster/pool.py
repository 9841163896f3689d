"""The pool behind `--cluster`: workers answer while nothing is timed, and nothing of theirs runs while something is.

A cluster is open only as long as frames are answered: its client, and workers of this machine, are gone before anything
is timed. The first frame is always answered here. It tells whether the rest is worth the way, and what a worker must
make of it to the last bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from edgeopt.errors import UnavailableError
from edgeopt.executors import Session
from edgeopt.executors._guard import active_guard
from edgeopt.measurement.accuracy.cluster import PURPOSE
from edgeopt.measurement.accuracy.cluster.address import ClusterAddress
from edgeopt.measurement.accuracy.cluster.job import prove
from edgeopt.measurement.accuracy.cluster.section import ClusterSection, ModelWork, open_section
from edgeopt.measurement.accuracy.evaluate import Progress, answers
from edgeopt.measurement.accuracy.pool import Expected
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.opening import Opening
from edgeopt.system.cluster.dask import dask_client, require_dask, version
from edgeopt.system.cluster.store import machine_lock
from edgeopt.system.disk.locks import hold
from edgeopt.system.text import plural, short
from edgeopt.tasks import Task

_PROCESSOR = {"onnxruntime": "CPUExecutionProvider", "openvino": "CPU", "ncnn": "CPU", "litert": "CPU"}
"""Engines whose sessions another machine opens alike, with the provider that computes on the processor."""
_WORTH_S, _WORTH_OWN_S, _WORTH_OPEN_S = 3.0, 10.0, 0.5
"""Seconds of work here that are worth a connection, workers that start first, and a cluster that is open anyway."""


@dataclass
class _Stretch:
    """Several models on the same frames."""

    expected: Expected
    frames: Frames
    ahead: dict[str, ModelWork] = field(default_factory=dict)
    """Models with which workers began before they were asked about, by the word for `tell`."""
    begun: set[str] = field(default_factory=set)
    """The words of all models with which they began."""
    section: ClusterSection | None = None
    """None: nothing was worth the way yet."""


class ClusterPool:
    """Answers frames on a cluster where that is worth the way, to the last bit as this process does."""

    def __init__(self, address: ClusterAddress, say: Callable[[str], None]) -> None:
        """Make it; `with` opens it.

        Args:
            address: Where workers are.
            say: Hears one line.
        """
        self._address, self._hear = address, say
        self._is_gone, self._said = False, set[str]()
        self._held, self._opened = ExitStack(), ExitStack()
        self._stretch: _Stretch | None = None

    def __enter__(self) -> ClusterPool:
        """Ask whether the cluster is there, and take this machine for what is timed on it.

        Raises:
            MissingDependencyError: If distributed is not installed.
            UnavailableError: If no scheduler answers, or none of its workers computes as this machine does.
        """
        require_dask(PURPOSE)
        if self._address.scheduler:
            with dask_client(self._address.scheduler, {}, PURPOSE) as client:
                self._require_fit(client)
        self._take_machine()
        return self

    def _require_fit(self, client: Any) -> None:
        """Raise where nobody of a cluster can answer: before minutes are spent."""
        scheduler = self._address.scheduler
        try:
            theirs = str(client.run_on_scheduler(version))
        except Exception as error:  # what unpickling raises there, where nothing of ours is installed
            theirs = f"none ({type(error).__name__})"
        if theirs != version():
            problem = f"the scheduler {scheduler} has edgeopt {theirs}, and this is {version()}"
            raise UnavailableError(problem, remedy="install the same there, and start it again")
        with self._section(client, _NOTHING) as section:
            if not section.workers and section.left_out:
                problem = f"no worker of {scheduler} computes as this machine does"
                raise UnavailableError(problem, remedy="start workers on a machine like this one, with its packages")
            if not section.workers:
                remedy = f"start one: dask worker {scheduler} --nthreads 1"
                raise UnavailableError(f"{scheduler} has no worker", remedy=remedy)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        self._held.close()

    def answers(
        self,
        runnable: Runnable | None,
        session: Session,
        task: Task,
        frames: Frames,
        tell: Progress | None = None,
        what: str = "",
        *,
        is_evaluating: bool = True,
    ) -> list[Any]:
        """Return the task's answer for each frame; see `AnswerPool`."""
        is_busy = self._stretch is not None and self._stretch.section is not None and self._stretch.frames is not frames
        if runnable is None or self._is_gone or is_busy or len(frames) < 2 or not _is_sent(runnable, frames):
            return answers(session, task, frames, tell, what)
        began_s = monotonic()
        proof, first = prove(session, task, frames)
        rest_s = (monotonic() - began_s) * (len(frames) - 1)
        count = _Counter(tell, what, len(frames))
        count.tell(1)
        result = {0: first}
        with ExitStack() as stack:
            stretch = self._stretch
            if stretch is None or stretch.frames is not frames:
                stretch = stack.enter_context(self._begun(_Stretch({}, frames)))
            if (least_s := self._worth_s(stretch)) >= rest_s:
                self._say(f"cluster: what takes less than {least_s:g} s is answered here")
            else:
                result |= self._elsewhere(stretch, runnable, proof, count, is_evaluating=is_evaluating)
        rest = [i for i in range(len(frames)) if i not in result]
        if rest:
            done = len(result)
            here = answers(session, task, frames.select(rest), lambda _, n, of: count.tell(done + n))
            result |= dict(zip(rest, here, strict=True))
        return [result[i] for i in range(len(frames))]

    @contextmanager
    def expecting(self, expected: Expected, frames: Frames) -> Iterator[None]:
        """Let workers begin with the next model while the answers of the one before are judged; see `AnswerPool`."""
        with self._begun(_Stretch(expected, frames)):
            yield

    @contextmanager
    def _begun(self, stretch: _Stretch) -> Iterator[_Stretch]:
        """Yield a stretch; at its end the cluster is closed, and this machine is taken again."""
        before, self._stretch = self._stretch, stretch
        is_timed_again = True
        try:
            yield stretch
        except KeyboardInterrupt:
            is_timed_again = False  # nobody waits for the machine after Ctrl-C
            raise
        finally:
            self._stretch = before
            if stretch.section is not None:
                stretch.section = None
                self._opened.close()
                if is_timed_again:
                    self._take_machine()

    def _worth_s(self, stretch: _Stretch) -> float:
        """Return how many seconds of work here are worth the way."""
        if stretch.section is not None:
            return _WORTH_OPEN_S
        return _WORTH_S if self._address.scheduler else _WORTH_OWN_S

    def _elsewhere(
        self, stretch: _Stretch, runnable: Runnable, proof: str, count: _Counter, *, is_evaluating: bool
    ) -> dict[int, Any]:
        """Return what workers answered, by the place of the frame: all but the first, or less where they fail."""
        section = stretch.section or self._open(stretch, runnable)
        if section is None:
            return {}
        stretch.begun.add(count.what)
        work = stretch.ahead.pop(count.what, None) or section.add(_sent(runnable), is_evaluating=is_evaluating)
        following = (name for name in [*stretch.expected] if name not in stretch.begun)

        def follow() -> None:
            for name in following:
                stretch.begun.add(name)
                if (other := stretch.expected[name]()) is not None and _is_sent(other, stretch.frames):
                    stretch.ahead[name] = section.add(_sent(other), is_evaluating=True)
                    return

        section.finish(work, proof, lambda done: count.tell(1 + done), follow)
        result = {
            i: answer
            for part, answered in work.answered.items()
            for i, answer in zip(section.parts[part], answered.answers, strict=True)
        }
        section.forget(work)
        self._is_gone |= section.is_lost
        return result

    def _open(self, stretch: _Stretch, runnable: Runnable) -> ClusterSection | None:
        """Return a section on an open cluster; None where there is none any more, which is said."""
        self._held.close()
        try:
            with ExitStack() as stack:
                stack.enter_context(hold(machine_lock(), is_shared=True, on_wait=self._say_waiting))
                count = self._address.workers(runnable.opening.options.threads)
                own = {f"scoring-{i}": dict[str, float]() for i in range(count)}
                client = stack.enter_context(dask_client(self._address.scheduler, own, PURPOSE))
                stretch.section = stack.enter_context(self._section(client, stretch.frames))
                workers, where = plural(stretch.section.workers, "worker"), self._address.scheduler or "this machine"
                self._say(f"cluster: {workers} of {where}")
                self._opened = stack.pop_all()
        except (UnavailableError, OSError, RuntimeError) as error:  # the last two are Dask's, where no worker starts
            self._is_gone = True
            why = error.problem if isinstance(error, UnavailableError) else short(str(error))
            self._say(f"cluster: {why}; scoring goes on here")
            self._take_machine()
        return stretch.section

    @contextmanager
    def _section(self, client: Any, frames: Frames) -> Iterator[ClusterSection]:
        with (
            tempfile.TemporaryDirectory(prefix="edgeopt-cluster-") as folder,
            open_section(client, frames, Path(folder), self._say, is_own=not self._address.scheduler) as section,
        ):
            yield section

    def _take_machine(self) -> None:
        """Hold this machine alone, until workers may compute on it again."""
        self._held.close()
        self._held.enter_context(hold(machine_lock(), on_wait=self._say_waiting))

    def _say_waiting(self) -> None:
        self._hear("cluster: waiting until nothing else is measured or scored on this machine")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._hear(text)


@dataclass
class _Counter:
    """Tells how many frames are answered; it never goes back, also where answers of a worker do not count."""

    hears: Progress | None
    what: str
    of: int
    done: int = 0

    def tell(self, done: int) -> None:
        if self.hears and done > self.done:
            self.done = done
            self.hears(self.what, done, self.of)


_NOTHING = Frames((), lambda _: "", Path())
"""Frames of a section that only looks at workers."""


def _is_sent(runnable: Runnable, frames: Frames) -> bool:
    """Return whether another process answers alike: on the processor, from a file or bytes, each frame by itself."""
    opening = runnable.opening
    provider = _PROCESSOR.get(opening.executor)
    is_alone = not frames.states and not runnable.recipe.input.states
    return is_alone and opening.options.providers[:1] == (provider,) and isinstance(runnable.source, bytes | Path)


def _sent(runnable: Runnable) -> Runnable:
    """Return how a worker opens a model: what this process holds back of its engine is held back there."""
    return replace(runnable, opening=_opening_there(runnable.opening))


def _opening_there(opening: Opening) -> Opening:
    guard = active_guard()
    held_back = guard.entries if guard and opening.executor == "onnxruntime" else {}
    options = replace(opening.options, cache_folder="", entries={**held_back, **opening.options.entries})
    return replace(opening, options=options)
