"""A model on a phone as a session: a runner there that answers what it is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.executors import Placement, SessionOptions, Source, Staged
from edgeopt.executors.onnxruntime import EXECUTOR as ONNXRUNTIME
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec, require_names
from edgeopt.runtime.selftest import MOST_SAMPLES, noises, record
from edgeopt.system.device_clock import add_carriage, device_clock
from edgeopt.tasks import FrameTask
from edgeopt.verbs.android.adb import Conversation, ShellEnd
from edgeopt.verbs.android.adb_stream import UnpluggedError
from edgeopt.verbs.android.log import AnswerThere, RunnerLog
from edgeopt.verbs.android.phone import Files, Phone
from edgeopt.verbs.android.request import (
    CARRIED,
    ModelThere,
    WorkThere,
    request_for_serving,
    require_carried,
    sample_to_serve,
)

_MODEL, _INPUTS = "model.onnx", "inputs.bin"
_MOST_INPUT_BYTES = 64 << 20
"""Bytes of all inputs that a phone is sent for a timed run; one sample is sent whatever it takes."""
_MOST_OUTPUT_BYTES = 1 << 30
_LONGEST_LINE = 1 << 20
_OPEN_S, _ANSWER_S, _END_S = 900.0, 900.0, 5.0
"""Seconds that opening a model, an answer, and the end of a runner may take."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The tensors that a model takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass
class KnownTimes:
    """Times of one model as it is opened there, in nanoseconds."""

    opened_ns: list[int] = field(default_factory=list)
    """Nanoseconds of opening, one entry for each process."""
    frames_ns: list[int] = field(default_factory=list)
    """Nanoseconds of each frame."""


class PhoneSession(Staged):
    """A model that runs on a phone, in a process of its own there from the first run on."""

    def __init__(
        self, phone: Phone, model: ModelThere, ports: Ports, known: KnownTimes, wakes: Callable[[PhoneSession], None]
    ) -> None:
        """Take a model that lies there.

        Args:
            phone: Where it runs.
            model: What is opened, and how.
            ports: What it takes and gives.
            known: What is known of its times; more is added.
            wakes: Hears before a process is started there.
        """
        self.phone, self.model, self.known = phone, model, known
        self.inputs, self.outputs = ports.inputs, ports.outputs
        self.simulated = False
        self.last: AnswerThere | None = None
        """The runner's last answer; None: it has given none."""
        self._wakes = wakes
        self._process: ExitStack | None = None
        self._conversation: Conversation | None = None
        self._heard = RunnerLog()

    @property
    def program(self) -> str:
        """The engine and the phone."""
        return f"edgeopt-runner with ONNX Runtime {self.phone.version} on {self.phone.name}"

    @property
    def clock(self) -> Callable[[], int]:
        """The device's clock, which stands still while a message is on its way."""
        return device_clock

    @property
    def opening_ms(self) -> Mapping[str, float]:
        """The time that the first opening took."""
        return {"create": self.known.opened_ns[0] / 1e6} if self.known.opened_ns else {}

    @property
    def options(self) -> SessionOptions:
        """How it is opened there."""
        return self.model.options

    def work(self, samples: Sequence[Tensors]) -> WorkThere:
        """Send inputs for a timed run, and return the part of a request that runs the model on them.

        Raises:
            UnsupportedError: If the runner does not take them.
        """
        first = samples[0]
        require_carried(first)
        shapes = {name: array.shape for name, array in first.items()}
        alike = [each for each in samples if {name: array.shape for name, array in each.items()} == shapes]
        size = sum(array.nbytes for array in first.values())
        kept = alike[: max(1, _MOST_INPUT_BYTES // max(size, 1))]
        data = b"".join(np.ascontiguousarray(each[name]).tobytes() for each in kept for name in first)
        folder = self.phone.put("inputs", {_INPUTS: data})
        return WorkThere(self.model, f"{folder}/{_INPUTS}", len(kept), first)

    def execute(self, uploaded: Tensors) -> Tensors:
        """Run the model there; the clock of the device counts what the runner tells, not the way there and back.

        Raises:
            EdgeoptError: If it does not run there, or what comes back is no answer of this model.
            ValueError: If an input is missing or unknown.
        """
        require_names(uploaded, (spec.name for spec in self.inputs))
        require_carried(uploaded)
        began_ns = perf_counter_ns()
        conversation = self.wake()
        conversation.limit(_ANSWER_S)
        conversation.send(sample_to_serve(uploaded))
        self.last = answer = self._next_answer(conversation)
        self._require_own(answer)
        outputs = self._outputs_of(answer, conversation.read(answer.bytes))
        self.known.frames_ns.append(answer.frame_ns)
        add_carriage(perf_counter_ns() - began_ns - answer.frame_ns)
        return outputs

    def wake(self) -> Conversation:
        """Start a process there that opens the model, unless one runs.

        Raises:
            EdgeoptError: If it does not open there.
        """
        if self._conversation is not None:
            return self._conversation
        self._wakes(self)
        self._heard = RunnerLog()
        with ExitStack() as stack:
            conversation = stack.enter_context(self.phone.serve(request_for_serving(self.model)))
            conversation.limit(_OPEN_S)
            self._conversation = conversation
            try:
                while not self._heard.opened_ns:
                    self._hear(conversation)
            except BaseException:
                self._conversation = None
                raise
            self._process = stack.pop_all()
        self.known.opened_ns += self._heard.opened_ns
        return conversation

    def _hear(self, conversation: Conversation) -> None:
        """Take the next line.

        Raises:
            EdgeoptError: If there is none, or it tells an error.
        """
        line = conversation.line(_LONGEST_LINE)
        if line is not None:
            self._heard.take_line(line)
        if line is None or self._heard.error or self._heard.is_done:
            end = self._end_of(conversation)
            self._forget()
            self._heard.is_done = False  # it was not asked to end
            self.phone.require_success(self._heard, end)

    def _end_of(self, conversation: Conversation) -> ShellEnd:
        """Return how a process ends that told an error, or prints nothing any more."""
        conversation.limit(_END_S)
        try:
            return conversation.end()
        except UnpluggedError:
            if self._heard.error:
                return ShellEnd(1, b"", "")
            self._forget()
            raise

    def _next_answer(self, conversation: Conversation) -> AnswerThere:
        try:
            while not self._heard.answers:
                self._hear(conversation)
        except BaseException:
            self._forget()
            raise
        return self._heard.answers.pop()

    def _require_own(self, answer: AnswerThere) -> None:
        """Raise unless what comes next are the outputs of this model, before room is made for them.

        Raises:
            UnavailableError: If not.
        """
        specs = {spec.name: spec for spec in self.outputs}
        answered = {name: (dtype, shape) for name, dtype, shape in answer.outputs}
        problem, size = "", 0
        if len(answered) != len(answer.outputs) or {*answered} != {*specs}:
            problem = "other outputs than the model has"
        else:
            for name, (dtype, shape) in answered.items():
                if dtype not in CARRIED or dtype != specs[name].dtype or not specs[name].takes_shape(shape):
                    problem = problem or f"another tensor than {specs[name]}"
                    continue
                size += math.prod(shape) * np.dtype(dtype).itemsize
        if not problem and (size != answer.bytes or size > _MOST_OUTPUT_BYTES):
            problem = f"{answer.bytes} bytes for outputs of {size}"
        if problem:
            self._forget()
            raise UnavailableError(f"{self.phone.address} sends {problem}", remedy="build edgeopt-runner anew")

    def _outputs_of(self, answer: AnswerThere, data: bytes) -> Tensors:
        results: dict[str, np.ndarray[Any, Any]] = {}
        at = 0
        for name, dtype, shape in answer.outputs:
            count = math.prod(shape)
            results[name] = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
            at += results[name].nbytes
        return results

    def rest(self) -> None:
        """End the process there, if one runs; the next run starts another one."""
        conversation, self._conversation = self._conversation, None
        process, self._process = self._process, None
        if conversation is None or process is None:
            return
        with process, suppress(EdgeoptError):
            conversation.limit(_END_S)
            conversation.close_input()
            conversation.end()

    def _forget(self) -> None:
        """Drop the connection to a process that has ended, or is not believed any more."""
        process, self._process, self._conversation = self._process, None, None
        if process is not None:
            process.close()

    def placement(self) -> tuple[Placement, ...]:
        """Return nothing: the runner does not tell where nodes run, and it has the processor alone."""
        return ()

    def close(self) -> None:
        """End the process; the model stays there, where the next command finds it."""
        self.rest()


def files_of(source: Source) -> tuple[Files, str]:
    """Return the files of a model by their names in one folder, and the name of the model among them."""
    if isinstance(source, bytes):
        return {_MODEL: source}, _MODEL
    if isinstance(source, Outside):
        weights = {path.relative_to(source.folder).as_posix(): path for path in source.files}
        return {_MODEL: source.graph, **weights}, _MODEL
    beside = {path.relative_to(source.parent).as_posix(): path for path in outside_files(source)}
    return {source.name: source, **beside}, source.name


def ports_of(source: Source) -> Ports:
    """Return the tensors of a model, as ONNX Runtime here reads them.

    Raises:
        EdgeoptError: If it does not open.
    """
    with closing(ONNXRUNTIME.open(source, SessionOptions(entries=dict(UNOPTIMIZED)))) as session:
        return Ports(tuple(session.inputs), tuple(session.outputs))


def require_right_numbers(
    session: PhoneSession, source: Source, task: FrameTask, samples: Sequence[Sample], precision: str
) -> tuple[Note, ...]:
    """Compare what a phone answers with what this machine's ONNX Runtime does, node by node, on some samples.

    Args:
        session: The model on the phone.
        source: The model.
        task: Bound to the model.
        samples: One or more.
        precision: Scheme of the model, which says how far rounding may go.

    Returns:
        A warning where the numbers are further off than by rounding.

    Raises:
        UnavailableError: If they are wrong: a time of another model is no figure.
    """
    chosen = samples[:MOST_SAMPLES]
    options = replace(session.options, entries=dict(UNOPTIMIZED), threads=1, cores="")
    with closing(ONNXRUNTIME.open(source, options)) as reference:
        recorded = record(reference, task, chosen, precision)
    off_by = noises(session, task, chosen, recorded)
    notes = []
    for name, limit in recorded.limits.items():
        off = off_by[name]
        share = f"{off:.2%} off" if np.isfinite(off) else "NaN, infinite or of another shape"
        text = f"output {name} of {session.program} is {share} from ONNX Runtime's here"
        if not off <= limit.wrong:
            raise UnavailableError(
                f"its numbers are wrong on the phone, so no time is told: {text}, {limit.wrong:.2%} is allowed",
                remedy="take another version of onnxruntime-android, or optimize the model for --target cpu-arm64",
            )
        if off > limit.rounding:
            notes.append(Note(NoteKind.WARNING, f"{text}, {limit.rounding:.2%} is rounding", "accuracy may differ"))
    return tuple(notes)
