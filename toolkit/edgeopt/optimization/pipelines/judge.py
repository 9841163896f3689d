"""The accuracy of a whole pipeline: its last answers against labels, or against the original's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.measurement.accuracy.bootstrap import Scored, require_telling, score
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, open_labelled
from edgeopt.measurement.accuracy.judgement import (
    Judgement,
    NoProof,
    judge_agreement,
    judge_pairs,
    judge_scores,
    unproven,
)
from edgeopt.measurement.pipelines.likeness import alike, alike_on_crops, scales_of
from edgeopt.optimization.choice.accuracy_proof import agreement_of_each
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.running.plain import plain
from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.runtime.pipelines.description import FRAME, Description
from edgeopt.runtime.pipelines.pipeline import Answer, Pipeline
from edgeopt.system.toml import read_json
from edgeopt.tasks import Accuracy

PICTURES = 64
"""Without labels, agreement is judged on so many, evenly spread."""
_TWICE = 4
"""Pictures that are answered twice: an answer that differs from itself compares with nothing."""
EQUAL = "equal"
"""The metric of labels that are answers: the share of frames with the right one."""


@dataclass(frozen=True, slots=True)
class Judged:
    """How accurate one combination is."""

    agreement: float
    scored: Scored | None = None
    accuracy: Accuracy | None = None
    drop: float | None = None
    judgement: Judgement | None = None
    """None of the original."""
    of_each: tuple[float, ...] = ()
    """Judgement of each picture: 1 where the answer is right, else 0; or how far it agrees. Empty where `scored`
    tells."""

    @property
    def loss(self) -> float:
        """The loss, 0 or more: what seems gained is chance."""
        return max(0.0, 1 - self.agreement if self.drop is None else self.drop)


class PipelineJudge:
    """A pipeline's answers before anything was changed, and the labels, if there are any."""

    def __init__(
        self,
        original: Pipeline,
        pictures: Frames,
        labels: Path | None,
        tell: Progress | None,
        *,
        max_drop: float,
        least_agreement: float,
    ) -> None:
        """Answer all pictures with the original.

        Args:
            original: With the models as they came.
            pictures: Unlabelled.
            labels: Of the last stage's answers; None: agreement judges.
            tell: Hears progress.
            max_drop: Metric that may be lost.
            least_agreement: What is asked where no labels judge.

        Raises:
            EdgeoptError: If a stage fails, the labels do not fit, or the original does not agree with itself.
        """
        self._tell, self._max_drop, self._least_agreement = tell, max_drop, least_agreement
        self._last = original.description.stages[-1]
        self._labelled: LabelledFrames | None = None
        self._expected: Sequence[Any] = ()
        self._right: Sequence[bool] = ()
        self.frames = pictures.spread(PICTURES)
        if labels is not None:
            self._read(labels)
        self._before: Judged | None = None
        self.answers = self._answer(original, "answers of the original")
        is_function = self._last.kind not in ("model", "crop")
        self._scales = scales_of([answer.last for answer in self.answers]) if is_function else {}
        self._require_repeatable(original)
        self.baseline = self._before = self._judge(original, self.answers)
        if self.baseline.scored is not None:
            require_telling(self.baseline.scored, "without eval, agreement judges")

    @property
    def metric(self) -> str:
        """The metric that judges, in words."""
        return self.baseline.accuracy.metric if self.baseline.accuracy else "agreement"

    def judge(self, pipeline: Pipeline, what: str) -> Judged:
        """Return how accurate a pipeline of other forms is.

        Args:
            pipeline: Of the same stages.
            what: For progress.
        """
        return self._judge(pipeline, self._answer(pipeline, what))

    def _answer(self, pipeline: Pipeline, what: str) -> list[Answer]:
        answers = []
        for i in range(len(self.frames)):
            answers.append(self._without_pictures(pipeline.predict(self.frames.picture(i))))
            if self._tell:
                self._tell(what, i + 1, len(self.frames))
        return answers

    def _without_pictures(self, answer: Answer) -> Answer:
        """Keep what is compared: views of all frames would be all frames."""
        kept = {name: answer.stages[name] for name in (*self._last.takes, self._last.name) if name in answer.stages}
        light = {
            name: replace(value, pictures=()) if isinstance(value, Crops) else value for name, value in kept.items()
        }
        return replace(answer, stages=light)

    def _judge(self, pipeline: Pipeline, answers: Sequence[Answer]) -> Judged:
        agreement, each = self._agreement(pipeline, answers)
        if self._labelled is not None:
            task = pipeline.models[self._last.name].task
            scored = score(task, [answer.last for answer in answers], self._labelled.labels)
            before = self._before.scored if self._before else None
            judged = judge_scores(before, scored, self._max_drop) if before else None
            judgement = unproven(judged, NoProof.STEERED) if judged else None
            return Judged(agreement, scored, scored.accuracy, self._drop(scored.accuracy), judgement)
        if self._expected:
            right = [
                alike(plain(answer.last), wanted) == 1 for answer, wanted in zip(answers, self._expected, strict=True)
            ]
            accuracy = Accuracy(EQUAL, float(np.mean(right)), len(right))
            pairs = [*zip(self._right or right, right, strict=True)]
            self._right = self._right or right
            worse, better = pairs.count((True, False)), pairs.count((False, True))
            judgement = unproven(judge_pairs(worse, better, len(pairs), self._max_drop), NoProof.STEERED)
            return Judged(agreement, None, accuracy, self._drop(accuracy), judgement, tuple(map(float, right)))
        judgement = judge_agreement(agreement, each, self._least_agreement)
        return Judged(agreement, judgement=judgement, of_each=tuple(each.tolist()))

    def _agreement(self, pipeline: Pipeline, answers: Sequence[Answer]) -> tuple[float, NDArray[np.float64]]:
        """Return how far all answers agree with the original's, and each of them.

        Answers to whole frames are compared beside each other, as those of a single model are.
        """
        if self._last.kind == "model" and self._last.takes[0] == FRAME:
            task = pipeline.models[self._last.name].task
            result, reference = ([answer.last for answer in some] for some in (answers, self.answers))
            return task.agreement(result, reference), agreement_of_each(task, result, reference)
        each = [self._alike(pipeline, *pair) for pair in zip(answers, self.answers, strict=True)]
        return float(np.mean(each)), np.array(each, np.float64)

    def _drop(self, accuracy: Accuracy) -> float:
        before = self._before.accuracy if self._before else None
        return before.value - accuracy.value if before else 0.0

    def _alike(self, pipeline: Pipeline, answer: Answer, reference: Answer) -> float:
        """Return how far the last answers to one picture are alike."""
        if self._last.kind == "crop":
            return alike(answer.last.boxes, reference.last.boxes)
        if self._last.kind != "model":
            return alike(answer.last, reference.last, self._scales)
        task, source = pipeline.models[self._last.name].task, self._last.takes[0]
        cut, cut_before = (FRAME if source == FRAME else other.stages[source] for other in (answer, reference))
        if isinstance(cut, Crops) and isinstance(cut_before, Crops):
            return alike_on_crops(task, answer.last, reference.last, cut, cut_before)
        is_many = isinstance(answer.last, list) and isinstance(reference.last, list)
        if is_many and len(answer.last) != len(reference.last):
            return 0.0
        return task.agreement(*([other.last] if not is_many else other.last for other in (answer, reference)))

    def _require_repeatable(self, original: Pipeline) -> None:
        for i in range(min(_TWICE, len(self.frames))):
            again = self._without_pictures(original.predict(self.frames.picture(i)))
            if self._alike(original, again, self.answers[i]) < 1:
                raise EdgeoptError(
                    f"stage {self._last.name} answers {self.frames.names[i]} differently a second time, "
                    "so that no other answer can be compared with it",
                    remedy="let it return plain values that depend on what it takes alone",
                )

    def _read(self, labels: Path) -> None:
        """Read labels: a JSON of answers, or what labels a task's answers to whole frames."""
        is_of_task = self._last.kind == "model" and self._last.takes[0] == FRAME
        if is_of_task:
            self._labelled = open_labelled(labels)
            self.frames = self._labelled.frames
            return
        folder, expected = read_expected(labels)
        self.frames = open_frames(folder, list(expected))
        self._expected = [expected[name] for name in self.frames.names]


def read_expected(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the folder of the pictures, and the right answer to each by its file name.

    Args:
        path: A JSON object of file names and answers; the pictures lie beside it, or in a folder `images` there.

    Raises:
        InvalidFileError: If it is none, or no picture is there.
    """
    remedy = 'write {"frame.jpg": answer, ...}, the pictures beside it or in images/'
    said = read_json(path, remedy=remedy)
    if not isinstance(said, dict) or not said:
        raise InvalidFileError(f"{path} holds no answers by the name of the picture", remedy=remedy)
    for folder in (path.parent, path.parent / "images"):
        if all((folder / name).is_file() for name in said):
            return folder, said
    missing = next(name for name in said if not (path.parent / name).is_file())
    raise InvalidFileError(f"{path} names {missing[:200]}, which is not there", remedy=remedy)


def labels_of(description: Description, asked: str) -> Path | None:
    """Return the labels that the command or the description names."""
    return Path(asked) if asked else description.path_of(description.eval)
