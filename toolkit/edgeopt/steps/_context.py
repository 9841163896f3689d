"""The context of every step of one run: the recipe, the target, pictures, the clock and somewhere to write."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Executor, Session
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import answers, model_inputs
from edgeopt.measurement.accuracy.pool import HERE, AnswerPool
from edgeopt.measurement.fresh_process.proof_time import SPARE, ProofTime
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.measurement.turns.one_open import proof_seconds
from edgeopt.recipes.default_limits import MAX_DROP
from edgeopt.recipes.inputs.frames import Frames, calibration_fingerprint
from edgeopt.recipes.inputs.text_input import TextInput
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.runtime.opening import Opening, opening_for
from edgeopt.steps._pruning import Pruning
from edgeopt.steps._training import TRAINING_S
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.system.declared.target import Target
from edgeopt.system.processes.time_limit import LONGER, require_time
from edgeopt.tasks import Task, make_task

if TYPE_CHECKING:
    from edgeopt.steps.quantize.calibration.calibrate import Calibration
    from edgeopt.steps.quantize.search.decisions_file import StoredDecisions

CALIBRATION = ".calibration"
"""Folder of finished chunks in the output folder, for a run that is resumed; gone when the run is finished."""
CHECKED_PICTURES = 4
AGREEMENT_PICTURES = 16
_AFTER = 0.4
"""Share of a time limit for what comes after searches: labels, measuring in turns, bundle and report."""

_MEASURED, MOST_MEASURED = 0.2, 0.6
"""Share of it for measuring in turns, which begins then whatever is not made or scored yet; and the most that it may
be where each turn opens a large model."""
_INT8_SIZE, _FIXED = 0.25, 1 / 3
"""Size of an INT8 form as a share of the float model's; share of a turn that does not follow from the size: a form of a
quarter of it took half as long."""
_SCORED = 0.1
"""Share of it for scoring what searches found."""
_CONVERSIONS = 3
"""Forms that a search for INT8 converts at least."""


class Listener(Protocol):
    """Hears how far a step is."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Hear that `done` of `of` parts of a piece of work are done."""
        ...

    def say(self, text: str) -> None:
        """Hear one line."""
        ...

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
        """Hear that a part of the whole work begins, about how many seconds it takes, and all that follows it."""
        ...


class Files(Protocol):
    """The output folder, as far as a step writes into it."""

    def path(self, name: str) -> Path:
        """Return where a file lies."""
        ...

    def write(self, name: str, data: str | bytes) -> Any:
        """Write a file whole or not at all."""
        ...


class Earlier(Protocol):
    """An earlier run whose decisions hold in place of what is measured here."""

    @property
    def source(self) -> Path:
        """Return its output folder."""
        ...

    def of(self, name: str) -> Sequence[StoredDecisions]:
        """Return what decided the candidates of one search: `quantize`, `quantize-2` and so on."""
        ...


@dataclass(frozen=True)
class Engine:
    """An executor as one profile sets it."""

    target: Target
    executor: Executor
    threads: int
    cache_folder: str = ""
    """Where an engine that compiles keeps the result."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Session entries with which models are judged here for another device; none of them is deployed."""

    def open(self, model: Model, precision: str) -> Session:
        """Open a model as the profile says.

        Args:
            model: Any that the executor reads.
            precision: A scheme; what is behind its `+`, or the whole, names the arithmetic of float operators.
        """
        return self.opening(precision).with_entries(self.entries).open(model.source)

    def opening(self, precision: str) -> Opening:
        """Return how the profile opens a model of a precision scheme."""
        return opening_for(self.target, precision, self.threads, self.cache_folder)

    def with_options(self, options: Mapping[str, str]) -> Engine:
        """Return the engine with further session configuration entries."""
        if not options:
            return self
        return replace(self, target=replace(self.target, options={**self.target.options, **options}))


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine on which a step's models run, their precision scheme and their names."""

    engine: Engine
    precision: str
    name: str
    """Name of the first candidate that is made; see `numbered`."""
    most: int = 3
    """Models that a search gives: the fastest by agreement may still lose too much of the metric."""
    least_speed: float = 0.0
    """Speed over the engine's own float model, or nothing more is searched for: the first variant of each form, and of
    ONNX Runtime's own ops those with layers in float for speed, are all tried before it is asked for."""


@dataclass
class Context:
    """The context that the steps of one run share."""

    recipe: Recipe
    target: Target
    engine: Engine
    original: Model
    frames: Frames
    """Calibration pictures; those of the evaluation, or synthetic ones, where there are none."""
    files: Files
    listener: Listener
    quantizes: bool
    """Whether a step of the plan makes INT8 models."""
    may_quantize: bool
    """Whether such a step was asked for: without pictures it falls away, but weights may still be integers."""
    threads: int
    ends_at: float
    """Second of the monotonic clock at which the time limit is reached."""
    time_limit_s: float | None = None
    most_pictures: int = CALIBRATION_PICTURES
    """Most pictures on which one look at a model may run it: few where the model is slow against the time limit."""
    proof: ProofTime | None = None
    """Times of measuring and proving, by what was seen so far; None: not known, as without a time limit."""
    turn_s: float = 0.0
    """Seconds of one turn of the original that opens it anew, as with a model above 2 GB; 0: turns share a session."""
    alternatives: tuple[Engine, ...] = ()
    """Engines beside the target's own on the same device; of a target that is compiled for: the device itself."""
    replay: Earlier | None = None
    """Decisions that hold in place of what is measured here; None: nobody's."""
    pruning: Pruning = Pruning()  # noqa: RUF009, frozen
    """How much the step `prune` removes."""
    seed: int = 0
    """Decides which positions of each tensor calibration keeps."""
    training_s: float = TRAINING_S
    """How long the step `finetune` trains at most."""
    max_drop: float = MAX_DROP
    """Metric that may be lost, in its own unit."""
    search_agreement: float = 0.0
    """Agreement that a search asks for because labels, which it does not read, decide in the end."""
    is_calibrated: bool = False
    """Whether the pictures are real ones that were given to learn from, not labelled or made-up ones."""
    untimed: str = ""
    """Why nothing is measured here; empty where all is."""
    notes: list[Note] = field(default_factory=list)
    """Notes for the user on the run as a whole."""
    reference: list[Any] = field(default_factory=list)
    """The original's answers to the agreement pictures."""
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    """Ranges that calibration saw in a float model, by the model's fingerprint: they are the same for all engines."""
    pool: AnswerPool = HERE
    """Answers the frames on which accuracy is judged: this process, or a cluster that answers alike."""
    int8_speeds: dict[str, float] = field(default_factory=dict)
    """Target's name -> speed of the best INT8 form that a search made for it, over the engine's own float model."""
    checked_outputs: list[Tensors] = field(default_factory=list)
    """Outputs of the original for the pictures on which drift is measured; see `original_outputs`."""

    @property
    def pictures(self) -> Frames:
        """The pictures, or tensors, on which agreement is judged: those that calibrate."""
        return self.frames

    @property
    def judged_pictures(self) -> Frames:
        """The few of them on which answers are compared."""
        return self.pictures.judged(min(AGREEMENT_PICTURES, self.most_pictures))

    @cached_property
    def calibration_fingerprint(self) -> str:
        """SHA-256 of the pictures, or tensors, that calibrate."""
        return calibration_fingerprint(self.frames.spread(CALIBRATION_PICTURES))

    @property
    def least_agreement(self) -> float:
        """Agreement that a search asks of a model: the recipe's, more where labels decide in the end."""
        return max(self.recipe.least_agreement, self.search_agreement)

    @property
    def searches_end(self) -> float:
        """On the monotonic clock: what is left of the time limit then is for scoring and measuring."""
        limit_s = self.time_limit_s or 0.0
        return self.ends_at - max(_AFTER * limit_s, self._measured_s + _SCORED * limit_s)

    @property
    def candidates_end(self) -> float:
        """On the monotonic clock: what is left of the time limit then is for measuring."""
        return self.ends_at - self._measured_s

    @property
    def _measured_s(self) -> float:
        limit_s = self.time_limit_s or 0.0
        return min(max(_MEASURED * limit_s, self.proof_s), MOST_MEASURED * limit_s)

    @property
    def proof_s(self) -> float:
        """The least seconds of measuring forms in turns and proving one of them; 0: not known."""
        if self.turn_s:
            return self.proof_of([_INT8_SIZE])
        return self.proof.kept_s if self.proof else 0.0

    def proof_of(self, sizes: Sequence[float]) -> float:
        """Return how many seconds it takes to prove forms of so many times the original's size, some to spare."""
        turns_s = [self.turn_s * (_FIXED + (1 - _FIXED) * number) for number in (1.0, *sizes)]
        return SPARE * proof_seconds(turns_s)

    @property
    def least_limit_s(self) -> float:
        """The least time limit that leaves enough for such a proof."""
        return self.proof_s / MOST_MEASURED

    def search_seconds(self, engine: Engine) -> float:
        """Return how long the INT8 search for an engine may take: it shares what is left with those that follow."""
        engines = (self.engine, *self.alternatives)
        return self.share_seconds(engines[engines.index(engine) + 1 :])

    def share_seconds(self, engines: Sequence[Engine]) -> float:
        """Return how long a piece of searching may take that shares what is left with the INT8 searches for engines.

        Args:
            engines: Those that follow; of these the ones that run no INT8 or have no time for it take nothing.
        """
        following = [other for other in engines if _runs_int8(other.target)]
        left_s = max(self.searches_end - monotonic(), 0.0)
        share_s = left_s / (1 + len(following))
        # nothing is kept for one that has no time for its conversions anyway
        fitting = [other for other in following if self.searching_s(other) <= share_s]
        return left_s / (1 + len(fitting))

    def searching_s(self, engine: Engine) -> float:
        """Return what the conversions of the shortest search for INT8 take; 0 of an engine that converts quickly."""
        if not engine.executor.heavy:
            return 0.0
        try:
            return _CONVERSIONS * engine.executor.conversion_s(self.original.source)
        except EdgeoptError:  # it does not take the model
            return math.inf

    def recipe_of(self, model: Model) -> Recipe:
        """Return the recipe of a form of the original, whose pictures may be smaller than the original's."""
        return self.recipe.for_inputs(model.inputs)

    def task(self, model: Model, *, evaluating: bool) -> Task:
        """Return the recipe's task for a model's tensors."""
        return make_task(self.recipe_of(model), model.inputs, model.outputs, evaluating=evaluating)

    def runnable(self, model: Model, engine: Engine, precision: str) -> Runnable:
        """Return how another process opens a model as `Engine.open` does."""
        opening = engine.opening(precision).with_entries(engine.entries)
        return Runnable(opening, model.source, self.recipe_of(model), model.inputs, model.outputs)

    def open(self, model: Model) -> Session:
        """Open a model as the target would."""
        return self.engine.open(model, self.engine.target.float_precision)

    def original_outputs(self) -> list[Tensors]:
        """Return what the original makes of the pictures on which drift is measured: it is run once for all."""
        if not self.checked_outputs:
            session = self.open(self.original)
            try:
                self.checked_outputs += outputs_of(session, self.inputs(CHECKED_PICTURES))
            finally:
                session.close()
        return self.checked_outputs

    def inputs(self, count: int, model: Model | None = None) -> list[Tensors]:
        """Return a model's inputs, the original's by default, for a few of the frames."""
        frames = self.frames.spread(min(count, self.most_pictures))
        return list(model_inputs(self.task(model or self.original, evaluating=True), frames))

    def checked_inputs(self, model: Model | None = None) -> list[Tensors]:
        """Return what a rewrite is checked on: a few frames, and as one run several texts that are read together."""
        single, recipe = self.inputs(CHECKED_PICTURES, model), self.recipe
        if recipe.kind != "text" or recipe.tokenizer.fill is not Fill.TOGETHER or self.frames.tensors is not None:
            return single
        feed = TextInput(recipe, (model or self.original).inputs)
        texts = [str(frame) for frame in self.frames.spread(min(CHECKED_PICTURES, self.most_pictures))]
        return [*single, feed.together(texts)[0]]


def _runs_int8(target: Target) -> bool:
    return any(
        precision.startswith("w8a8") and not target.why_no_precision(precision) for precision in target.precisions
    )


def out_of_time(before: str) -> Note:
    """Return that the time limit was reached before something was made."""
    return Note(NoteKind.WARNING, f"time limit reached before {before}", LONGER)


def outputs_of(session: Session, inputs: Sequence[Tensors]) -> list[Tensors]:
    """Return what a session makes of some inputs.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    outputs = []
    for input_ in inputs:
        require_time()
        outputs.append(session.run(input_))
    return outputs


def reference_answers(
    context: Context,
    session: Session,
    model: Model,
    runnable: Runnable | None = None,
    *,
    hear: Callable[[Tensors], None] | None = None,
) -> list[Any]:
    """Return a model's answers to the pictures on which agreement is judged.

    Args:
        context: Of the run.
        session: Of the model.
        model: Any form of the original.
        runnable: How another process opens it; None: this process answers.
        hear: Called with all outputs, which only this process tells.
    """
    task = context.task(model, evaluating=True)
    if hear:
        return answers(session, task, context.judged_pictures, hear=hear)
    return context.pool.answers(runnable, session, task, context.judged_pictures)


def agreement_on_processor(context: Context, model: Model) -> float:
    """Return how far a model's answers are the original's, both on this machine's processor."""
    session = context.engine.open(model, "fp32")
    result = reference_answers(context, session, model, context.runnable(model, context.engine, "fp32"))
    session.close()
    return context.task(model, evaluating=True).agreement(result, context.reference)


def numbered(name: str, position: int) -> str:
    """Return `quantize`, `quantize-2`, `quantize-3`."""
    return name if position == 0 else f"{name}-{position + 1}"
