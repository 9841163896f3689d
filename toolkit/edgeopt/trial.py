"""What all steps of one run share, and how a candidate is scored. It makes and chooses none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from edgeopt import plugins, tasks
from edgeopt.candidate import BASELINE, Candidate, Score
from edgeopt.drift import measure_drift, worst_drift
from edgeopt.evaluate import LabelledFrames, answers, evaluate, model_inputs
from edgeopt.executors import Executor, Session, SessionOptions
from edgeopt.frames import Frames, synthetic_frames
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.plan import Plan
from edgeopt.recipe import Recipe
from edgeopt.target import Target
from edgeopt.tasks import Task
from edgeopt.tensors import Tensors
from edgeopt.workspace import Workspace

CALIBRATION_PICTURES = 128
CHECKED_PICTURES = 4
_AGREEMENT_PICTURES = 16


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


@dataclass
class Trial:
    """What all steps of one run share."""

    recipe: Recipe
    target: Target
    plan: Plan
    executor: Executor
    workspace: Workspace
    listener: Listener
    original: Model
    frames: Frames
    """Calibration pictures; those of the evaluation, or synthetic ones, where there are none."""
    labelled: LabelledFrames | None
    resume: bool
    deadline: float
    candidates: list[Candidate] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    """The original's answers to the agreement pictures."""

    @property
    def pictures(self) -> Frames:
        """The pictures on which agreement is judged: of an .npz of tensors none can be shown."""
        if self.frames.tensors is None:
            return self.frames
        return self.labelled.frames if self.labelled else synthetic_frames(self.recipe.input.size)

    def task(self, model: Model, *, evaluating: bool) -> Task:
        """Return the recipe's task for a model's tensors."""
        task: Task = plugins.load(tasks, self.recipe.task).TASK(self.recipe, model.inputs, model.outputs, evaluating)
        return task

    def open(self, model: Model) -> Session:
        """Open a model as the target would."""
        options = SessionOptions(self.target.providers, self.plan.threads, self.target.options)
        return self.executor.open(model.data, options)

    def inputs(self, count: int) -> list[Tensors]:
        """Return the model's inputs for a few of the frames."""
        return list(model_inputs(self.task(self.original, evaluating=True), self.frames.spread(count)))


def model_file(name: str) -> str:
    """Return where a candidate's model lies in the output folder."""
    return f"candidates/{name}/model.onnx"


def score_candidate(run: Trial, name: str, parent: str, steps: tuple[str, ...], outcome: Outcome) -> Candidate:
    """Return a candidate with its accuracy, its agreement with the original and its drift; not measured yet."""
    session, task = run.open(outcome.model), run.task(outcome.model, evaluating=True)
    accuracy = None
    if run.labelled:
        tell = run.listener.progress
        accuracy = evaluate(session, task, run.labelled, lambda _, i, n: tell(f"evaluate {name}", i, n))
    score = Score(accuracy.metric, accuracy.value, accuracy.n, dict(accuracy.others)) if accuracy else None
    candidate = Candidate(
        name=name,
        parent=parent,
        steps=steps,
        precision="w8a8" if "quantize" in steps else "fp32",
        file=model_file(name),
        size_bytes=outcome.model.size_bytes,
        changes=dict(outcome.changes),
        notes=outcome.notes,
        score=score,
    )
    found = reference_answers(run, session, outcome.model)
    if name == BASELINE:
        run.reference = found
        session.close()
        return candidate
    baseline = run.candidates[0].score
    inputs = run.inputs(CHECKED_PICTURES)
    original = run.open(run.original)
    drift = worst_drift(measure_drift(original.run(one), session.run(one)) for one in inputs)
    original.close()
    session.close()
    return replace(
        candidate,
        drift=drift,
        agreement=task.agreement(found, run.reference),
        drop=baseline.value - score.value if baseline and score else None,
    )


def reference_answers(run: Trial, session: Session, model: Model) -> list[Any]:
    """Return a model's answers to the pictures on which agreement is judged."""
    pictures = run.pictures.spread(_AGREEMENT_PICTURES)
    return answers(session, run.task(model, evaluating=True), pictures)
