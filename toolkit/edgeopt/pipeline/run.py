"""What all steps of one run share, and how a candidate is scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Any, Protocol

from edgeopt import tasks
from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Executor, Session
from edgeopt.graph.drift import measure_drift, worst_drift
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between, require_telling
from edgeopt.measurement.accuracy.bootstrap import score as score_answers
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, model_inputs, synthetic, why_no_proof
from edgeopt.pipeline.candidate import BASELINE, Candidate, Score
from edgeopt.pipeline.plan import Plan
from edgeopt.pipeline.replay import Replay, calibration_fingerprint
from edgeopt.pipeline.selection import Wish
from edgeopt.pipeline.workspace import Workspace
from edgeopt.recipes.frames import Frames
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import TENSORS
from edgeopt.runtime.opening import Opening, opening_for
from edgeopt.steps.compile._partition_svg import PICTURE, draw_partition
from edgeopt.steps.compile._placement import explain_placement
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.system import registry
from edgeopt.system.target import Target
from edgeopt.system.text import plural
from edgeopt.tasks import Accuracy, Task

CALIBRATION_PICTURES = 128
CALIBRATION = ".calibration"
"""Folder of finished chunks in the output folder, for a run that is resumed; gone when the run is finished."""
CHECKED_PICTURES = 4
AGREEMENT_PICTURES = 16
_AFTER = 0.4
"""Share of a time budget for what comes after searches: labels, measuring in turns, bundle and report."""
_BASELINE_SCORED = f"candidates/{BASELINE}/scored.json"
RESUMED = Note(NoteKind.INFO, "taken up from disk")


class Listener(Protocol):
    """Hears how far the work is."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Hear that `done` of `of` parts of a piece of work are done."""
        ...

    def say(self, text: str) -> None:
        """Hear one line."""
        ...

    def candidate(self, one: Candidate) -> None:
        """Hear of a finished candidate."""
        ...


class Silence:
    """A listener that keeps quiet."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Ignore it."""

    def candidate(self, one: Candidate) -> None:
        """Ignore it."""


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
        return self.opening(precision).with_entries(self.entries).open(model.data)

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
    """On which engine a candidate runs, and in which precision scheme."""

    engine: Engine
    precision: str


@dataclass
class Trial:
    """What all steps of one run share."""

    recipe: Recipe
    target: Target
    plan: Plan
    engine: Engine
    workspace: Workspace
    listener: Listener
    original: Model
    frames: Frames
    """Calibration pictures; those of the evaluation, or synthetic ones, where there are none."""
    labelled: LabelledFrames | None
    resume: bool
    deadline: float
    alternatives: tuple[Engine, ...] = ()
    """Engines beside the target's own on the same device; of a target that is compiled for: the device itself."""
    replay: Replay | None = None
    """Whose decisions hold in place of what is measured here; None: nobody's."""
    by_rule: bool = False
    """Whether nothing compiles for the target here, so that its rules say where nodes would run."""
    openers: dict[str, Callable[[], Session]] = field(default_factory=dict)
    """How the candidates of a compiler are opened on the device, by name; a candidate from disk has none."""
    untimed: str = ""
    """Why nothing is measured here; empty: all candidates are."""
    notes: list[Note] = field(default_factory=list)
    """What the user should know of the run as a whole."""
    candidates: list[Candidate] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    """The original's answers to the agreement pictures."""
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    """What calibration saw of a float model, by its fingerprint: it is the same for all engines."""

    @property
    def pictures(self) -> Frames:
        """The pictures, or tensors, on which agreement is judged: those that calibrate."""
        return self.frames

    @cached_property
    def calibration_fingerprint(self) -> str:
        """SHA-256 of the pictures, or tensors, that calibrate."""
        return calibration_fingerprint(self.frames.spread(CALIBRATION_PICTURES))

    @property
    def timed(self) -> Frames:
        """What is timed: frames as the device gets them, random colour where only their tensors are here."""
        if self.labelled:
            return self.labelled.frames
        if self.frames.tensors is None or self.recipe.task == TENSORS:
            return self.frames
        return synthetic(self.recipe, self.original.inputs)

    @property
    def wish(self) -> Wish:
        """What a candidate must keep, and what is wanted of it."""
        return Wish(self.plan.max_drop, self.least_agreement, self.plan.prefer)

    @property
    def least_agreement(self) -> float:
        """What a candidate must reach where no labels judge."""
        return self.recipe.least_agreement

    @property
    def searches_end(self) -> float:
        """On the monotonic clock: what is left of the time budget then is for scoring and measuring."""
        return self.deadline - _AFTER * (self.plan.time_budget_s or 0)

    def search_seconds(self, engine: Engine) -> float:
        """Return how long the INT8 search for an engine may take: it shares what is left with those that follow."""
        engines = (self.engine, *self.alternatives)
        following = [one for one in engines[engines.index(engine) + 1 :] if _runs_int8(one.target)]
        return max((self.searches_end - monotonic()) / (1 + len(following)), 0.0)

    def task(self, model: Model, *, evaluating: bool) -> Task:
        """Return the recipe's task for a model's tensors."""
        task: Task = registry.load(tasks, self.recipe.task).TASK(self.recipe, model.inputs, model.outputs, evaluating)
        return task

    def open(self, model: Model) -> Session:
        """Open a model as the target would."""
        return self.engine.open(model, self.engine.target.float_precision)

    def open_candidate(self, candidate: Candidate, model: Model) -> Session:
        """Open a candidate's model on its own engine."""
        if candidate.name in self.openers:
            return self.openers[candidate.name]()
        return self.engine_of(candidate).open(model, candidate.precision)

    def engine_of(self, candidate: Candidate) -> Engine:
        """Return the engine that runs a candidate."""
        others = (one for one in self.alternatives if one.target.name == candidate.profile)
        engine = next(others, self.engine) if candidate.profile else self.engine
        return engine.with_options(candidate.options)

    def inputs(self, count: int, model: Model | None = None) -> list[Tensors]:
        """Return a model's inputs, the original's by default, for a few of the frames."""
        return list(model_inputs(self.task(model or self.original, evaluating=True), self.frames.spread(count)))


def _runs_int8(target: Target) -> bool:
    return any(one.startswith("w8a8") and not target.why_no_precision(one) for one in target.precisions)


def out_of_time(before: str) -> Note:
    """Return that the time budget ended before something was made."""
    return Note(NoteKind.WARNING, f"time budget spent before {before}", "give --time-budget more")


def model_file(name: str) -> str:
    """Return where a candidate's model lies in the output folder."""
    return f"candidates/{name}/model.onnx"


def score_candidate(
    run: Trial, name: str, parent: str, steps: tuple[str, ...], outcome: Outcome, setting: Setting
) -> Candidate:
    """Return a candidate with its accuracy, its agreement with the original and its drift; not measured yet."""
    session = setting.engine.with_options(outcome.options).open(outcome.model, setting.precision)
    task = run.task(outcome.model, evaluating=True)
    scored = _score_on_labels(run, name, session, task)
    score = _plain(scored.accuracy) if scored else None
    candidate = Candidate(
        name=name,
        parent=parent,
        steps=steps,
        precision=setting.precision,
        file=model_file(name),
        size_bytes=outcome.model.size_bytes,
        sha256=outcome.model.fingerprint,
        changes=dict(outcome.changes),
        notes=outcome.notes,
        score=score,
        executor=setting.engine.target.executor,
        profile="" if setting.engine is run.engine else setting.engine.target.name,
        options=dict(outcome.options),
        placement=_judged_by_rule(run, name, outcome.model),
    )
    found = reference_answers(run, session, outcome.model)
    if name == BASELINE:
        _keep_reference(run, task, found)
        session.close()
        return candidate
    baseline, drop = run.candidates[0].score, _drop_from_baseline(run, scored)
    pairs = zip(run.inputs(CHECKED_PICTURES), run.inputs(CHECKED_PICTURES, outcome.model), strict=True)
    original = run.open(run.original)
    drift = worst_drift(measure_drift(original.run(before), session.run(after)) for before, after in pairs)
    original.close()
    session.close()
    return replace(
        candidate,
        drift=drift,
        agreement=task.agreement(found, run.reference),
        drop=baseline.value - score.value if baseline and score else None,
        drop_low=drop.low if drop else None,
        drop_high=drop.high if drop else None,
    )


def _keep_reference(run: Trial, task: Task, found: list[Any]) -> None:
    """Keep the original's answers, and say where agreement with them proves nothing."""
    run.reference = found
    if unproven := "" if run.labelled else why_no_proof(task, found, run.least_agreement):
        run.notes.append(Note(NoteKind.WARNING, f"agreement is no proof: {unproven}", "pass other pictures"))


def _judged_by_rule(run: Trial, name: str, model: Model) -> str:
    """Return where the target's rules put the nodes, and draw it; empty where an engine is asked."""
    if not run.by_rule or name == BASELINE:
        return ""
    partition = explain_placement(model, run.target)
    run.workspace.write(model_file(name).replace("model.onnx", PICTURE), draw_partition(partition))
    return partition.verdict


def _plain(accuracy: Accuracy) -> Score:
    return Score(accuracy.metric, accuracy.value, accuracy.n, dict(accuracy.others))


def _score_on_labels(run: Trial, name: str, session: Session, task: Task) -> Scored | None:
    """Return a model's metric on the labelled pictures; the baseline's is kept for candidates of a resumed run."""
    if run.labelled is None:
        return None
    found = answers(session, task, run.labelled.frames, run.listener.progress, f"evaluate {name}")
    scored = score_answers(task, found, run.labelled.labels)
    if name == BASELINE:
        require_telling(scored, "without --eval, agreement judges")
        run.workspace.write(_BASELINE_SCORED, json.dumps(scored.to_json()))
    return scored


def _drop_from_baseline(run: Trial, scored: Scored | None) -> Drop | None:
    """Return what a candidate lost with its interval; None without labels, or where an older run left no resamples."""
    try:
        baseline = Scored.from_json(json.loads(run.workspace.path(_BASELINE_SCORED).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return drop_between(baseline, scored) if scored else None


def find_twin(run: Trial, outcome: Outcome, setting: Setting) -> Candidate | None:
    """Return the candidate that is the same bytes, run by the same engine in the same way; None where there is none."""
    wanted = setting.engine.with_options(outcome.options).opening(setting.precision)
    for one in run.candidates:
        runs_alike = run.engine_of(one).opening(one.precision) == wanted
        if runs_alike and one.sha256 == outcome.model.fingerprint and one.name not in run.openers:
            return one
    return None


def reference_answers(run: Trial, session: Session, model: Model) -> list[Any]:
    """Return a model's answers to the pictures on which agreement is judged."""
    pictures = run.pictures.judged(AGREEMENT_PICTURES)
    return answers(session, run.task(model, evaluating=True), pictures)


def agreement_on_processor(run: Trial, model: Model) -> float:
    """Return how far a model's answers are the original's, both on this machine's processor."""
    session = run.engine.open(model, "fp32")
    found = reference_answers(run, session, model)
    session.close()
    return run.task(model, evaluating=True).agreement(found, run.reference)


def add_candidate(
    run: Trial,
    name: str,
    parent: str,
    steps: tuple[str, ...],
    outcome: Outcome,
    setting: Setting,
    *,
    resumed: Candidate | None,
) -> Candidate:
    """Score a candidate, store it and tell of it; one that is taken up from disk is told of only.

    What is byte by byte a candidate that is there, and runs the same way, is that candidate: nothing was done.
    """
    if twin := find_twin(run, outcome, setting):
        nothing = Note(NoteKind.SKIPPED, f"{name}: nothing to do, it is {twin.name} byte by byte")
        run.notes.append(nothing)
        run.listener.say(str(nothing))
        return twin
    if resumed:
        candidate = replace(resumed, notes=(*(note for note in resumed.notes if note != RESUMED), RESUMED))
        if name == BASELINE:
            found = reference_answers(run, run.open(outcome.model), outcome.model)
            _keep_reference(run, run.task(outcome.model, evaluating=True), found)
    else:
        candidate = score_candidate(run, name, parent, steps, outcome, setting)
        run.workspace.store(candidate, outcome.model.data)
    run.candidates.append(candidate)
    run.listener.candidate(candidate)
    return candidate


def numbered(name: str, position: int) -> str:
    """Return `quantize`, `quantize-2`, `quantize-3`."""
    return name if position == 0 else f"{name}-{position + 1}"


def finished_candidates(run: Trial, name: str) -> list[Candidate]:
    """Return the candidates of a step that an earlier run of the same kind finished; none where it was interrupted."""
    files = run.workspace.finished(name)
    found = [one for one in map(run.workspace.find, files or ()) if one is not None]
    if files is not None and len(found) == len(files):
        return found
    if files is None and (torn := stored_candidates(run, name)):
        told = f"{name} was interrupted after {plural(len(torn), 'candidate')}: it is made again, whole"
        run.notes.append(Note(NoteKind.INFO, told))
    return []


def stored_candidates(run: Trial, name: str) -> list[Candidate]:
    """Return the candidates of one name that an earlier run of the same kind left, finished or not."""
    found: list[Candidate] = []
    while candidate := run.workspace.find(model_file(numbered(name, len(found)))):
        found.append(candidate)
    return found


def outcome_on_disk(run: Trial, candidate: Candidate) -> Outcome:
    """Return what made a candidate that is taken up from disk."""
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    return Outcome(model, candidate.changes, candidate.notes, candidate.options)
