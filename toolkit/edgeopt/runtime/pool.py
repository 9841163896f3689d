"""Buffers for frames on their way: what each needs of its own, over one session that holds the weights once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeopt.errors import UnavailableError
from edgeopt.executors import Session
from edgeopt.graph.facts.states import Feedback
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Sample, Tensors
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.runtime.stats.ring import NOT_RUN, StageRing
from edgeopt.system.machine.threads import logical_cores
from edgeopt.system.processes.closing import Closing
from edgeopt.tasks import FrameTask

if TYPE_CHECKING:
    from edgeopt.runtime.drift.figures import Figures
    from edgeopt.runtime.drift.watch import DriftWatch

_LEAST = 4
"""Frames on their way at once, at most, where there are fewer cores: one in each stage, and one that waits."""
Feed = Callable[[FrameTask, Sample], tuple[Tensors, Any]]


class _Memory:
    """The states of one stream; its frames run one after the other."""

    def __init__(self, states: Mapping[str, str]) -> None:
        self.feedback, self.lock = Feedback(states), Lock()
        self._tail = np.zeros(0, np.float32)

    def joined(self, chunk: Sound, audio: Audio) -> Sound:
        """Return a chunk of sound behind the end of what came before it; what brings its own context stays.

        Raises:
            ValueError: If its rate is not the recipe's: a stream is resampled before it is cut.
        """
        if chunk.rate_hz != audio.rate_hz:
            raise ValueError(
                f"a chunk of a stream has {audio.rate_hz} Hz, not {chunk.rate_hz}: resample the stream first"
            )
        whole = chunk
        if len(chunk.samples) <= audio.samples:
            missing = audio.context - len(self._tail)
            samples = np.concatenate([np.zeros(missing, np.float32), self._tail, chunk.samples])
            short = audio.samples - len(chunk.samples)  # the last chunk
            whole = Sound(np.pad(samples, (0, short)), chunk.rate_hz)
        self._tail = whole.samples[len(whole.samples) - audio.context :]
        return whole


class Work(Closing):
    """One frame on its way, with buffers of its own: `with runtime.begin() as work`.

    `preprocess`, `execute` and `postprocess` come in this order, one after the other; each may be called from another
    thread. Leaving the block gives the buffers back.
    """

    __slots__ = (
        "_begun",
        "_clock",
        "_figures",
        "_geometry",
        "_given",
        "_inputs",
        "_leased",
        "_memory",
        "_not_run",
        "_outputs",
        "_parts",
        "_pool",
        "_task",
        "_turn",
        "times_ns",
    )

    def __init__(self, pool: Pool, task: FrameTask, session: Session, turn: Lock) -> None:
        """Bind buffers to a session; a pool does this.

        Args:
            pool: It goes back to.
            task: With buffers of its own.
            session: Nobody else runs on it, or all take turns.
            turn: Held while it runs.
        """
        self._pool, self._task, self._turn, self._clock = pool, task, turn, pool.clock
        self._parts = tuple(enumerate((part for _, part in session.stages), 1))
        self._inputs: Tensors | None = None
        self._outputs: Tensors | None = None
        self._geometry: Any = None
        self._memory: _Memory | None = None
        self._given: frozenset[str] = frozenset()
        self._leased = False
        self._begun = 0
        self._figures: Figures | None = None
        self._looked_ns = 0
        self._not_run = [NOT_RUN] * (len(self._parts) + 2)
        self.times_ns = [*self._not_run]
        """Nanoseconds of each of `Runtime.stages`; -1: the stage did not run yet."""

    def preprocess(self, frame: Sample) -> None:
        """Make the model's inputs of a frame; see `Runtime.predict` for what is a frame.

        Raises:
            ValueError: If it is no frame, or the work was given back.
        """
        self._require_lease()
        begun = self._begun = self._clock()
        self._pool.ring.feed()
        if self._memory is not None and isinstance(frame, Sound) and self._pool.audio.context:
            frame = self._memory.joined(frame, self._pool.audio)
        self._inputs, self._geometry = self._pool.feed(self._task, frame)
        if self._memory is not None:
            self._given = frozenset(frame) if isinstance(frame, Mapping) else frozenset()
        self.times_ns[0] = self._clock() - begun
        if (watch := self._pool.watch) is not None:
            self._figures = watch.look(self._inputs, self._pool.inputs) if watch.is_due() else None
            self._looked_ns = self._clock() - begun - self.times_ns[0]

    def execute(self) -> None:
        """Run the model on the inputs.

        Raises:
            EdgeoptError: If the engine fails.
            ValueError: If there are no inputs.
        """
        self._require_lease()
        if self._inputs is None:
            raise ValueError("execute comes after preprocess")
        inputs, self._inputs = self._inputs, None
        if self._memory is None:
            self._outputs = self._run(inputs, self._clock())
            return
        begun = self._clock()
        with self._memory.lock:
            feedback = self._memory.feedback
            self._outputs = self._run(feedback.into(inputs, self._given), begun)
            before = self._clock()
            feedback.keep(self._outputs)
            self.times_ns[-2] += self._clock() - before

    def _run(self, value: Any, before: int) -> Tensors:
        """Run the parts of the session, the first of which began before."""
        with self._turn:
            for place, part in self._parts:
                value = part(value)
                after = self._clock()
                self.times_ns[place] = after - before
                before = after
        outputs: Tensors = value
        return outputs

    def postprocess(self, *, raw: bool = False) -> Any:
        """Return the answer; with `raw` the model's outputs by name.

        Raises:
            ValueError: If the model has not run.
        """
        self._require_lease()
        if self._outputs is None:
            raise ValueError("postprocess comes after execute")
        begun = self._clock()
        outputs, self._outputs = self._outputs, None
        if raw:  # the next frame may be written over them
            answer = {name: value.copy() for name, value in outputs.items()}
        else:
            answer = self._task.postprocess(outputs, self._geometry)
        done = self._clock()
        self.times_ns[-1] = done - begun
        if self._figures is not None:
            done = self._compare(outputs, None if raw else answer, done)
        self._pool.ring.record(self.times_ns, done - self._begun)
        self._begun = 0
        return answer

    def _compare(self, outputs: Tensors, answer: Any, before: int) -> int:
        """Let the watch compare the frame with those of calibration, and return when that was done."""
        figures, self._figures = self._figures, None
        if (watch := self._pool.watch) is None or figures is None:
            return before
        watch.record(figures, self._task, outputs, answer, self._pool.artefact)
        done = self._clock()
        look_ns = self._looked_ns + done - before
        watch.spent(look_ns, done - self._begun - look_ns)
        return done

    def close(self) -> None:
        """Give the buffers back; a second time does nothing."""
        if self._leased:
            if self._begun:  # a frame came in, and no answer went out
                self._pool.ring.fail()
            self._inputs = self._outputs = self._geometry = self._memory = self._figures = None
            self._leased = False
            self._pool.take_back(self)

    def lease(self, memory: _Memory | None) -> Work:
        """Mark it as taken, for a frame of this stream; its pool does this."""
        self._leased, self._memory = True, memory
        self._begun = 0
        self.times_ns[:] = self._not_run
        return self

    def _require_lease(self) -> None:
        if not self._leased:
            raise ValueError("this work was given back: take another with runtime.begin()")


class Pool:
    """Works over one session: as many as there are frames on their way at once, up to a limit; then callers wait.

    Works are made when they are first needed, so that an app with one thread pays for one. The last one that came back
    is the next to go: its buffers are in the cache.
    """

    def __init__(
        self,
        session: Session,
        make_task: Callable[[], FrameTask],
        feed: Feed,
        most: int = 0,
        states: Mapping[str, str] | None = None,
        audio: Audio = Audio(),  # noqa: B008, frozen
        clock: Callable[[], int] | None = None,
        artefact: str = "",
    ) -> None:
        """Make the first work.

        Args:
            session: The loaded model; the pool closes it.
            make_task: Makes buffers for one frame.
            feed: Checks a frame and makes the inputs of it.
            most: Works at once; 0: as many as there are logical cores, at least 4.
            states: Of a recurrent model: the output that each state input takes, by the input's name.
            audio: Of a model that hears streams: how much of what came before it hears again.
            clock: Nanoseconds that never go back; None: the session's.
            artefact: File of the model, for a watch that compares its answers.
        """
        self.watch: DriftWatch | None = None
        """Looks at frames on their way."""
        self.inputs, self.artefact = session.inputs, artefact
        self.clock = clock or session.clock
        self.audio = audio
        self._states, self._memories = states or {}, dict[Hashable, _Memory]()
        first, last = (task := make_task()).stages
        self.stages = (first, *(name for name, _ in session.stages), last)
        """Names of the stages of one frame, in this order."""
        self.feed, self.ring = feed, StageRing(self.stages)
        self._session, self._make_task, self._reuse = session, make_task, not task.holds_outputs
        self._most = most or max(_LEAST, logical_cores())
        self._changed = Condition()
        self._sessions = [session]
        self._turn = Lock()
        self._made, self._out, self._closed = 0, 0, False
        self._free = [self._another(task)]

    def take(self, timeout_s: float | None = None, stream: Hashable = 0) -> Work:
        """Return a work that nobody else has; wait while all are taken.

        Args:
            timeout_s: Wait so long at most; None: for ever.
            stream: Whose states a recurrent model takes and leaves; another one begins with a name not seen before.

        Raises:
            UnavailableError: If the pool is closed, or none came back in time.
        """
        with self._changed:
            if not self._free and self._made < self._most and not self._closed:
                self._free.append(self._another(self._make_task()))
            elif not self._free and not self._changed.wait_for(self._can_go, timeout_s):
                raise UnavailableError(
                    f"none of the {self._most} frames that may be on their way at once was done within {timeout_s:g} s",
                    remedy="leave the block of each `with runtime.begin()`, or wait longer",
                )
            if self._closed:
                raise UnavailableError("the runtime is closed", remedy="load the bundle again with Runtime.load")
            self._out += 1
            keeps = self._states or self.audio.context
            memory = self._memories.setdefault(stream, _Memory(self._states)) if keeps else None
            return self._free.pop().lease(memory)

    def forget(self, stream: Hashable | None) -> None:
        """Let a stream begin anew, or all with None; a frame that is on its way leaves no state."""
        with self._changed:
            if stream is None:
                self._memories.clear()
            else:
                self._memories.pop(stream, None)

    def take_back(self, work: Work) -> None:
        """Let others have a work; the last one of a closed pool closes the session."""
        with self._changed:
            self._out -= 1
            self._free.append(work)
            self._changed.notify()
            ends = self._closed and not self._out
        if ends:
            self._end()

    def close(self) -> None:
        """Refuse further works; the session closes now, or when the last work that is out comes back."""
        with self._changed:
            ends = not self._closed and not self._out
            self._closed = True
            self._changed.notify_all()
        if ends:
            self._end()

    def _can_go(self) -> bool:
        return bool(self._free) or self._closed

    def _another(self, task: FrameTask) -> Work:
        """Return a further work: on a session beside the one that holds the weights, or in turns on that one."""
        beside = self._session.beside(reuse=self._reuse)
        self._made += 1  # one that could not be made does not count
        if beside is None:
            return Work(self, task, self._session, self._turn)
        if beside is not self._session:
            self._sessions.append(beside)
        return Work(self, task, beside, Lock())

    def _end(self) -> None:
        for session in reversed(self._sessions):
            session.close()
        self._free.clear()
