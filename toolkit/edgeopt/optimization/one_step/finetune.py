"""The step `finetune` alone: a pruned or changed model and its teacher in, one file that answers more like it out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import EXIT_MISSED, EXIT_PASS, EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors._guard import guarded
from edgeopt.graph.facts.integers import why_not_again
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between, drop_of_means, score
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, answers, model_inputs, open_labelled
from edgeopt.measurement.opening.given import OpenedModel, filled_to_length, open_given
from edgeopt.optimization.candidates.engines import open_engine
from edgeopt.optimization.choice.accuracy_proof import agreement_of_each
from edgeopt.optimization.folder.workspace import FilesBeside
from edgeopt.optimization.one_step.limits import MINUTES
from edgeopt.optimization.report.training_charts import loss_curve
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Ears
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines
from edgeopt.report.figures import Figure
from edgeopt.report.result import Result, fields_as_json
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps._context import Engine
from edgeopt.steps.finetune.distil import CHECKPOINT, Distilled, distil, require_alike, split
from edgeopt.steps.finetune.standing import HeldOutCheck
from edgeopt.steps.finetune.starts import best_start, integer_forms, written_plainly
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.system.declared.optional import require_torch
from edgeopt.system.disk.files import require_writable
from edgeopt.system.machine.environment import Environment, read_environment
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.text import format_score, plural
from edgeopt.tasks import Task, make_task

# The result of `finetune`.


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of the student before and after training."""

    before: float
    after: float
    by: Drop
    """The change, above zero where the student got better, with its 95 % interval over pictures."""

    def __str__(self) -> str:
        return f"{format_score(self.before)} to {format_score(self.after)}, better by {self.by}"


@dataclass(frozen=True, slots=True)
class FinetuneResult(Result):
    """The result of a training."""

    command: ClassVar[str] = "finetune"
    kind: ClassVar[str] = ModelReport.kind

    model: str
    teacher: str
    recipe: str
    data: Path
    file: Path | None
    """None: training gained nothing, and nothing was written."""
    reason: str
    loss: FigureChange
    """Loss on held-out pictures, against the teacher."""
    agreement: FigureChange
    """Mean over the same pictures, 0 to 1, by ONNX Runtime."""
    learned: int
    """Pictures that were learned from."""
    judged: int
    """Pictures that judged, of which nothing was learned."""
    features: int
    """Tensors within the graph that were compared."""
    curve: tuple[HeldOutCheck, ...]
    metric: str = ""
    """Metric of the labels; empty: there were none."""
    of_teacher: float | None = None
    labelled: FigureChange | None = None
    """The metric; labels decide nothing here."""
    pictures: int = 0
    """Number of pictures on which the metric was computed."""
    notes: tuple[Note, ...] = ()
    given: str = ""
    """The model as it was asked for: a path, which `compare` takes too."""
    environment: Environment | None = None
    """The machine that trained, and its software."""

    @property
    def exit_code(self) -> int:
        """0 if a model was written, 2 if training gained nothing."""
        return EXIT_PASS if self.file else EXIT_MISSED

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        values = fields_as_json(self)
        curve = [{**asdict(check), "learned": check.learned if check.step else None} for check in self.curve]
        result = {"data": str(self.data), "file": str(self.file) if self.file else None, "curve": curve}
        return {**values, **result}


_TARGET = "cpu"


@guarded()
def finetune(
    model: str | Path,
    *,
    teacher: str | Path,
    data: str | Path,
    minutes: float = MINUTES,
    out: str | Path | None = None,
    eval: str | Path = "",  # noqa: A002, as on the command line
    recipe: str | None = None,
    threads: int = 0,
    seed: int = 0,
    steps: int = 0,
    resume: bool = False,
    quantize: str = "",
    say: Callable[[str], None] | None = None,
    tell: Progress | None = None,
) -> FinetuneResult:
    """Train a pruned or changed model to answer unlabelled pictures as its teacher does.

    Args:
        model: Path of an ONNX file: the student.
        teacher: Path of the dense model that it was made of, or the name of a shipped one.
        data: Unlabelled pictures, a video or an .npz; some are held out.
        minutes: Time limit of the training.
        out: The file to write; None: `MODEL.finetuned.onnx` here. The checkpoint lies beside it.
        eval: Labels by which teacher, given and trained model are scored at the end; empty: none. They decide nothing.
        recipe: Shipped name or path; None: read from the teacher.
        threads: 0: one per fast physical core.
        seed: Of all that is drawn.
        steps: Train so many in place of a time; 0: as many as fit.
        resume: Whether a checkpoint of the same training is taken up.
        quantize: Target by whose rules a float model is put on integers first, as far as it goes without training;
            training goes on from the form that loses least. Empty: the model is trained as it is.
        say: Hears the held-out loss at each check.
        tell: Hears how far training and evaluation are.

    Raises:
        EdgeoptError: On what the user can mend; the checkpoint stays on disk.
    """
    require_torch("training")
    path = find_model(str(model))
    frames = open_frames(Path(data))
    given = open_given(str(teacher), _TARGET, recipe, fed=frames.shapes or None, labels=eval)
    given = filled_to_length(given, "training takes texts of one length")
    student = load_model(path)
    require_alike(student, given.model)
    frames = fed(frames, given.recipe, given.model.inputs)
    labelled = open_labelled(Path(eval), given.recipe, given.model.inputs) if eval else None
    files = FilesBeside(Path(out) if out else Path(f"{student.name}.finetuned.onnx"))
    require_writable(files.file)
    checkpoint = files.path(f".{CHECKPOINT}")
    if resume and not checkpoint.is_file():
        raise EdgeoptError(f"there is nothing to take up: {checkpoint} does not exist", remedy="leave --resume out")
    engine, ears = open_engine(given.target, engine_threads(threads)), Ears(say, tell)
    begun = tuple[Note, ...]()
    if quantize:
        given, student, begun = _on_integers(given, student, quantize, engine, frames, ears)
    done = distil(
        student,
        given.model,
        frames,
        given.recipe,
        minutes,
        ears,
        checkpoint.parent,
        seed,
        threads=engine_threads(threads),
        steps=steps,
        resume=resume,
        checkpoint=checkpoint.name,
    )
    agreement = _agreement(given, engine, split(frames)[2], student, done)
    scored = (
        [_score(given, engine, labelled, other, ears) for other in (given.model, student, done.model)]
        if labelled
        else []
    )
    if done.is_better:
        save_model(done.model, files.file)
    return FinetuneResult(
        model=student.name,
        teacher=given.model.name,
        recipe=given.recipe.name,
        data=Path(data),
        file=files.file if done.is_better else None,
        reason=done.note,
        loss=FigureChange(done.held_out_before, done.held_out_after, done.gain),
        agreement=agreement,
        learned=done.learned,
        judged=done.judged,
        features=done.features,
        curve=done.curve,
        metric=scored[0].accuracy.metric if scored else "",
        of_teacher=scored[0].accuracy.value if scored else None,
        labelled=_labelled(scored[1], scored[2]) if scored else None,
        pictures=scored[0].accuracy.n if scored else 0,
        notes=tuple(dict.fromkeys((*begun, *given.choice.notes, *frames.notes, *done.notes))),
        given=str(model),
        environment=read_environment({"model.sha256": student.fingerprint}),
    )


def _on_integers(
    given: OpenedModel, student: Model, target: str, engine: Engine, frames: Frames, ears: Ears
) -> tuple[OpenedModel, Model, tuple[Note, ...]]:
    """Return the teacher as it is quantized, the student's best form on a target's integers, and what was tried.

    Raises:
        UnsupportedError: If the student is on integers already, or cannot be.
    """
    if why := why_not_again(student):
        raise UnsupportedError(why, remedy="leave --quantize out: a quantized model is trained on its own grids")
    rules = find_device(target).rules_here
    taught, watched, _ = split(frames)
    task = make_task(given.recipe, student.inputs, student.outputs, evaluating=True)
    inputs = [
        {name: np.array(value) for name, value in model_input.items()}
        for model_input in model_inputs(task, taught.spread(CALIBRATION_PICTURES))
    ]
    dense, plain = (written_plainly(model, inputs) for model in (given.model, student))
    wanted = _outputs(engine, dense, task, watched)

    def loss(form: Model) -> float:
        result = _outputs(engine, form, task, watched)
        return float(np.mean([task.loss([a], [b]) for a, b in zip(result, wanted, strict=True)]))

    ears.say(f"forms of {student.name} by the rules of {target}, without training")
    start = best_start(integer_forms(plain, rules, inputs), loss)
    for how, lost in start.losses.items():
        ears.say(f"  {how}: held-out loss {lost:.4f}{' *' if how == start.how else ''}")
    return replace(given, model=dense), replace(start.model, name=student.name), (start.note,)


def _outputs(engine: Engine, model: Model, task: Task, pictures: Frames) -> list[Tensors]:
    session = engine.open(model, engine.target.float_precision)
    outputs = list[Tensors]()
    for model_input in model_inputs(task, pictures):
        outputs.append({name: np.array(value) for name, value in session.run(model_input).items()})
    session.close()
    return outputs


def _agreement(given: OpenedModel, engine: Engine, pictures: Frames, student: Model, done: Distilled) -> FigureChange:
    """Return the mean agreement of a picture's answer with the teacher's, before and after, as the engine computes."""
    found = []
    for model in (given.model, student, done.model):
        task = make_task(given.recipe, model.inputs, model.outputs, evaluating=True)
        session = engine.open(model, engine.target.float_precision)
        found.append(answers(session, task, pictures))
        session.close()
    before, after = (agreement_of_each(task, some, found[0]) for some in found[1:])
    return FigureChange(float(before.mean()), float(after.mean()), drop_of_means(after, before))


def _score(given: OpenedModel, engine: Engine, labelled: LabelledFrames, model: Model, ears: Ears) -> Scored:
    task = make_task(given.recipe, model.inputs, model.outputs, evaluating=True)
    session = engine.open(model, engine.target.float_precision)
    result = answers(session, task, labelled.frames, ears.progress, f"evaluate {model.name}")
    session.close()
    return score(task, result, labelled.labels)


def _labelled(before: Scored, after: Scored) -> FigureChange | None:
    gain = drop_between(after, before)
    return FigureChange(before.accuracy.value, after.accuracy.value, gain) if gain else None


# The result of `finetune` as a document.


def summarize(result: FinetuneResult) -> Document:
    """Return what a reader sees: losses and agreement with their intervals, the curve, notes, and what came of it."""
    warnings = tuple(note for note in result.notes if note.kind in (NoteKind.WARNING, NoteKind.SKIPPED))
    others = tuple(note for note in result.notes if note not in warnings)
    return Document(
        result,
        subject=result.model,
        title=f"{result.model} taught by {result.teacher}",
        sections=(
            Section("How it was judged", values=_figures(result), is_detail=result.file is not None),
            Section("Loss on held-out pictures", figures=(_curve(result),), is_detail=True),
            Section(notes=warnings),
            Section("What is known beside", notes=others, is_detail=True),
        ),
        verdict=_verdict(result),
    )


def _figures(result: FinetuneResult) -> tuple[Value, ...]:
    taught = f"{plural(result.learned, 'picture')}, {plural(result.features, 'tensor')} compared beside the outputs"
    values = [
        Value("loss", str(result.loss)),
        Value("agreement", str(result.agreement)),
        Value("learned", taught),
        Value("judged", f"on {plural(result.judged, 'held-out picture')}, 95 % intervals over pictures"),
    ]
    if result.labelled:
        teacher = f"teacher {format_score(result.of_teacher)}, {plural(result.pictures, 'picture')}"
        text = f"{result.metric} {result.labelled} ({teacher})"
        values.append(Value("labels", text))
    return tuple(values)


def _curve(result: FinetuneResult) -> Figure:
    return loss_curve(tuple(one.step for one in result.curve), tuple(one.loss for one in result.curve))


def _verdict(result: FinetuneResult) -> VerdictLines:
    if result.file is None:
        return VerdictLines(
            CommandOutcome.FAIL,
            "the given model stays: training gained nothing beyond chance",
            (Value("why", result.reason),),
        )
    return VerdictLines(
        CommandOutcome.DONE,
        f"{result.file} answers more like {result.teacher} than {result.model} does",
        _figures(result),
        next_command=f"edgeopt compare {shlex.quote(result.given or result.model)} {shlex.quote(str(result.file))}",
    )
