"""The test of a bundle's numbers: its inputs, what each model makes of them here, and the sketch for drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.facts.held_ranges import held_ranges
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Sample
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.deployment.embedding import EmbeddedParts
from edgeopt.optimization.deployment.sketching import has_frames_for_sketch, sketch_frames
from edgeopt.optimization.options import SelfTestInputs
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.made_up import synthetic_like
from edgeopt.runtime.bundle import make_selftest
from edgeopt.runtime.bundles.parts import SelfTest
from edgeopt.runtime.drift.sketch import Sketch
from edgeopt.runtime.selftest import FILE, MOST_SAMPLES, Recorded, Rows, choose_samples, pack, record, run_rows
from edgeopt.steps._context import Engine
from edgeopt.system.declared.target import Target
from edgeopt.system.text import plural
from edgeopt.tasks import make_task

_TEST_MS = 500.0
"""Time that the stored inputs may take when a bundle is loaded."""


@dataclass(frozen=True)
class BundlePart:
    """One model of a bundle."""

    name: str
    """Name of its file there."""
    file: str
    """File of the output folder."""
    candidate: Candidate
    precision: str
    target: Target
    """Target whose engine opens it, and its options."""
    threads: int
    judged_as: Engine | None = None
    """What computes its numbers here; None: as the candidate was judged."""


def p50_of(candidate: Candidate) -> float | None:
    """Return the median time of a candidate's frame in milliseconds; None: it was not measured."""
    return candidate.latency.frame.p50_ms if candidate.latency else None


def samples_of_test(
    run: Run, candidates: Sequence[Candidate], size: tuple[int, ...], notes: list[Note]
) -> tuple[Sample, ...]:
    """Return the inputs of the test: as many as a device runs in half a second, four at most; one for a simulator."""
    if run.plan.selftest is SelfTestInputs.OFF:
        notes.append(Note(NoteKind.SKIPPED, "the bundle has no test of its numbers: --selftest off"))
        return ()
    slowest_ms = max(p50_of(candidate) or run.frame_ms for candidate in candidates)
    count = MOST_SAMPLES if not slowest_ms else max(1, min(MOST_SAMPLES, int(_TEST_MS / slowest_ms)))
    count = 1 if any(candidate.compiled for candidate in candidates) else count
    given = run.context.frames
    is_made_up = run.plan.selftest is SelfTestInputs.SYNTHETIC
    frames = synthetic_like(given, size, count) if is_made_up else given.spread(count)
    if frames.kind == "sound":  # the states that occur belong to the test
        model = run.context.original
        samples: list[Sample] = list(model_inputs(run.context.task(model, evaluating=False), frames))
    else:
        samples = [frames.read(i) for i in range(len(frames))]
    kept = choose_samples(samples, size)
    if not kept:
        text = "no test of its numbers: its inputs are larger than a bundle stores, or are text"
        notes.append(Note(NoteKind.SKIPPED, f"the bundle has {text}"))
    else:
        notes.append(_stored(kept, frames))
    return kept


def _stored(kept: Sequence[Sample], frames: Frames) -> Note:
    """Return what of the given frames leaves with the bundle."""
    inputs = plural(len(kept), "input")
    if not frames.paths:
        return Note(NoteKind.INFO, f"the bundle tests its numbers on {inputs} made up from a fixed seed")
    text = f"the bundle tests its numbers on {inputs} out of {frames.source}, which every device gets"
    return Note(NoteKind.INFO, text, "where that must not be, --selftest synthetic")


class Recorder:
    """Runs the models of a bundle here, as they were judged."""

    def __init__(
        self,
        run: Run,
        embedded: EmbeddedParts,
        samples: Sequence[Sample],
        notes: list[Note],
        in_float: Model,
        first: BundlePart,
    ) -> None:
        self._run, self._embedded, self._samples, self._notes = run, embedded, samples, notes
        self._float, self._recipe = in_float, embedded.recipe or run.context.recipe_of(in_float)
        self._known: dict[tuple[str, bool], Recorded | None] = {}
        self._first = first
        self._sketched: Sketch | Note | None = None
        self._is_sketched = not has_frames_for_sketch(run)

    @cached_property
    def _original(self) -> Sequence[Mapping[str, Rows]]:
        """The original's answers to the samples, or those of its smaller form."""
        session = self._run.context.open(self._embedded.put_into(self._float))
        task = make_task(self._recipe, session.inputs, session.outputs, evaluating=False)
        try:
            return run_rows(session, task, self._samples)
        finally:
            session.close()

    def sketch(self) -> Sketch | None:
        """Return the figures of the calibration frames and of the first model's answers; None, and a note, without."""
        if not self._is_sketched:
            try:
                session = self._open(self._first)
            except EdgeoptError as error:
                self._sketched = _no_sketch(error)
            else:
                try:
                    self._sketch(self._first, session)
                finally:
                    session.close()
        if isinstance(self._sketched, Note):
            self._notes.append(self._sketched)
            return None
        return self._sketched

    def _sketch(self, part: BundlePart, session: Session) -> None:
        candidate, self._is_sketched = part.candidate, True
        is_integer = candidate.precision.startswith("w8")
        held = held_ranges(load_model(self._run.workspace.path(candidate.file), candidate.name)) if is_integer else {}
        try:
            task = make_task(self._recipe, session.inputs, session.outputs, evaluating=False)
            self._sketched = sketch_frames(self._run, session, task, part.name, held)
        except EdgeoptError as error:
            self._sketched = _no_sketch(error)

    def record(self, part: BundlePart) -> Recorded | None:
        """Return what a model makes of the samples; None where it does not run here."""
        key = part.candidate.name, part.judged_as is None
        if key not in self._known:
            self._known[key] = self._record(part)
        return self._known[key]

    def _record(self, part: BundlePart) -> Recorded | None:
        try:
            original = self._original  # before the part is opened: memory need not hold both
            session = self._open(part)
            try:
                task = make_task(self._recipe, session.inputs, session.outputs, evaluating=False)
                names = {output.name for output in session.outputs}
                known = original if all(names <= arrays.keys() for arrays in original) else ()
                elsewhere = self._run.by_rule and part.judged_as is None
                recorded = record(session, task, self._samples, part.precision, original=known, elsewhere=elsewhere)
                if part is self._first and not self._is_sketched:
                    self._sketch(part, session)  # while it is open
                return recorded
            finally:
                session.close()
        except EdgeoptError as error:
            text = f"the numbers of the bundle's {part.name} are not tested: {error.problem}"
            self._notes.append(Note(NoteKind.WARNING, text, error.remedy))
            return None

    def _open(self, part: BundlePart) -> Session:
        """Open a model as it was judged; what was compiled as it is deployed, where its engine opens that here."""
        candidate, run = part.candidate, self._run
        engine = part.judged_as or run.engine_of(candidate)
        if candidate.compiled and engine.executor.takes_onnx:
            return engine.opening(candidate.precision).open(run.workspace.path(candidate.compiled))
        model = load_model(run.workspace.path(candidate.file), candidate.name)
        if candidate.compiled:
            return run.open_candidate(candidate, model)
        return engine.open(self._embedded.put_into(model), part.precision if part.judged_as else candidate.precision)


def _no_sketch(error: EdgeoptError) -> Note:
    return Note(NoteKind.SKIPPED, f"drift cannot be watched: {error.problem}", error.remedy)


def selftest_of(samples: Sequence[Sample], recorded: Sequence[Recorded | None]) -> tuple[SelfTest, bytes]:
    """Return the test that a bundle stores, with its file."""
    data = pack(samples, recorded)
    return make_selftest(FILE, data, len(samples)), data
