"""A phone as the machine that computes for this process: models are opened there, and blocks of frames timed there.

Between two frames of a block nothing goes over the cable: the runner has the inputs, and runs them one after the other.
So a frame there is the model alone; what the recipe does before and behind it is done here, and not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.executors import Source
from edgeopt.executors.onnxruntime.providers import CPU
from edgeopt.graph.facts.integers import read_integers
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.fresh_process.start import StartThere
from edgeopt.measurement.load.closed_loop import Pictures
from edgeopt.measurement.load.run import warmup_for
from edgeopt.measurement.opening.subject import Subject
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.trend import find_warmup
from edgeopt.measurement.turns.calls import round_order
from edgeopt.measurement.turns.interleaved import LEAST_WHOLE, Opened, in_rounds
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import decoded_by
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.opening import Opening
from edgeopt.runtime.selftest import MOST_SAMPLES
from edgeopt.system.machine.environment import Environment
from edgeopt.system.machine.place import PlaceLostError
from edgeopt.system.machine.processor import Processor
from edgeopt.system.text import plural
from edgeopt.tasks import FrameTask
from edgeopt.verbs.android.facts import notes_on_state
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.notes import loss_of, outside_of, unlike
from edgeopt.verbs.android.phone import Phone
from edgeopt.verbs.android.request import ModelThere, WorkThere, left_out, request_for_load, request_for_turns
from edgeopt.verbs.android.session import KnownTimes, PhoneSession, Ports, files_of, ports_of, require_right_numbers

_ORDERS = 256
"""Orders of rounds that are drawn for a leg; a longer one begins anew with the first."""
_MOST_AWAKE = 2
"""Processes there that answer at a time: each holds a model in the phone's memory."""
_SLOW_S, _PACED = 0.5, 3
"""Seconds of a frame from which on one frame tells the pace of a model, and frames of which the shortest tells it
otherwise."""
_LONGEST_S, _TIMES_LONGER = 1800.0, 20.0
"""A timed run may take so long beyond so many times what was asked for: least rounds of a slow model take long."""


class PhonePlace:
    """A phone that computes for this process; see `edgeopt.system.machine.place`."""

    def __init__(self, phone: Phone) -> None:
        """Take a phone with the runner on it."""
        self.phone = phone
        self.readings: list[CounterReading] = []
        self._rounds = 0
        self._notes: dict[Note, None] = {}
        self._ports: dict[str, Ports] = {}
        self._known: dict[ModelThereKey, KnownTimes] = {}
        self._awake: list[PhoneSession] = []
        self._before = phone.facts.state

    @property
    def address(self) -> str:
        """Its address, as `--on` takes it."""
        return self.phone.address

    @property
    def processor(self) -> Processor:
        """Its processor, as targets look at it."""
        return self.phone.facts.processor

    @property
    def cpu_name(self) -> str:
        """The name of its processor."""
        return self.phone.facts.chip

    @property
    def system(self) -> str:
        """Its system."""
        return "Android"

    @property
    def logical_cores(self) -> int:
        """How many threads it runs at once."""
        return self.phone.facts.logical_cores

    @property
    def usual_threads(self) -> int:
        """Its physical cores of the fastest kind."""
        return self.phone.facts.fast_cores

    def environment(self, subject: Mapping[str, Any], info: Mapping[str, Any]) -> Environment:
        """Return what figures of the phone depend on."""
        engine = {
            "packages": {"onnxruntime": self.phone.version},
            "engine.abi": self.phone.abi,
            "engine.runner": self.phone.runner.rpartition("/")[2],
        }
        return self.phone.facts.environment(engine, subject, {"phone.address": self.address, **info})

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on the phone's state, and on what was measured there."""
        states = notes_on_state(self._before, self.phone.state())
        return (*self.phone.facts.notes, *states, *self._notes)

    def note_model(self, recipe: Recipe) -> None:
        """Note where a model is measured, and what of its frames is not."""
        text = (
            f"measured on {self.phone.name} ({self.address}), by edgeopt-runner with ONNX Runtime {self.phone.version}"
        )
        self.note(Note(NoteKind.INFO, text))
        for note in outside_of(recipe):
            self.note(note)

    def note(self, note: Note) -> None:
        """Add a note, once."""
        self._notes[note] = None

    def open(self, opening: Opening, source: Source) -> PhoneSession:
        """Send a model, and return a session of it. A process there opens it when it first runs.

        Raises:
            UnsupportedError: If it is opened with another engine.
            EdgeoptError: If it does not open here either, or the phone does not take it.
        """
        options = opening.options
        if opening.executor != "onnxruntime" or options.providers[0] != CPU:
            engine = (
                opening.executor if opening.executor != "onnxruntime" else f"{options.providers[0]} of ONNX Runtime"
            )
            raise UnsupportedError(
                f"{engine} is asked for, and edgeopt-runner on {self.address} has ONNX Runtime on the processor alone",
                remedy="name --target cpu, or a bundle that was made for it",
            )
        if options.profile_to or options.save_optimized_to:
            raise UnsupportedError("edgeopt-runner writes no profile and no optimized graph", remedy="do that here")
        files, name = files_of(source)
        folder = self.phone.put("the model", files)
        ports = self._ports.get(folder)
        if ports is None:
            ports = self._ports[folder] = ports_of(source)
        self._tell_left_out(opening)
        model = ModelThere(f"{folder}/{name}", options)
        known = self._known.setdefault(_key(model), KnownTimes())
        return PhoneSession(self.phone, model, ports, known, self._make_room)

    def _tell_left_out(self, opening: Opening) -> None:
        """Note what an opening asks for that the runner cannot do."""
        if setting := left_out(opening.options.entries):
            text = f"the setting {setting} has no word in ONNX Runtime's interface for C, and is left out on the phone"
            self.note(Note(NoteKind.WARNING, text, "frames may take some per cent longer than in Python"))
        if opening.options.cores:
            text = "edgeopt-runner holds no threads to the fast cores of the phone, as the model asks for"
            self.note(Note(NoteKind.WARNING, text, "frames may take longer than held to them"))

    def _make_room(self, session: PhoneSession) -> None:
        """End the process that answered longest ago where a further one would be too many."""
        self._awake = [other for other in self._awake if other is not session]
        while len(self._awake) >= _MOST_AWAKE:
            self._awake.pop(0).rest()
        self._awake.append(session)

    def quiet(self) -> None:
        """End all processes there, so that they disturb no timed run.

        Raises:
            UnavailableError: If another one runs there, which is not ours.
        """
        while self._awake:
            self._awake.pop().rest()
        self.phone.require_alone()

    def notes_on(self, subjects: Sequence[Subject], frames: Frames) -> tuple[Note, ...]:
        """Return what is to be told of models there, after their answers were compared with those of this machine.

        Raises:
            UnavailableError: If one computes something else there.
            UnsupportedError: If one hands states from frame to frame.
        """
        notes = list[Note]()
        for subject in subjects:
            _, session = _parts_of((subject.task, subject.pipeline[1]))
            samples = list(frames.spread(MOST_SAMPLES))
            precision = "w8a8" if read_integers(load_model(subject.path)).count else subject.options.precision or "fp32"
            notes += require_right_numbers(session, subject.source, subject.task, samples, precision)
            session.rest()
            notes += outside_of(subject.recipe)
        return (*notes, *unlike(subjects))

    def times_of(self, subject: Subject) -> KnownTimes:
        """Return what is known of the times of a model there."""
        return _parts_of((subject.task, subject.pipeline[1]))[1].known

    def open_once(self, subject: Subject) -> None:
        """Open a model in a fresh process there, so that one more time of opening is known."""
        session = _parts_of((subject.task, subject.pipeline[1]))[1]
        session.rest()
        session.wake()
        session.rest()

    def close(self) -> None:
        """End all processes there."""
        while self._awake:
            self._awake.pop().rest()

    def begin_turns(self) -> None:
        """Forget the counters of earlier turns."""
        self.readings, self._rounds = [], 0

    def pace_of(self, opened: Mapping[str, Opened], first: str, frames: Pictures) -> tuple[float, float]:
        """Return the seconds of a frame of the first, and those to open them all."""
        task, session = _parts_of(opened[first])
        if not session.known.frames_ns:
            inputs, _ = task.preprocess(_read(frames[0]))
            session.run(inputs)
            while len(session.known.frames_ns) < _PACED and session.known.frames_ns[-1] / 1e9 < _SLOW_S:
                session.run(inputs)
        elif not session.known.opened_ns:
            session.wake()
        own_ns = min(session.known.opened_ns)
        known = [_parts_of(each)[1].known.opened_ns for each in opened.values()]
        open_s = sum(min(times, default=own_ns) for times in known) / 1e9
        return max(min(session.known.frames_ns) / 1e9, 1e-6), open_s

    def run_interleaved(
        self,
        frames: Pictures,
        variants: Mapping[str, Opened],
        *,
        seconds: float,
        enough: int | None,
        block: int,
        least_rounds: int,
        seed: int,
        clock: Clock,
        on_round: Callable[[float], None] | None,
    ) -> Mapping[str, Samples]:
        """Run a leg, in a fresh process there that opens all models; as the function of this name.

        Raises:
            PlaceLostError: If the phone is gone before two rounds were whole.
        """
        del clock
        rng = np.random.default_rng(seed)
        labels: list[str] = rng.permutation(list(variants)).tolist()
        number = {label: place for place, label in enumerate(labels)}
        works = [self._work_of(variants[label], frames) for label in labels]
        orders = [[number[label] for label in round_order(tuple(variants), rng)] for _ in range(_ORDERS)]
        most = 0 if enough is None else max(least_rounds, -(-enough // (2 * block)))
        request = request_for_turns(works, orders, seconds=seconds, block=block, rounds=least_rounds, most=most)
        self.quiet()
        heard = self.phone.run(request, on_rows=_shown(on_round, seconds), longest_s=_longest_s(seconds))
        parts = {label: heard.samples(label, number[label]) for label in variants}
        rounds = min((len(part) - block) // (2 * block) for part in parts.values())
        if heard.lost is not None and rounds < LEAST_WHOLE:
            raise heard.lost
        for label, opened_ns in zip(labels, heard.opened_ns, strict=False):
            _parts_of(variants[label])[1].known.opened_ns.append(opened_ns)
        self._rounds += rounds
        self.readings += _going_on(self.readings, heard.readings)
        if heard.lost is not None:
            self.note_loss(heard.lost)
        warm = {label: replace(part, warmup=np.arange(len(part)) < block) for label, part in parts.items()}
        return {label: in_rounds(part, block, rounds) for label, part in warm.items()}

    def note_loss(self, error: PlaceLostError) -> None:
        """Note that the turns have fewer rounds than was wished for."""
        self.note(loss_of(error, plural(self._rounds, "round")))

    def run_alone(
        self, opened: Opened, frames: Pictures, *, seconds: float, min_frames: int, variant: str
    ) -> tuple[Samples, Sequence[CounterReading]]:
        """Run one model's frames one after the other, warm-up found and marked.

        Raises:
            PlaceLostError: If the phone is gone before it is over.
        """
        heard = self.load(opened, frames, seconds=seconds, min_frames=min_frames)
        if heard.lost is not None:
            raise heard.lost
        samples = heard.samples(variant)
        warm = find_warmup(samples.frame_ns, min_s=warmup_for(seconds), input_id=samples.input_id)
        return replace(samples, warmup=warm.mask(len(samples))), heard.readings

    def load(
        self,
        opened: Opened,
        frames: Pictures,
        *,
        seconds: float,
        min_frames: int,
        on_rows: Callable[[int], None] | None = None,
    ) -> RunnerLog:
        """Run one model's frames one after the other; a phone that is gone leaves what was run until then."""
        work = self._work_of(opened, frames)
        self.quiet()
        request = request_for_load(work, seconds=seconds, warmup_s=warmup_for(seconds), frames=min_frames)
        return self.phone.run(request, on_rows=on_rows, longest_s=_longest_s(seconds))

    def start(
        self, opening: Opening, source: Source, make_inputs: Callable[[Sequence[TensorSpec]], Tensors]
    ) -> StartThere:
        """Open a model in a fresh process there, and let it answer twice.

        The time is from the start of the runner's program to its first answer, less what carrying the inputs took.
        """
        self.quiet()
        session = self.open(opening, source)
        try:
            inputs = make_inputs(session.inputs)
            session.run(inputs)
            assert session.last is not None
            first_ns = session.known.opened_ns[-1] + session.last.frame_ns
            session.run(inputs)
            return StartThere(first_ns, session.last.peak_bytes)
        finally:
            session.close()

    def _work_of(self, opened: Opened, frames: Pictures) -> WorkThere:
        """Send the inputs of a model for a timed run."""
        task, session = _parts_of(opened)
        inputs = [_copied(task.preprocess(_read(frame))[0]) for frame in decoded_by(frames, task.decoding)]
        work = session.work(inputs)
        if left := sum(_shapes(each) != _shapes(inputs[0]) for each in inputs):
            text = f"{left} of {len(inputs)} frames have another size than the first, and do not run on the phone"
            self.note(Note(NoteKind.WARNING, text, "name a --source with frames of one size"))
        return work


@dataclass(frozen=True, slots=True)
class ModelThereKey:
    """A model and how it is opened, by which its times are known."""

    model: str
    threads: int
    entries: tuple[tuple[str, str], ...]


def _key(model: ModelThere) -> ModelThereKey:
    return ModelThereKey(model.model, model.options.threads, tuple(sorted(model.options.entries.items())))


def _parts_of(opened: Opened) -> tuple[FrameTask, PhoneSession]:
    """Return task and session of what takes turns.

    Raises:
        UnsupportedError: If it is no single model, or one that hands states from frame to frame.
    """
    if isinstance(opened, tuple) and isinstance(opened[1], PhoneSession):
        return opened[0], opened[1]
    raise UnsupportedError(
        "edgeopt-runner times single models, and hands no states from frame to frame",
        remedy="measure it here, or on a device behind ssh",
    )


def _read(frame: Sample | Callable[[], Sample]) -> Sample:
    return frame() if callable(frame) else frame


def _copied(inputs: Tensors) -> Tensors:
    """Return inputs in memory of their own: a recipe may write the next ones over them."""
    return {name: array.copy() for name, array in inputs.items()}


def _shapes(inputs: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in inputs.items()}


def _longest_s(seconds: float) -> float:
    return _LONGEST_S + _TIMES_LONGER * seconds


def _shown(on_round: Callable[[float], None] | None, seconds: float) -> Callable[[int], None] | None:
    """Return what tells which share of a leg is over."""
    if on_round is None:
        return None
    spent_ns = 0

    def hear(more_ns: int) -> None:
        nonlocal spent_ns
        spent_ns += more_ns
        on_round(min(1.0, spent_ns / 1e9 / max(seconds, 1e-9)))

    return hear


def _going_on(before: Sequence[CounterReading], readings: Sequence[CounterReading]) -> list[CounterReading]:
    """Return readings of a further process as if its own counters went on from those of the process before."""
    if not before:
        return [*readings]
    last = before[-1]
    own = ("own_s", "switches", "major_faults", "heat_throttled")
    return [
        replace(
            reading,
            **{
                name: getattr(reading, name) + getattr(last, name)
                for name in own
                if getattr(reading, name) is not None and getattr(last, name) is not None
            },
        )
        for reading in readings
    ]
