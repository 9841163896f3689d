"""What all steps of one run share, and how a candidate is scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.drift import measure_drift, worst_drift
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between, require_telling
from edgeopt.measurement.accuracy.bootstrap import score as score_answers
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, synthetic, why_no_proof
from edgeopt.pipeline.candidate import BASELINE, RESUMED, Candidate
from edgeopt.pipeline.plan import Plan
from edgeopt.pipeline.replay import Replay
from edgeopt.pipeline.selection import Wish
from edgeopt.pipeline.summary import candidate_line
from edgeopt.pipeline.workspace import Workspace
from edgeopt.recipes.frames import Frames
from edgeopt.steps._context import CHECKED_PICTURES, Context, Engine, Listener, Setting, numbered, reference_answers
from edgeopt.steps.compile._partition_svg import PICTURE, draw_partition
from edgeopt.steps.compile._placement import explain_placement
from edgeopt.system.text import plural
from edgeopt.tasks import Task

_BASELINE_SCORED = f"candidates/{BASELINE}/scored.json"


class Silence:
    """A listener that keeps quiet."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Ignore it."""


@dataclass
class Run:
    """One call of `optimize` on its way: what its steps share, and the candidates so far."""

    context: Context
    plan: Plan
    workspace: Workspace
    labelled: LabelledFrames | None
    resume: bool
    listener: Listener
    replay: Replay | None = None
    """Whose choice holds in place of this run's; None: nobody's."""
    by_rule: bool = False
    """Whether nothing compiles for the target here, so that its rules say where nodes would run."""
    openers: dict[str, Callable[[], Session]] = field(default_factory=dict)
    """How the candidates of a compiler are opened on the device, by name; a candidate from disk has none."""
    untimed: str = ""
    """Why nothing is measured here; empty: all candidates are."""
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def timed(self) -> Frames:
        """What is timed: frames as the device gets them, random colour where only their tensors are here."""
        if self.labelled:
            return self.labelled.frames
        if self.context.frames.tensors is None or self.context.recipe.takes_arrays:
            return self.context.frames
        return synthetic(self.context.recipe, self.context.original.inputs)

    @property
    def wish(self) -> Wish:
        """What a candidate must keep, and what is wanted of it."""
        return Wish(self.plan.max_drop, self.context.least_agreement, self.plan.prefer)

    def open_candidate(self, candidate: Candidate, model: Model) -> Session:
        """Open a candidate's model on its own engine."""
        if candidate.name in self.openers:
            return self.openers[candidate.name]()
        return self.engine_of(candidate).open(model, candidate.precision)

    def engine_of(self, candidate: Candidate) -> Engine:
        """Return the engine that runs a candidate."""
        others = (one for one in self.context.alternatives if one.target.name == candidate.profile)
        engine = next(others, self.context.engine) if candidate.profile else self.context.engine
        return engine.with_options(candidate.options)


def model_file(name: str) -> str:
    """Return where a candidate's model lies in the output folder."""
    return f"candidates/{name}/model.onnx"


def score_candidate(
    run: Run, name: str, parent: str, steps: tuple[str, ...], outcome: Outcome, setting: Setting
) -> Candidate:
    """Return a candidate with its accuracy, its agreement with the original and its drift; not measured yet."""
    session = setting.engine.with_options(outcome.options).open(outcome.model, setting.precision)
    task = run.context.task(outcome.model, evaluating=True)
    scored = _score_on_labels(run, name, session, task)
    score = scored.accuracy if scored else None
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
        profile="" if setting.engine is run.context.engine else setting.engine.target.name,
        options=dict(outcome.options),
        placement=_judged_by_rule(run, name, outcome.model),
    )
    found = reference_answers(run.context, session, outcome.model)
    if name == BASELINE:
        _keep_reference(run, task, found)
        session.close()
        return candidate
    baseline, drop = run.candidates[0].score, _drop_from_baseline(run, scored)
    pairs = zip(run.context.inputs(CHECKED_PICTURES), run.context.inputs(CHECKED_PICTURES, outcome.model), strict=True)
    original = run.context.open(run.context.original)
    drift = worst_drift(measure_drift(original.run(before), session.run(after)) for before, after in pairs)
    original.close()
    session.close()
    return replace(
        candidate,
        drift=drift,
        agreement=task.agreement(found, run.context.reference),
        drop=baseline.value - score.value if baseline and score else None,
        drop_low=drop.low if drop else None,
        drop_high=drop.high if drop else None,
    )


def _keep_reference(run: Run, task: Task, found: list[Any]) -> None:
    """Keep the original's answers, and say where agreement with them proves nothing."""
    run.context.reference = found
    if unproven := "" if run.labelled else why_no_proof(task, found, run.context.least_agreement):
        run.context.notes.append(Note(NoteKind.WARNING, f"agreement is no proof: {unproven}", "pass other pictures"))


def _judged_by_rule(run: Run, name: str, model: Model) -> str:
    """Return where the target's rules put the nodes, and draw it; empty where an engine is asked."""
    if not run.by_rule or name == BASELINE:
        return ""
    partition = explain_placement(model, run.context.target)
    run.workspace.write(model_file(name).replace("model.onnx", PICTURE), draw_partition(partition))
    return partition.verdict


def _score_on_labels(run: Run, name: str, session: Session, task: Task) -> Scored | None:
    """Return a model's metric on the labelled pictures; the baseline's is kept for candidates of a resumed run."""
    if run.labelled is None:
        return None
    found = answers(session, task, run.labelled.frames, run.listener.progress, f"evaluate {name}")
    scored = score_answers(task, found, run.labelled.labels)
    if name == BASELINE:
        require_telling(scored, "without --eval, agreement judges")
        run.workspace.write(_BASELINE_SCORED, json.dumps(scored.to_json()))
    return scored


def _drop_from_baseline(run: Run, scored: Scored | None) -> Drop | None:
    """Return what a candidate lost with its interval; None without labels, or where an older run left no resamples."""
    try:
        baseline = Scored.from_json(json.loads(run.workspace.path(_BASELINE_SCORED).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return drop_between(baseline, scored) if scored else None


def find_twin(run: Run, outcome: Outcome, setting: Setting) -> Candidate | None:
    """Return the candidate that is the same bytes, run by the same engine in the same way; None where there is none."""
    wanted = setting.engine.with_options(outcome.options).opening(setting.precision)
    for one in run.candidates:
        runs_alike = run.engine_of(one).opening(one.precision) == wanted
        if runs_alike and one.sha256 == outcome.model.fingerprint and one.name not in run.openers:
            return one
    return None


def add_candidate(
    run: Run,
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
    if not resumed and (twin := find_twin(run, outcome, setting)):
        nothing = Note(NoteKind.SKIPPED, f"{name}: nothing to do, it is {twin.name} byte by byte")
        run.context.notes.append(nothing)
        run.listener.say(str(nothing))
        return twin
    if resumed:
        candidate = replace(resumed, notes=(*(note for note in resumed.notes if note != RESUMED), RESUMED))
        if name == BASELINE:
            found = reference_answers(run.context, run.context.open(outcome.model), outcome.model)
            _keep_reference(run, run.context.task(outcome.model, evaluating=True), found)
    else:
        candidate = score_candidate(run, name, parent, steps, outcome, setting)
        run.workspace.store(candidate, outcome.model.data)
    run.candidates.append(candidate)
    run.listener.say(candidate_line(candidate))
    return candidate


def finished_candidates(run: Run, name: str) -> list[Candidate]:
    """Return the candidates of a step that an earlier run of the same kind finished; none where it was interrupted."""
    files = run.workspace.finished(name)
    found = [one for one in map(run.workspace.find, files or ()) if one is not None]
    if files is not None and len(found) == len(files):
        return found
    if files is None and (torn := stored_candidates(run, name)):
        told = f"{name} was interrupted after {plural(len(torn), 'candidate')}: it is made again, whole"
        run.context.notes.append(Note(NoteKind.INFO, told))
    return []


def stored_candidates(run: Run, name: str) -> list[Candidate]:
    """Return the candidates of one name that an earlier run of the same kind left, finished or not."""
    found: list[Candidate] = []
    while candidate := run.workspace.find(model_file(numbered(name, len(found)))):
        found.append(candidate)
    return found


def outcome_on_disk(run: Run, candidate: Candidate) -> Outcome:
    """Return what made a candidate that is taken up from disk."""
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    return Outcome(model, candidate.changes, candidate.notes, candidate.options)
