"""The test of a bundle's numbers: its inputs, what each model makes of them here, and the sketch for drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic

import numpy as np
import onnx_ir as ir

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session
from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Sample
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.measurement.opening.given import FillTrial, reading_of
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.deployment.embedding import EmbeddedParts
from edgeopt.optimization.options import SelfTestInputs
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.made_up import synthetic_like
from edgeopt.recipes.inputs.text_input import fill_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.runtime.bundle import make_selftest
from edgeopt.runtime.bundles.parts import SelfTest
from edgeopt.runtime.drift.figures import Figures, of_answer, reader_of
from edgeopt.runtime.drift.sketch import LEAST_FRAMES, Sketch, sketch_of
from edgeopt.runtime.selftest import FILE, MOST_SAMPLES, Recorded, Rows, choose_samples, pack, record, run_rows
from edgeopt.steps._context import Engine
from edgeopt.system.declared.target import Target
from edgeopt.system.text import plural
from edgeopt.tasks import FrameTask, make_task

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
    """Engine that computes its numbers here; None: the engine that judged the candidate."""


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

    def with_reading(self, recipe: Recipe) -> Recipe:
        """Return the recipe with how the first model may read texts: rounding on integers may mix those of one run."""
        if recipe.kind != "text" or recipe.tokenizer.fill is Fill.LENGTH:
            return recipe
        session = self._open(self._first)
        try:
            fill = fill_of(recipe.tokenizer, session.inputs)
            reading = FillTrial(fill) if fill is Fill.LENGTH else reading_of(session, recipe)
        finally:
            session.close()
        if reading.why:
            text = f"a server reads texts with {self._first.candidate.name} one by one: {reading.why}"
            self._notes.append(Note(NoteKind.INFO, text))
        fill = Fill.ALONE if reading.why else reading.fill
        return replace(recipe, tokenizer=replace(recipe.tokenizer, fill=fill))

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
        """Return what a model makes of the samples; None where it does not run here.

        Raises:
            UnsupportedError: If its engine cannot hold what is embedded, and another model is the first.
        """
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
                unfused = UNFUSED.items() <= (part.judged_as or self._run.engine_of(part.candidate)).entries.items()
                is_int8 = part.precision.startswith("w8a8")
                recorded = record(
                    session, task, self._samples, part.precision,
                    original=known, elsewhere=elsewhere, unfused=unfused and is_int8,
                )  # fmt: skip
                if part is self._first and not self._is_sketched:
                    self._sketch(part, session)  # while it is open
                return recorded
            finally:
                session.close()
        except EdgeoptError as error:
            if isinstance(error, UnsupportedError) and self._embedded.steps and part is not self._first:
                raise
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


# The ranges that the quantizers at the ends of an INT8 model hold.

_KEEPS_NUMBERS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Ops that move numbers and change none, such as the turn to channels last before the first quantizer."""


def held_ranges(model: Model) -> dict[str, tuple[float, float]]:
    """Return by input and output the least and the largest number that its own quantizer holds.

    An end without a quantizer of one scale is left out: what it is fed first is computed in float.
    """
    graph = Graph.from_model(model)
    ranges = dict(_of_inputs(graph))
    for value in graph.outputs:
        node = graph.producer(value)
        while node is not None and node.op_type in _KEEPS_NUMBERS:
            node = graph.producer(node.inputs[0])
        if node is not None and node.op_type == "DequantizeLinear" and value.name and (held := _held(graph, node)):
            ranges[value.name] = held
    return ranges


def _of_inputs(graph: Graph) -> Iterator[tuple[str, tuple[float, float]]]:
    for value in graph.inputs:
        readers = graph.consumers(value)
        while len(readers) == 1 and readers[0].op_type in _KEEPS_NUMBERS:
            readers = graph.consumers(readers[0].outputs[0])
        held = [_held(graph, node) for node in readers if node.op_type == "QuantizeLinear"]
        if value.name and held and len(held) == len(readers) and held[0] is not None and len(set(held)) == 1:
            yield value.name, held[0]


def _held(graph: Graph, node: ir.Node) -> tuple[float, float] | None:
    """Return the range of a grid of one scale: (least - zero point) x scale to (largest - zero point) x scale."""
    inputs = [*node.inputs, None][:3]
    scale, zero_point = graph.constant(inputs[1]), graph.constant(inputs[2])
    if scale is None or scale.size != 1 or zero_point is None or zero_point.size != 1:
        return None
    if zero_point.dtype.kind not in "iu":  # 8-bit floats
        return None
    integers, step, zero = np.iinfo(zero_point.dtype), float(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])
    return (integers.min - zero) * step, (integers.max - zero) * step


# The sketch of the calibration frames that a bundle keeps, so that an app can see when the field differs.

_MOST_FRAMES = 128
_MOST_S = 3.0
"""Seconds for reading and running the frames."""
_SEED = 0


def has_frames_for_sketch(run: Run) -> bool:
    """Return whether enough calibration frames were passed that show what is usual."""
    return not run.plan.synthetic and len(run.context.frames) >= LEAST_FRAMES


def sketch_frames(
    run: Run, session: Session, task: FrameTask, artefact: str, held: Mapping[str, tuple[float, float]]
) -> Sketch | Note:
    """Return the figures of calibration frames and of a model's answers to them; a note that says why there are none.

    Args:
        run: With its frames.
        session: The model as it is deployed.
        task: Bound to it, with the thresholds of an app.
        artefact: File of the model in the bundle.
        held: What its quantizers hold, by input and output.

    Raises:
        EdgeoptError: If the engine fails.
    """
    recipe, frames = run.context.recipe, run.context.frames.spread(_MOST_FRAMES)
    states = recipe.input.states
    specs = [spec for spec in session.inputs if spec.name not in states]
    reader, looks = None, list[tuple[Figures, list[int]]]()
    until_s = min(monotonic() + _MOST_S, max(run.context.ends_at, monotonic()))
    for sample in _samples(run, frames.decoded_by(task.decoding)):
        inputs, geometry = task.preprocess(sample)
        reader = reader or reader_of(specs, inputs, recipe.input.tensor, held)
        figures = reader.of_inputs(inputs)
        outputs = session.run(inputs)
        figures |= reader.of_outputs(outputs)
        answer = task.postprocess(outputs, geometry)
        looks.append((figures | of_answer(task, answer), list(task.classes_in(answer))))
        if monotonic() > until_s:
            break
    sketch = sketch_of(artefact, "calibration", reader, looks) if reader else None
    if sketch is None:
        text = f"drift cannot be watched: there was time for {len(looks)} of the {LEAST_FRAMES} frames that are needed"
        return Note(NoteKind.SKIPPED, text)
    return sketch


def _samples(run: Run, frames: Frames) -> Iterator[Sample]:
    """Yield frames in an order that says nothing: time may end before the last."""
    if frames.kind == "sound":  # as they stream, with the states that occur
        yield from model_inputs(run.context.task(run.context.original, evaluating=False), frames)
        return
    for place in np.random.default_rng(_SEED).permutation(len(frames)):
        yield frames.read(int(place))
