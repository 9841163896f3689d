"""Several models and streams on one device.

scheduler = Scheduler({
    "doors": ScheduledModel("out/doors/bundle", Terms(priority=1, budget_ms=33)),
    "faces": ScheduledModel("out/faces/bundle"),
})
boxes = scheduler.predict("doors", frame)

Frames run in the threads that bring them: there is no thread of the scheduler's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Lock
from typing import Any, Final, cast

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.bundles.parts import Artefact
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.schedule.cores import assign_cores
from edgeopt.runtime.schedule.lane import Lane
from edgeopt.runtime.schedule.memory import MIB, Loaded, MemoryChange, who_goes
from edgeopt.runtime.schedule.model import TURN, Scheduled, ScheduledModel, least_bytes, threads_of
from edgeopt.runtime.schedule.turns import Turn
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.whole_frame import Serve, WholeFrame
from edgeopt.system.machine.threads import usable_cores
from edgeopt.system.processes.closing import Closing


class Seat:
    """The handle that `Scheduler.runtime` returns."""

    def __init__(self, runtime: Runtime, serve: Serve, stats: Callable[[], Stats]) -> None:
        """Bind to a model; a scheduler does this.

        Args:
            runtime: Tells what the model is; it may be unloaded later.
            serve: Answers a frame in its turn, with the times of `stages`.
            stats: Of the model.
        """
        self.bundle: Bundle = replace(runtime.bundle, lighter=())  # a stream opens no second model past the scheduler
        self.artefact: Artefact = runtime.artefact
        self.stages = (TURN, *runtime.stages)
        self.session: Session = runtime.session
        self._serve, self.stats = serve, stats

    def predict(self, frame: Sample) -> Any:
        """Return the answer for one frame; see `Scheduler.predict`."""
        return self._serve(frame)[0]

    def begin(self, timeout_s: float | None = None, *, stream: Hashable = 0) -> WholeFrame:
        """Take a frame's stages one by one; they all run in `execute`, in the frame's turn.

        The stream is the one that the scheduler was asked for.
        """
        del timeout_s, stream
        return WholeFrame(self._serve)

    def reset(self, stream: Hashable | None = None) -> None:
        """Do nothing: the states are the scheduler's."""

    def close(self) -> None:
        """Do nothing: the model is the scheduler's."""


_CHANGES: Final = 100
_clock = time.perf_counter_ns


@dataclass(slots=True, eq=False)
class _Frame:
    """A frame with what became of it."""

    sample: Sample
    stream: int = 0
    answer: Any = None
    times_ns: tuple[int, ...] = ()
    error: BaseException | None = None


class Scheduler(Closing):
    """Models that share a device by their priorities. Any number of threads may pass frames."""

    def __init__(
        self,
        models: Mapping[str, ScheduledModel],
        *,
        cores: Sequence[int] | None = None,
        memory_limit_mib: float | None = None,
        tell: Callable[[MemoryChange], None] | None = None,
    ) -> None:
        """Assign cores, and load the models in the order of their priority, as far as memory allows.

        Args:
            models: One or more, by name.
            cores: Cores that all models may use together, the best first; None: all cores that this process may use.
            memory_limit_mib: Memory that all models may take together; loading a model may unload others. None: no
                limit.
            tell: Called when a model is loaded or unloaded, with the reason, in the thread that does it.

        Raises:
            EdgeoptError: If a bundle does not open, or if the process may not use one of the cores.
        """
        usable = usable_cores()
        cores = tuple(usable if cores is None else cores)
        if not models or not cores or not set(cores) <= set(usable) or len(set(cores)) < len(cores):
            raise EdgeoptError(
                f"{len(models)} models on cores {list(cores)}, of which this process may use {list(usable)}",
                remedy="give one model or more, and cores of this process, each once",
            )
        self._limit_bytes = None if memory_limit_mib is None else int(memory_limit_mib * MIB)
        self._tell, self._began_ns = tell, _clock()
        self._changes: deque[MemoryChange] = deque(maxlen=_CHANGES)
        self._state, self._loading, self._is_closed = Condition(), Lock(), False
        self._notes: dict[str, Note] = {}
        self._models = _schedule(models, cores, usable)
        try:
            for model in self._models.values():
                if self._has_room(model):
                    self._load(model, "the scheduler begins")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Refuse further frames, and free each model when its waiting and running frames are done."""
        with self._state:
            self._is_closed = True
            idle = [model for model in self._models.values() if not model.users]
            runtimes = [scheduled.take_out() for scheduled in idle]
        _close(runtimes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models, the highest priority first."""
        return tuple(self._models)

    @property
    def cores(self) -> dict[str, tuple[int, ...] | None]:
        """The cores to which each model is held; None: any. Models on the same cores take turns."""
        return {name: model.cores for name, model in self._models.items()}

    @property
    def changes(self) -> tuple[MemoryChange, ...]:
        """The last 100 times that a model was loaded or unloaded."""
        return tuple(self._changes)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Settings that were asked for and could not be applied."""
        return tuple(self._notes.values())

    def stats(self) -> dict[str, Stats]:
        """Return counts and times of each model; the stage `turn` is the wait for its turn, which the age includes."""
        return {name: model.ring.stats() for name, model in self._models.items()}

    def predict(self, name: str, frame: Sample, *, stream: int = 0) -> Any:
        """Return the answer for one frame, when its turn has come.

        Args:
            name: Of the model.
            frame: As `Runtime.predict` takes it.
            stream: Number of the frame's stream: frames of different streams may go together in a batch; a recurrent
                model keeps separate states for each, until it is unloaded.

        Raises:
            KeyError: If there is no such model.
            ValueError: If it is no frame.
            UnavailableError: If the scheduler is closed, or there is no room for the model.
            EdgeoptError: If the model cannot be loaded, or the engine fails.
        """
        return self.serve(name, frame, stream=stream)[0]

    def runtime(self, name: str, *, stream: int = 0) -> Runtime:
        """Return an object that a `Stream` takes in place of a runtime: `Stream(scheduler.runtime("doors"), camera)`.

        Args:
            name: Of the model.
            stream: A different number for each stream of a model whose frames may go together in a batch.

        Raises:
            KeyError: If there is no such model.
            EdgeoptError: If it cannot be loaded.
        """
        scheduled = self._models[name]
        self._hold(scheduled)
        try:
            assert scheduled.runtime is not None
            seat = Seat(scheduled.runtime, partial(self.serve, name, stream=stream), lambda: scheduled.ring.stats())
        finally:
            self._let_go(scheduled)
        return cast("Runtime", seat)

    def serve(self, name: str, frame: Sample, *, stream: int = 0) -> tuple[Any, tuple[int, ...]]:
        """Return the answer of `predict`, and the times of `turn` and of the runtime's stages."""
        scheduled, arrived, held = self._models[name], _clock(), _Frame(frame, stream)
        try:
            try:
                self._hold(scheduled)
            finally:
                scheduled.ring.feed()  # after the load: a ring counts from the first one on
            try:
                ticket = scheduled.lane.enter(name, stream, held)
                assert ticket.turn is not None
                if ticket.is_first:
                    _run(scheduled, ticket.turn)
            finally:
                self._let_go(scheduled)
            if held.error is not None:
                raise held.error
        except BaseException:
            scheduled.ring.fail()
            raise
        done, budget = _clock(), scheduled.model.terms.budget_ms
        times, age = (ticket.turn.begun_ns - arrived, *held.times_ns), done - arrived
        scheduled.ring.record(times, age, age, is_missed=budget is not None and age > budget * 1e6)
        return held.answer, times

    def _hold(self, scheduled: Scheduled) -> None:
        """Keep a model in memory until `_let_go`; load it first if it is not."""
        if not self._take(scheduled):
            with self._loading:
                if not self._take(scheduled):
                    self._load(scheduled, "a frame came for it")
                    self._take(scheduled)

    def _let_go(self, scheduled: Scheduled) -> None:
        with self._state:
            scheduled.users -= 1
            scheduled.used_ns = _clock()
            self._state.notify_all()
            runtime = scheduled.take_out() if self._is_closed and not scheduled.users else None
        _close([runtime])

    def _take(self, scheduled: Scheduled) -> bool:
        with self._state:
            if self._is_closed:
                raise UnavailableError("the scheduler is closed", remedy="make another one")
            is_there = scheduled.runtime is not None and not scheduled.is_leaving
            scheduled.users += is_there
            return is_there

    def _load(self, scheduled: Scheduled, reason: str) -> None:
        """Load a model, after others have made room; afterwards too, where it took more than was known."""
        self._make_room(scheduled, scheduled.size_bytes)
        begun = _clock()
        refused = scheduled.load()
        if refused:
            detail = f"frames of {scheduled.name} go one by one: {refused}"
            self._notes[scheduled.name] = Note(NoteKind.INFO, detail, "export the model with a free first dimension")
        self._change(scheduled, is_loaded=True, reason=f"{reason}; took {(_clock() - begun) / 1e6:.0f} ms")
        try:
            self._make_room(scheduled, 0)
        except UnavailableError:
            _close([scheduled.take_out()])
            self._change(scheduled, is_loaded=False, reason="it takes more than there is room for")
            raise

    def _loaded(self, but: Scheduled) -> list[Loaded]:
        return [
            Loaded(name, model.model.terms.priority, model.size_bytes, model.used_ns, model.model.is_kept)
            for name, model in self._models.items()
            if model.runtime is not None and model is not but
        ]

    def _has_room(self, scheduled: Scheduled) -> bool:
        held = sum(other.size_bytes for other in self._loaded(scheduled))
        return self._limit_bytes is None or scheduled.model.is_kept or held + scheduled.size_bytes <= self._limit_bytes

    def _make_room(self, scheduled: Scheduled, needed: int) -> None:
        """Unload what has to go for a model, each after the frames that wait for it or run."""
        if self._limit_bytes is None:
            return
        with self._state:
            held = self._loaded(scheduled)
            needed = max(needed, scheduled.size_bytes)
            going = who_goes(held, needed, self._limit_bytes, scheduled.model.terms.priority)
            if going is None:
                raise _no_room(scheduled, needed, self._limit_bytes, held)
            leaving = [self._models[name] for name in going]
            runtimes = self._take_out(leaving)
        _close(runtimes)
        for other in leaving:
            self._change(other, is_loaded=False, reason=f"{scheduled.name} needs the room")

    def _take_out(self, leaving: Sequence[Scheduled]) -> list[Runtime | None]:
        """Return the runtimes of models when nobody uses them any more; frames that come meanwhile load them again."""
        try:
            for scheduled in leaving:
                scheduled.is_leaving = True
            self._state.wait_for(lambda: not any(scheduled.users for scheduled in leaving))
            return [scheduled.take_out() for scheduled in leaving]
        finally:
            for scheduled in leaving:
                scheduled.is_leaving = False

    def _change(self, scheduled: Scheduled, *, is_loaded: bool, reason: str) -> None:
        at_s = (_clock() - self._began_ns) / 1e9
        change = MemoryChange(scheduled.name, is_loaded, at_s, scheduled.size_bytes / MIB, reason)
        self._changes.append(change)
        if self._tell is not None:
            self._tell(change)


def _close(runtimes: Sequence[Runtime | None]) -> None:
    for runtime in runtimes:
        if runtime is not None:
            runtime.close()


def _run(scheduled: Scheduled, turn: Turn) -> None:
    """Run the frames of a turn; where they fail together, each runs alone, so that only what is wrong fails."""
    frames: list[_Frame] = [ticket.load for ticket in turn.tickets]
    try:
        try:
            _answer(scheduled, frames)
        except Exception as error:  # each engine and task has its own classes
            if len(frames) == 1:
                frames[0].error = error
            else:
                for frame in frames:
                    _answer_alone(scheduled, frame)
    finally:
        is_whole = True
        for frame in frames:
            if not frame.times_ns:
                is_whole = False
                frame.error = frame.error or UnavailableError("the run was interrupted", remedy="bring the frame again")
        scheduled.lane.leave(turn, is_typical=is_whole)


def _answer(scheduled: Scheduled, frames: Sequence[_Frame]) -> None:
    samples, stream = [frame.sample for frame in frames], frames[0].stream
    for frame, (answer, times_ns) in zip(frames, scheduled.run(samples, stream), strict=True):
        frame.answer, frame.times_ns = answer, times_ns


def _answer_alone(scheduled: Scheduled, frame: _Frame) -> None:
    try:
        _answer(scheduled, [frame])
    except Exception as error:  # each engine and task has its own classes
        frame.error = error


def _schedule(
    models: Mapping[str, ScheduledModel], cores: Sequence[int], usable: Sequence[int]
) -> dict[str, Scheduled]:
    """Return the models, the highest priority first, each with its cores and its lane."""
    ordered = sorted(models.items(), key=lambda pair: -pair[1].terms.priority)
    assigned = assign_cores({name: threads_of(model, len(cores)) for name, model in ordered}, cores)
    lanes = {
        held: Lane({name: model.terms for name, model in ordered if assigned[name] == held})
        for held in assigned.values()
    }
    scheduleds = {}
    for name, one in ordered:
        held = assigned[name]
        others = [other.terms.priority for key, other in ordered if key != name and assigned[key] == held]
        scheduleds[name] = Scheduled(
            name,
            one,
            None if set(held) == set(usable) else held,
            lanes[held],
            leaves_cores=bool(others) and one.terms.priority <= max(others),
            size_bytes=least_bytes(one),
        )
    return scheduleds


def _no_room(scheduled: Scheduled, needed: int, limit: int, held: Sequence[Loaded]) -> UnavailableError:
    stay = [other.name for other in held if other.is_kept or other.priority > scheduled.model.terms.priority]
    staying = f": {', '.join(stay)} stay" if stay else ""
    return UnavailableError(
        f"no room for {scheduled.name}, which takes {needed / MIB:.1f} MiB of {limit / MIB:.1f}{staying}",
        remedy="raise memory_limit_mib, or keep fewer models in memory",
    )
