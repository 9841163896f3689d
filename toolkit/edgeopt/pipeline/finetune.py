"""The step `finetune` alone: a pruned or changed model and its teacher in, one file that answers more like it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between, drop_of_means, score
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, answers, open_labelled
from edgeopt.measurement.given import Given, open_given
from edgeopt.pipeline.engines import open_engine
from edgeopt.pipeline.finetune_result import Change, FinetuneResult
from edgeopt.pipeline.run import Ears
from edgeopt.pipeline.workspace import FilesBeside
from edgeopt.recipes.feeding import fed
from edgeopt.recipes.frames import Frames, open_frames
from edgeopt.steps._context import Engine
from edgeopt.steps.finetune.distil import CHECKPOINT, Distilled, distil, require_alike, split
from edgeopt.system.files import require_writable
from edgeopt.system.optional import require_torch
from edgeopt.system.threads import engine_threads
from edgeopt.tasks import make_task

MINUTES = 10.0
_TARGET = "cpu"


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
        threads: 0: one per physical core.
        seed: Of all that is drawn.
        steps: Train so many in place of a time; 0: as many as fit.
        resume: Whether a checkpoint of the same training is taken up.
        say: Hears the held-out loss at each check.
        tell: Hears how far training and evaluation are.

    Raises:
        EdgeoptError: On what the user can mend; the checkpoint stays on disk.
    """
    require_torch("training")
    path = find_model(str(model))
    frames = open_frames(Path(data))
    given = open_given(str(teacher), _TARGET, recipe, fed=frames.shapes or None, labels=eval)
    student = load_model(path)
    require_alike(student, given.model)
    frames = fed(frames, given.recipe, given.model.inputs)
    labelled = open_labelled(Path(eval)) if eval else None
    files = FilesBeside(Path(out) if out else Path(f"{student.name}.finetuned.onnx"))
    require_writable(files.file)
    checkpoint = files.path(f".{CHECKPOINT}")
    if resume and not checkpoint.is_file():
        raise EdgeoptError(f"there is nothing to take up: {checkpoint} does not exist", remedy="leave --resume out")
    engine, ears = open_engine(given.target, engine_threads(threads)), Ears(say, tell)
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
        [_score(given, engine, labelled, one, ears) for one in (given.model, student, done.model)] if labelled else []
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
        loss=Change(done.held_out_before, done.held_out_after, done.gain),
        agreement=agreement,
        learned=done.learned,
        judged=done.judged,
        features=done.features,
        curve=done.curve,
        metric=scored[0].accuracy.metric if scored else "",
        of_teacher=scored[0].accuracy.value if scored else None,
        labelled=_labelled(scored[1], scored[2]) if scored else None,
        pictures=scored[0].accuracy.n if scored else 0,
        notes=tuple(dict.fromkeys((*given.choice.notes, *frames.notes, *done.notes))),
    )


def _agreement(given: Given, engine: Engine, pictures: Frames, student: Model, done: Distilled) -> Change:
    """Return the mean agreement of a picture's answer with the teacher's, before and after, as the engine computes."""
    found = []
    for one in (given.model, student, done.model):
        task = make_task(given.recipe, one.inputs, one.outputs, evaluating=True)
        session = engine.open(one, engine.target.float_precision)
        found.append(answers(session, task, pictures))
        session.close()
    before, after = (
        np.array([task.agreement([mine], [theirs]) for mine, theirs in zip(some, found[0], strict=True)])
        for some in found[1:]
    )
    return Change(float(before.mean()), float(after.mean()), drop_of_means(after, before))


def _score(given: Given, engine: Engine, labelled: LabelledFrames, model: Model, ears: Ears) -> Scored:
    task = make_task(given.recipe, model.inputs, model.outputs, evaluating=True)
    session = engine.open(model, engine.target.float_precision)
    found = answers(session, task, labelled.frames, ears.progress, f"evaluate {model.name}")
    session.close()
    return score(task, found, labelled.labels)


def _labelled(before: Scored, after: Scored) -> Change | None:
    gain = drop_between(after, before)
    return Change(before.accuracy.value, after.accuracy.value, gain) if gain else None
