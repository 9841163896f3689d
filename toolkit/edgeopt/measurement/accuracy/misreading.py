"""Whether a recipe reads a model as it was trained: tried on the user's own pictures, against the usual other readings.

A recipe that fits by its shapes alone is a hypothesis. Where labels are, they judge it; where none are, how sure the
answers are. The recipe stays as it is: a better reading is proposed. How many pictures are tried depends on no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between, score
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, answers, open_labelled
from edgeopt.recipes.binding import Choice
from edgeopt.recipes.drafting.other_readings import contrast_of, other_readings
from edgeopt.recipes.drafting.raw_values import fitting_numbers
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.made_up import with_nothing
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import changed_lines, recipe_text
from edgeopt.system.disk import assets
from edgeopt.system.disk.files import write_beside
from edgeopt.system.processes.time_limit import require_pace
from edgeopt.system.text import format_score, plural
from edgeopt.tasks import Task, find_task, make_task

PROPOSED = "proposed-recipe"
"""Name of the file that holds the reading that fits."""
_SCREENED, _JUDGED = 16, 64
"""Pictures for all readings, and for the recipe's and the best other ones."""
_LEAST_PICTURES, _FINALISTS = 4, 3
_LEAST_GAIN = 0.01
"""Least gain of a metric: below it, two readings are the same to a user."""
_LEAST_SURER, _LEAST_T = 0.05, 3.0
"""Without labels: what another reading must be surer by, and by how many standard errors of the pairs."""
_NOTHING, _SURE = 0.02, 0.5
"""Sureness of a reading that finds nothing, and of one that no amplified picture casts doubt on."""
_ALIKE = 0.1
"""Sureness of classes that differ no more from picture to picture than under a camera that stands still."""
_AMPLIFIED = 1.5
"""Contrast against the recipe's; with ReLU alone, what is amplified gives the same classes with more confidence."""
_CONVINCING = 0.2
"""Sureness of an amplified reading that refuses the recipe's; untrained networks get some by contrast alone."""


@dataclass(frozen=True, slots=True)
class Misreading:
    """A fault of a recipe on these pictures."""

    problem: str
    better: Recipe
    """The reading that fits."""
    is_certain: bool
    """Whether the recipe's own reading is useless, not only worse."""
    is_proven: bool
    """Whether labels or the values of the outputs say so, not only how sure the answers are."""


@dataclass(frozen=True, slots=True)
class _Bench:
    """The session and samples that all readings share."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    session: Session
    frames: Frames
    labelled: LabelledFrames | None
    tell: Progress | None
    are_alike: bool = False
    """Whether the recipe's own answers are classes that hardly differ from picture to picture."""

    def task(self, recipe: Recipe) -> Task:
        return make_task(recipe, self.inputs, self.outputs, evaluating=True)

    def judge(self, recipe: Recipe, count: int, what: str, *, is_final: bool) -> _Judged:
        """Return a reading on some pictures; what comparing needs is computed for final ones only."""
        task = self.task(recipe)
        if self.labelled is None:
            frames = self.frames.spread(count)
            result = answers(self.session, task, frames, self.tell, what)
            return _Judged(recipe, self._sureness(task, result, frames), 0.0, None)
        kept = _spread(len(self.labelled.frames), count)
        labels = self.labelled.labels.select(kept)
        result = answers(self.session, task, self.labelled.frames.select(kept), self.tell, what)
        rightness = task.rightness(result, labels)
        sureness = self._sureness(task, result, self.labelled.frames) if rightness is None else rightness
        if not is_final:
            return _Judged(recipe, sureness, task.score(result, labels).value, None, rightness is not None)
        scored = score(task, result, labels)
        return _Judged(recipe, sureness, scored.accuracy.value, scored, rightness is not None)

    def _sureness(self, task: Task, found: Sequence[Any], frames: Frames) -> NDArray[np.float64]:
        """Return how sure answers are, less what the model says to any picture.

        Under a camera that stands still, right answers repeat too: what counts is whether a picture with nothing in it
        gets them. Boxes that the next answer repeats count less only if it does; classes that are alike throughout are
        as sure as they are far from the answers to nothing.
        """
        sureness = task.sureness(found)
        if not task.gives_boxes and not self.are_alike:
            return sureness
        to_nothing = []
        for picture in with_nothing(frames.picture(0)):
            tensors, geometry = task.preprocess(picture)
            to_nothing.append(task.postprocess(self.session.run(tensors), geometry))
        if not task.gives_boxes:
            return np.array([float(task.sureness([value, *to_nothing])[0]) for value in found])
        repeated = [
            min(task.agreement([value], [following]), max(task.agreement([value], [other]) for other in to_nothing))
            for value, following in zip(found, [*found[1:], *found[:1]], strict=True)
        ]
        return np.asarray(sureness * (1 - np.clip(repeated, 0.0, 1.0)))


@dataclass(frozen=True, slots=True)
class _Judged:
    """A reading on some pictures."""

    recipe: Recipe
    sureness: NDArray[np.float64]
    """(pictures,): 0 to 1; where labels tell how right an answer is, that."""
    value: float
    """The metric; 0 without labels."""
    scored: Scored | None
    is_rightness: bool = False

    @property
    def merit(self) -> float:
        """The metric and how sure the answers are, together; of few pictures, where it is known, how right they are.

        The metric alone is coarse, and on few pictures it hides the difference.
        """
        is_screened = self.is_rightness and self.scored is None
        return float(self.sureness.mean()) + (0.0 if is_screened else self.value)


def notes_of_reading(
    choice: Choice,
    model: Model,
    session: Session,
    frames: Frames,
    labelled: LabelledFrames | None,
    folder: Path,
    tell: Progress | None = None,
) -> tuple[Note, ...]:
    """Try the chosen recipe on the user's pictures, close the session, and return what `heed_misreading` does.

    Raises:
        EdgeoptError: As `heed_misreading`.
    """
    misreading = None
    if not _is_shipped_together(choice.recipe, model):
        misreading = find_misreading(choice.recipe, model.inputs, model.outputs, session, frames, labelled, tell)
    session.close()
    return heed_misreading(misreading, choice, folder)


def _is_shipped_together(recipe: Recipe, model: Model) -> bool:
    """Return whether both are of one shipped folder: that reading is known."""
    path = recipe.path_of(recipe.model)
    if path is None or recipe.folder not in assets.model_folders().values() or not path.is_file():
        return False
    return load_model(path).fingerprint == model.fingerprint


def choose_by_labels(choice: Choice, model: Model, labels: Path, entries: Mapping[str, str]) -> Choice:
    """Return the one of the recipes that fit by shape that reads labelled pictures best, and a note of their scores.

    Args:
        choice: With or without rivals; without, it is what comes back.
        model: In float.
        labels: Path of the labels.
        entries: Session entries with which ONNX Runtime computes what the model says.

    Raises:
        EdgeoptError: If the labels do not tell the best two apart.
    """
    if not choice.rivals:
        return choice
    labelled, every = open_labelled(labels), (choice, *choice.rivals)
    judged = list[_Judged]()
    session = EXECUTOR.open(model.source, SessionOptions(entries=entries))
    bench = _Bench(model.inputs, model.outputs, session, labelled.frames, labelled, None)
    for one in every if len(labelled.frames) >= _LEAST_PICTURES else ():
        with suppress(EdgeoptError):  # labels of another task
            judged.append(bench.judge(one.recipe, _JUDGED, "", is_final=True))
    session.close()
    ranked = sorted(judged, key=lambda one: -one.merit)
    scores = ", ".join(f"{one.recipe.name} {one.scored.accuracy}" for one in judged if one.scored)
    count, names = plural(min(len(labelled.frames), _JUDGED), "labelled picture"), [one.recipe.name for one in every]
    if not ranked or _is_useless(ranked[0]) or not all(_is_better(ranked[0], other) for other in ranked[1:]):
        raise EdgeoptError(
            f"{len(every)} recipes fit this model, and {count} do not tell them apart: {scores or ', '.join(names)}",
            remedy=f"pass --recipe with one of {', '.join(names)}",
        )
    found = next(one for one in every if one.recipe is ranked[0].recipe)
    note = Note(NoteKind.INFO, f"{len(every)} recipes fit this model; on {count}: {scores}")
    return replace(found, reason=f"{found.reason}; it reads the labels best", notes=(*found.notes, note), rivals=())


def heed_misreading(misreading: Misreading | None, choice: Choice, folder: Path) -> tuple[Note, ...]:
    """Return a warning of a recipe that another reading beats; refuse one that is useless, or unasked for and worse.

    Args:
        misreading: By `find_misreading`.
        choice: The recipe, and whether the user named it.
        folder: Where the reading that fits is written as a recipe, to be passed.

    Raises:
        EdgeoptError: If the recipe's own reading is useless, or it was recognised by shapes and is proven worse.
    """
    if misreading is None:
        return ()
    name, path = choice.recipe.name, _write_proposal(misreading.better, folder)
    changes = "; ".join(changed_lines(choice.recipe, misreading.better))
    verb = "misreads" if misreading.is_proven or misreading.is_certain else "may misread"
    text, remedy = f"recipe {name!r} {verb} this model: {misreading.problem}", f"pass --recipe {path}: {changes}"
    if not misreading.is_proven:
        remedy = f"pass a few labelled pictures with --eval to be sure; the surest reading is {path}: {changes}"
    if not misreading.is_certain and (choice.is_given or not misreading.is_proven):
        return (Note(NoteKind.WARNING, text, remedy),)
    raise EdgeoptError(
        text, remedy=remedy if misreading.is_certain else f"{remedy}; or --recipe {name} to go on as it is"
    )


def _write_proposal(recipe: Recipe, folder: Path) -> Path:
    """Write the recipe, and its class names beside it."""
    path, labels = folder / f"{PROPOSED}.toml", f"{PROPOSED}.labels.txt"
    if recipe.class_names:
        write_beside(folder / labels, "\n".join(recipe.class_names) + "\n")
    name = f"{recipe.name}, read anew"
    write_beside(path, recipe_text(recipe, name=name, labels=labels if recipe.class_names else ""))
    return path


def find_misreading(
    recipe: Recipe,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    session: Session,
    frames: Frames,
    labelled: LabelledFrames | None,
    tell: Progress | None = None,
) -> Misreading | None:
    """Return what is wrong with a recipe, and the usual reading that fits better; None where nothing is.

    Args:
        recipe: Bound to the model.
        inputs: Of the model.
        outputs: Of the model.
        session: The model as given, in float.
        frames: Pictures, where there are no labels.
        labelled: Pictures with labels.
        tell: Called after each picture of each reading.

    Raises:
        InvalidFileError: If the labels are of another task.
        OutOfTime: At the end of a time limit, or where the other readings do not fit into it.
    """
    pictures = labelled.frames if labelled else frames
    is_revealing = find_task(recipe.task).reveals_misreading
    if not is_revealing or not pictures.holds_pictures or len(pictures) < _LEAST_PICTURES:
        return None
    bench = _Bench(inputs, outputs, session, frames, labelled, tell)
    values = _fitting_values(bench, recipe)
    contradicts = values != recipe
    others = other_readings(values)
    began_s = monotonic()
    own = bench.judge(recipe, _JUDGED, "read as the recipe says", is_final=True)
    ahead = (1 + len(others)) * min(_SCREENED, len(pictures)) + _FINALISTS * len(own.sureness)
    require_pace(began_s, len(own.sureness), len(own.sureness) + ahead)
    if own.scored is None and not bench.task(recipe).gives_boxes and float(own.sureness.mean()) < _ALIKE:
        bench = replace(bench, are_alike=True)
        own = bench.judge(recipe, _JUDGED, "read as the recipe says", is_final=True)
    finalists = [finalist for finalist in _finalists(bench, values, others) if finalist != recipe]
    judged = [
        bench.judge(finalist, _JUDGED, _told_of(i, finalists), is_final=True) for i, finalist in enumerate(finalists)
    ]
    other = max(judged, key=lambda one: one.merit, default=None)
    if other and contradicts and labelled is None:
        told = next((one for one in judged if one.recipe == values), other)
        other = other if _is_better(other, told) else told
    is_useless = _is_useless(own)
    if other and labelled and not _is_worth_proposing(other, own, contradicts):
        return None
    if other and (_is_better(other, own) or contradicts):
        is_certain = (is_useless and _is_convincing(other, own)) or (contradicts and labelled is None)
        return Misreading(
            _told(own, other, contradicts), other.recipe, is_certain, contradicts or own.scored is not None
        )
    return None


def _finalists(bench: _Bench, values: Recipe, others: Sequence[Recipe]) -> list[Recipe]:
    """Return what is judged on more pictures: the best of all readings, what the values say, the other colour order."""
    readings = [values, *others]
    screened = [
        bench.judge(reading, _SCREENED, _told_of(i, readings), is_final=False) for i, reading in enumerate(readings)
    ]
    best = [one.recipe for one in sorted(screened, key=lambda one: -one.merit)[:_FINALISTS]]
    return best + [recipe for recipe in (values, *others[:1]) if recipe not in best]


def _told_of(position: int, readings: Sequence[Recipe]) -> str:
    return f"try other reading {position + 1} of {len(readings)}"


def _fitting_values(bench: _Bench, recipe: Recipe) -> Recipe:
    """Return the recipe with what the values of the outputs say of boxes and scores."""
    task, pictures = bench.task(recipe), bench.labelled.frames if bench.labelled else bench.frames
    result = []
    for frame in pictures.spread(_LEAST_PICTURES):
        outputs = bench.session.run(task.preprocess(frame)[0])
        result.append([np.asarray(outputs[output.name]) for output in bench.outputs])
    return replace(recipe, postprocess=fitting_numbers(recipe.postprocess, recipe.input.size, result))


def _is_better(other: _Judged, own: _Judged) -> bool:
    """Whether another reading is better: by the metric, beyond chance or with surer answers; without labels, surer.

    Classes at a wrong scale may rank as before with other probabilities: there it suffices to be nearer the truth.
    """
    difference = other.sureness - own.sureness
    surer, error = float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(len(difference))
    is_surer = surer >= max(_LEAST_SURER, _LEAST_T * error)
    if other.scored is None or own.scored is None:
        is_amplified = contrast_of(other.recipe) > _AMPLIFIED * contrast_of(own.recipe)
        return is_surer and not (is_amplified and float(own.sureness.mean()) >= _SURE)
    gained = drop_between(other.scored, own.scored)
    if own.is_rightness and is_surer and (gained is None or gained.high >= 0):
        return True
    is_proven = (gained is not None and gained.low > 0) or surer > _LEAST_T * error
    return is_proven and other.value - own.value >= _LEAST_GAIN


def _is_worth_proposing(other: _Judged, own: _Judged, contradicts: bool) -> bool:
    """Whether a reading scores on labels at all, and more than the recipe's.

    As much is enough where its probabilities are nearer the truth, or the values of the outputs say so themselves.
    """
    is_as_good = other.value == own.value and (own.is_rightness or contradicts)
    return other.value > 0 and (is_as_good or other.value > own.value)


def _is_convincing(other: _Judged, own: _Judged) -> bool:
    """Whether another reading is more than the recipe's with more contrast: by labels, or because it is sure."""
    is_amplified = contrast_of(other.recipe) > _AMPLIFIED * contrast_of(own.recipe)
    return other.scored is not None or not is_amplified or float(other.sureness.mean()) >= _CONVINCING


def _is_useless(own: _Judged) -> bool:
    """Whether a reading is no better than chance: by the metric, or, without labels, because it finds nothing."""
    if own.scored is None:
        return float(own.sureness.mean()) < _NOTHING
    return own.scored.accuracy.is_by_chance


def _told(own: _Judged, other: _Judged, contradicts: bool) -> str:
    count = plural(len(own.sureness), "picture")
    if own.scored and contradicts and other.value == own.value:
        metric = own.scored.accuracy.metric
        return f"the values of its outputs on {count} say otherwise; {metric} is {format_score(own.value)} either way"
    if own.scored:
        metric = own.scored.accuracy.metric
        its, others = map(format_score, (own.value, other.value))
        text = f"its {metric} on {count} is {its}, that of another reading {others}"
        if other.value - own.value >= _LEAST_GAIN or not own.is_rightness:
            return text
        scores = f"logarithmic score {own.sureness.mean():.2f} of 1, the other's {other.sureness.mean():.2f}"
        return f"{text}; its probabilities are further from the truth ({scores})"
    if contradicts:
        return f"the values of its outputs on {count} say otherwise; what else to change is a guess without labels"
    return f"its answers on {count} are {own.merit:.2f} sure, those of another reading {other.merit:.2f}"


def _spread(count: int, most: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})
