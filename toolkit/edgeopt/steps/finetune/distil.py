"""A student healed by its teacher: it learns to answer unlabelled pictures as the dense model does.

Features of the layers that survived and outputs are compared on the same changed pictures. What was gained counts on
held-out pictures alone, of which one half decides when training ends and the other half whether it was of use.

Source: features beside outputs, Romero and others, FitNets, 2015; outputs, Hinton and others, Distilling the Knowledge
in a Neural Network, 2015; few unlabelled pictures, Wang and others, Compressing Models with Few Samples: Mimicking then
Replacing, 2022.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.graph.facts.scaled import scaled_tensors
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.accuracy.bootstrap import Drop, drop_of_means
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.recipes.inputs.frames import Frames, calibration_fingerprint
from edgeopt.recipes.outputs.learned import heads_of
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps._context import Listener
from edgeopt.steps.finetune.augment import LEAST_MIRRORED, Augmentation, mirrored
from edgeopt.steps.finetune.checkpoint import read_checkpoint
from edgeopt.steps.finetune.features import features_of, shared_tensors
from edgeopt.steps.finetune.loop import BATCH, RATES, Networks, Training, answers, losses, repeatable
from edgeopt.steps.finetune.losses import feature_loss, output_loss
from edgeopt.steps.finetune.standing import HeldOutCheck, Standing
from edgeopt.system.declared.optional import require_torch
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.processes.interrupts import held_interrupts
from edgeopt.system.text import plural
from edgeopt.tasks import Task, make_task

if TYPE_CHECKING:
    from edgeopt.steps.finetune.interpreter import TorchModel

CHECKPOINT = "training.npz"
_EVERY_S = 30.0
"""Between two checkpoints."""
_WRITING = 0.05
"""Largest share of the time that checkpoints may take."""
LEAST_PICTURES = 16
"""Fewer cannot teach and judge."""
ENOUGH_PICTURES = 1000
"""Fewer heal less: see docs/training.md."""
_MOST_JUDGED = 128
_FEW = 8
"""Pictures of every fourth, below which they only judge."""
_MIRRORED_PICTURES = 16
_OUTPUTS = 0.05
"""Weight of a detector's outputs beside features. Classes, a few numbers a picture, are learned by heart."""
_LEAST_GAIN = 0.01
"""Share of the loss."""
_SAME = 1e-6
"""Loss of rounding alone."""
_COMPARED_PICTURES = 4
"""Pictures on which channels are recognised."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """The result of a student's training."""

    model: Model
    """The given one, unchanged, where nothing was gained."""
    curve: tuple[HeldOutCheck, ...]
    held_out_before: float
    """Mean loss of the given student on the pictures that judge."""
    held_out_after: float
    """Loss of the trained network on them."""
    gain: Drop
    """Fall of the loss, with its 95 % interval over pictures."""
    note: str
    """The outcome, in a sentence."""
    notes: tuple[Note, ...]
    learned: int
    """Pictures that were learned from."""
    judged: int
    """Pictures that judged."""
    features: int
    """Tensors that were compared beside the outputs."""
    weights: int
    """Tensors of the model that were trained."""

    @property
    def is_better(self) -> bool:
        """Whether the loss fell beyond its interval, and by enough to be worth another model."""
        return self.gain.low > 0 and self.gain.value >= _LEAST_GAIN * self.held_out_before


def distil(
    student: Model,
    teacher: Model,
    pictures: Frames,
    recipe: Recipe,
    minutes: float,
    listener: Listener,
    folder: Path,
    seed: int = 0,
    *,
    threads: int = 1,
    steps: int = 0,
    ends_at: float = math.inf,
    resume: bool = True,
    checkpoint: str = CHECKPOINT,
) -> Distilled:
    """Train a student on unlabelled pictures until it answers as its teacher.

    Args:
        student: Made of the teacher by cutting, replacing or rounding; with the same inputs and outputs.
        teacher: The dense model.
        pictures: Unlabelled, or arrays; some of them are held out.
        recipe: Bound to both.
        minutes: Time limit of the training, that of earlier runs included.
        listener: Hears progress, and the held-out loss at each check.
        folder: Where the checkpoint lies.
        seed: Of all that is drawn.
        threads: Of torch on a processor.
        steps: How many; 0: as many as fit into the time limit.
        ends_at: On the monotonic clock: this run trains no longer. It is no part of what makes a training this one: an
            interrupted run goes on, however much time its successor has left.
        resume: Whether a checkpoint of this very training is taken up.
        checkpoint: Its name; it is deleted when the training is over.

    Raises:
        MissingDependencyError: If torch is absent.
        UnsupportedError: If the models do not fit each other, or one has an op that cannot be trained.
        EdgeoptError: If there are too few pictures.
        KeyboardInterrupt: At Ctrl-C, once the checkpoint is written.
    """
    require_torch("training")
    require_alike(student, teacher)
    taught, watched, judged = split(pictures)
    task = make_task(recipe, teacher.inputs, teacher.outputs, evaluating=True)
    path = folder / checkpoint
    with repeatable(threads, seed):
        networks, mirrors = _networks(student, teacher, recipe, task, taught)
        augmentation = Augmentation.of(taught, recipe, gives_boxes=task.gives_boxes, mirrors=mirrors, seed=seed)
        held_out, judges = (list(model_inputs(task, frames)) for frames in (watched, judged))
        targets = answers(networks.teacher, networks, judges)
        before = losses(networks, judges, targets)
        if before.max() < _SAME:
            raise EdgeoptError(
                f"{student.name} answers as its teacher {teacher.name} does: there is nothing to heal",
                remedy="name the pruned or changed model as MODEL, the one that it was made of as --teacher",
            )
        training = Training(
            networks,
            lambda position: task.preprocess(augmentation.draw(position))[0],
            held_out,
            seconds=60 * minutes,
            ends_at=ends_at,
            most_steps=steps,
        )
        key = _key(student, teacher, pictures, recipe, f"{minutes} {seed} {threads} {steps} {networks.device}")
        if resume and (found := read_checkpoint(path, key)):
            training.take_up(found)
            listener.say(f"taken up at step {training.standing.step} of {training.standing.steps or '?'}")
        _run(training, listener, path, key)
        after = losses(networks, judges, targets)
        model = networks.student.to_model()
    path.unlink(missing_ok=True)
    gain = drop_of_means(before, after)
    notes = (*pictures.notes, *_few(len(taught)))
    made = Distilled(
        model=replace(model, name=student.name),
        curve=training.standing.curve,
        held_out_before=float(before.mean()),
        held_out_after=float(after.mean()),
        gain=gain,
        note="",
        notes=notes,
        learned=len(taught),
        judged=len(judged),
        features=len(networks.watched),
        weights=sum(1 for parameter in networks.student.parameters() if parameter.requires_grad),
    )
    return replace(made, model=made.model if made.is_better else student, note=_sentence(made))


def require_alike(student: Model, teacher: Model) -> None:
    """Raise unless a student takes and gives what its teacher does.

    Raises:
        UnsupportedError: If it does not.
    """
    for what, mine, theirs in (
        ("takes", student.inputs, teacher.inputs),
        ("gives", student.outputs, teacher.outputs),
    ):
        if not _fit(mine, theirs):
            raise UnsupportedError(
                f"{student.name} {what} {_told(mine)}, its teacher {teacher.name} {_told(theirs)}",
                remedy="name the dense model that it was made of as --teacher",
            )


def _told(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs))


def _fit(mine: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> bool:
    def sizes_fit(a: TensorSpec, b: TensorSpec) -> bool:
        if not a.shape or not b.shape:
            return True  # unknown
        pairs = list(zip(a.shape, b.shape, strict=False))
        return len(a.shape) == len(b.shape) and all(
            x == y or not isinstance(x, int) or not isinstance(y, int) for x, y in pairs
        )

    return [(one.name, one.dtype) for one in mine] == [(one.name, one.dtype) for one in theirs] and all(
        sizes_fit(a, b) for a, b in zip(mine, theirs, strict=True)
    )


def split(pictures: Frames) -> tuple[Frames, Frames, Frames]:
    """Return pictures to learn from, those that decide when training ends, and those that judge; evenly spread.

    The latter two are of every fourth. The repair of `prune` may have been fitted to some: they judge in favour of the
    given model, so that a gain is told too small and never too large.

    Raises:
        EdgeoptError: If there are too few.
    """
    count = len(pictures)
    if count < LEAST_PICTURES:
        raise EdgeoptError(
            f"{plural(count, 'picture')} in {pictures.source} cannot teach and judge",
            remedy=f"pass {LEAST_PICTURES} unlabelled pictures or more; about {ENOUGH_PICTURES} are of real use",
        )
    if count < 4 * _FEW:
        watched, judged = range(1, count, 4), range(3, count, 4)
    else:
        every = 8 * math.ceil(count / (8 * _MOST_JUDGED))
        watched, judged = range(3, count, every), range(3 + every // 2, count, every)
    taught = sorted({*range(count)} - {*watched, *judged})
    return pictures.select(taught), pictures.select(watched), pictures.select(judged)


def _few(taught: int) -> tuple[Note, ...]:
    if taught >= ENOUGH_PICTURES:
        return ()
    text = f"{plural(taught, 'picture')} to learn from are few: below about {ENOUGH_PICTURES} less is won back"
    return (Note(NoteKind.WARNING, text, "add unlabelled pictures from where the model will work"),)


def _networks(student: Model, teacher: Model, recipe: Recipe, task: Task, pictures: Frames) -> tuple[Networks, bool]:
    """Return both models in torch with what is compared of them, and whether mirrored pictures are of use."""
    import torch

    from edgeopt.steps.finetune.interpreter import TorchModel

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mine, theirs = (TorchModel(model).to(device, memory_format=torch.channels_last) for model in (student, teacher))
    theirs.requires_grad_(False)
    names = shared_tensors(student, teacher)
    outputs = output_loss(heads_of(task), [output.name for output in teacher.outputs])
    few = list(model_inputs(task, pictures.spread(_COMPARED_PICTURES)))
    networks = Networks(mine, theirs, outputs, None, (), task.loss, device, is_batched=_is_batched(few))
    with torch.no_grad():
        seen = [[_watched(net, entry, names) for entry in networks.to_device(few)] for net in (mine, theirs)]
    joined = [{name: np.concatenate([entry[name] for entry in part]) for name in names} for part in seen]
    features = features_of(names, joined[0], joined[1], scaled_tensors(student))
    if features:
        watched = tuple(feature.name for feature in features)
        networks = replace(
            networks,
            features=feature_loss(features),
            watched=watched,
            outputs_weigh=_OUTPUTS if task.gives_boxes else 0.0,
        )
    return networks, _mirrors(task, recipe, networks, pictures)


def _watched(net: TorchModel, inputs: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    result = net(inputs, names)
    return {name: result[name].float().cpu().numpy() for name in names}


def _is_batched(samples: Sequence[Tensors]) -> bool:
    """Return whether samples can be joined along their first axis."""
    return all(array.ndim > 0 and array.shape[0] == 1 for sample in samples for array in sample.values())


def _mirrors(task: Task, recipe: Recipe, networks: Networks, pictures: Frames) -> bool:
    """Return whether the teacher answers mirrored pictures as it does straight ones: digits it does not."""
    import torch

    if pictures.tensors is not None or not (task.gives_boxes or recipe.postprocess.decoder in CLASSIFIERS):
        return False
    straight, turned = list[Any](), list[Any]()
    for frame in pictures.spread(_MIRRORED_PICTURES):
        if not isinstance(frame, np.ndarray):
            return False
        for picture, parts in ((frame, straight), (mirrored(frame), turned)):
            inputs, geometry = task.preprocess(picture)
            with torch.no_grad():
                found = next(networks.teacher(entry) for entry in networks.to_device([inputs]))
            outputs = {name: value.float().cpu().numpy() for name, value in found.items()}
            parts.append(task.postprocess(outputs, geometry))
        if task.gives_boxes:
            boxes = turned[-1].boxes.copy()
            boxes[:, [0, 2]] = frame.shape[1] - boxes[:, [2, 0]]
            turned[-1] = replace(turned[-1], boxes=boxes)
    return task.agreement(turned, straight) >= LEAST_MIRRORED


def _run(training: Training, listener: Listener, path: Path, key: str) -> None:
    """Train to the end, and write where it stands now and then, and at Ctrl-C."""
    written_s, took_s = monotonic(), 0.0

    def on_check(standing: Standing) -> None:
        if len(standing.curve) == 2:
            listener.say(f"  rate {standing.rate:g}, {plural(standing.steps, 'step')} planned")
        last = standing.curve[-1]
        best = " *" if not standing.since_best else ""
        first = f" (was {standing.curve[0].loss:.4f})" if len(standing.curve) > 1 else ""
        listener.say(f"  step {last.step}: held-out loss {last.loss:.4f}{first}{best}")

    def on_step(standing: Standing) -> None:
        nonlocal written_s, took_s
        if standing.steps:
            listener.progress("train, steps", standing.step, standing.steps)
        is_due = monotonic() - written_s >= max(_EVERY_S, took_s / _WRITING) or not standing.rate
        if is_due or was_interrupted():
            began_s = monotonic()
            training.checkpoint(key).write(path)
            written_s, took_s = monotonic(), monotonic() - began_s
        if was_interrupted():
            raise KeyboardInterrupt

    def on_trial(done: int, of: int) -> None:
        listener.progress("find the rate", done, of)
        if was_interrupted():
            raise KeyboardInterrupt

    with held_interrupts() as was_interrupted:
        training.run(on_trial=on_trial, on_check=on_check, on_step=on_step)


def _key(student: Model, teacher: Model, pictures: Frames, recipe: Recipe, settings: str) -> str:
    """Return what makes a training this one."""
    values = {
        "student": student.fingerprint,
        "teacher": teacher.fingerprint,
        "pictures": calibration_fingerprint(pictures),
        "recipe": repr(replace(recipe, folder=Path())),
        "settings": f"{settings} {BATCH} {RATES}",
        "packages": package_versions(),
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _sentence(distilled: Distilled) -> str:
    figures = f"{distilled.held_out_before:.4f} to {distilled.held_out_after:.4f}, gain {distilled.gain}"
    judged = f"on {plural(distilled.judged, 'held-out picture')}"
    if distilled.is_better:
        return f"training lowered the loss {judged} from {figures}"
    return f"training gained nothing that is beyond chance {judged} ({figures}): the given model stays"
