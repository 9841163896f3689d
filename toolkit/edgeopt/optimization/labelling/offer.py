"""Questions for a person to label after a run without labels, and what the answers prove."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.tensors import Frame, Sample
from edgeopt.measurement.accuracy.judgement import LEVELS_IN_STAGES, LEVELS_OF_LOOKS, Judgement, judge_pairs
from edgeopt.measurement.accuracy.paired_shares import least_samples
from edgeopt.optimization.choice.label_looks import count_look
from edgeopt.optimization.labelling.questions import (
    NEITHER,
    Counted,
    Question,
    as_texts,
    count_pairs,
    drawn_order,
    make_questions,
    questions_json,
)
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.system.text import plural, short
from edgeopt.system.toml import read_json

_TEMPLATE = Path(__file__).with_name("page.html")
_SIDE = 640
"""Pixels of the longer side: large enough to see what it is, small enough for hundreds in one file."""
_QUALITY = 85


def make_page(questions: Sequence[Question], frames: Frames, run: str, folder: Path) -> str:
    """Return the page.

    Args:
        questions: In their random order; the page does not say who answered what.
        frames: All samples, pictures or texts.
        run: Name under which a browser keeps the answers until they are saved.
        folder: Where the answers belong.
    """
    position = {name: i for i, name in enumerate(frames.names)}
    shown = [
        {"sample": question.sample, "options": question.options, **_sample(frames.read(position[question.sample]))}
        for question in questions
    ]
    data = {"run": run, "folder": str(folder), "neither": NEITHER, "questions": shown}
    # No text of a user ends the element that holds it.
    text = json.dumps(data).replace("<", "\\u003c")
    return _TEMPLATE.read_text("utf-8").replace("@DATA@", text)


def _sample(sample: Sample) -> dict[str, Any]:
    """Return a picture as data, or a text."""
    if isinstance(sample, str):
        return {"text": sample}
    picture = np.asarray(sample)
    height, width = picture.shape[:2]
    share = _SIDE / max(height, width)
    if share < 1:
        size = max(round(width * share), 1), max(round(height * share), 1)
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return {"picture": f"data:image/jpeg;base64,{b64encode(data.tobytes()).decode('ascii')}"}


def make_coco(frames: Frames, kept: Sequence[int], class_names: Sequence[str]) -> str:
    """Return the pictures to label and the classes, as COCO JSON.

    No box is proposed: a box that is there already is more often kept than it is right.

    Args:
        frames: All pictures.
        kept: Positions of those to label, in their random order.
        class_names: Of the model.
    """
    images = []
    for number, i in enumerate(kept, 1):
        picture: Frame = frames.picture(i)
        height, width = picture.shape[:2]
        images.append({"id": number, "file_name": frames.names[i], "height": height, "width": width})
    categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(class_names)]
    return json.dumps({"images": images, "annotations": [], "categories": categories}, indent=1)


REMEDY = "save it again with the page's button, or take it away"


def read_answers(path: Path) -> Mapping[str, str]:
    """Return the right answer by the name of the sample.

    Raises:
        InvalidFileError: If the file is no answers of the page.
    """
    said = read_json(path, remedy=REMEDY)
    answers = said.get("answers") if isinstance(said, dict) else None
    if not isinstance(answers, dict):
        raise InvalidFileError(f"{path} holds no answers of the page", remedy=REMEDY)
    wrong = [name for name, answer in answers.items() if not isinstance(answer, str)]
    if wrong:
        raise InvalidFileError(f"{path}: the answer to {short(wrong[0])} is no text", remedy=REMEDY)
    return {str(name): answer for name, answer in answers.items()}


FOLDER = "label"
PAGE, QUESTIONS, ANSWERS = f"{FOLDER}/index.html", f"{FOLDER}/questions.json", f"{FOLDER}/answers.json"
COCO = f"{FOLDER}/coco.json"
_MOST = 300
"""Questions of one page: its pictures are inside it."""


@dataclass(frozen=True)
class Labelling:
    """The samples of one run that a person may label, and what every model answers to them."""

    run: Run
    frames: Frames
    order: NDArray[np.int64]
    """Positions of the samples that steered nothing, in a random order."""
    original: Sequence[str]
    """Its answer to each sample of `frames`."""
    candidates: Mapping[str, Sequence[str]]
    """Answers of each candidate, by its name."""
    are_classes: bool
    """Whether answers are classes, which a person knows by their names."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """One for each sample to which some candidate answers otherwise than the original."""
        return make_questions(self.frames.names, self.order.tolist(), self.original, [*self.candidates.values()])

    def count(self, name: str, truth: Mapping[str, str]) -> Counted:
        """Return what answered questions say of a candidate."""
        return count_pairs(self.frames.names, self.order.tolist(), self.original, self.candidates[name], truth)


def open_labelling(
    run: Run, frames: Frames, reference: Sequence[Any], answered: Mapping[str, Sequence[Any]]
) -> Labelling | None:
    """Return what a person may label; None where an answer is no single thing, or no sample is left.

    Args:
        run: Without labels.
        frames: All samples that were given.
        reference: The original's answers to them.
        answered: The candidates' answers, by name.
    """
    recipe, task = run.context.recipe, run.context.task(run.context.original, evaluating=True)
    is_shown = frames.holds_pictures or frames.kind == "text"
    if not is_shown or not frames.paths or len(set(frames.names)) != len(frames):
        return None
    choices = [task.choice(value) for value in reference]
    original = as_texts(choices, recipe.class_name)
    texts = {
        name: as_texts([task.choice(value) for value in found], recipe.class_name) for name, found in answered.items()
    }
    known = {name: each for name, each in texts.items() if each is not None}
    order = drawn_order(len(frames), _steering(run, frames))
    if original is None or not known or not len(order):
        return None
    return Labelling(run, frames, order, original, known, isinstance(choices[0], frozenset))


def _steering(run: Run, frames: Frames) -> list[int]:
    """Return the positions of samples that calibrated, or on which the search judged agreement."""
    used = {*frames.spread(CALIBRATION_PICTURES).names, *run.context.judged_pictures.names}
    return [i for i, name in enumerate(frames.names) if name in used]


def judge_by_answers(labelling: Labelling) -> Mapping[str, Judgement]:
    """Return what a person's answers prove of each candidate; nothing where there are none.

    Raises:
        InvalidFileError: If the file of answers is damaged.
    """
    run = labelling.run
    path = run.workspace.path(ANSWERS)
    if not path.is_file():
        return {}
    truth = read_answers(path)
    count_look(run, hashlib.sha256(path.read_bytes()).hexdigest(), in_stages=True)
    judgements = dict[str, Judgement]()
    for name in labelling.candidates:
        counted = labelling.count(name, truth)
        judgements[name] = judge_pairs(
            counted.worse,
            counted.better,
            counted.samples,
            run.plan.max_drop,
            level=run.look.level,
            later=run.look.later,
            changed=counted.changed,
            labels=counted.changed,
        )
    return judgements


def write_labelling(labelling: Labelling) -> None:
    """Write the page and its questions into the output folder, and say so."""
    run, folder = labelling.run, labelling.run.workspace.path(FOLDER)
    questions, least = labelling.questions[:_MOST], least_samples(run.plan.max_drop, LEVELS_IN_STAGES[0])
    if least and len(labelling.order) < least:
        wanted = least + len(labelling.frames) - len(labelling.order)
        kinds = f"{labelling.frames.kind}s"
        run.to_label = f"with {wanted:,} {kinds} in --calib, labels of the few changed answers prove the accuracy"
        return
    if not questions:
        return
    folder.mkdir(parents=True, exist_ok=True)
    run.workspace.write(PAGE, make_page(questions, labelling.frames, run.workspace.key[:12], Path(folder).resolve()))
    run.workspace.write(QUESTIONS, questions_json(questions))
    changed = f"{len(questions):,} of {len(labelling.order):,} answers changed"
    if not run.context.recipe.class_names and labelling.are_classes:
        run.to_label = f'{changed}, but the classes have no names: write labels = "classes.txt" in the recipe'
        return
    run.to_label = f"{changed}: label them on {folder / 'index.html'}, then the same command with --resume"


def write_boxes_to_label(run: Run, frames: Frames) -> None:
    """Write which pictures to label with boxes, where a proof needs all of their boxes."""
    wanted = least_samples(run.plan.max_drop, LEVELS_OF_LOOKS[0])
    kept = drawn_order(len(frames), _steering(run, frames))[:wanted].tolist()
    if not kept or not frames.holds_pictures or not frames.paths:
        return
    try:
        text = make_coco(frames, kept, run.context.recipe.class_names)
    except EdgeoptError:
        return  # a video that ends early: what it holds is not known
    run.workspace.path(FOLDER).mkdir(parents=True, exist_ok=True)
    run.workspace.write(COCO, text)
    count = plural(len(kept), "picture")
    run.to_label = f"{count} with boxes, by {run.workspace.path(COCO)} in CVAT or Label Studio, then --eval its export"
