"""Classification: one label out of many. Frame to tensor, scores to the best classes, top-1 and top-5."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import scaled, write_text
from edgeopt.recipes.drawings.sample_drawing import draw_classes_of_sound
from edgeopt.recipes.embedded import CLASSES, SCORES, Embedded, Feed, picture_feed
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.inputs.sound_input import SoundInput
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.recipes.metrics import Ranks, find_metric
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS, require_fit
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.text import plural
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._json_numbers import score_as_json
from edgeopt.tasks._losses import divergence, worst_error

_MOST_RANKED = 5
"""Classes that an answer lists for top-5, however few an application lists."""
_NOT_LISTED = 2**31

LARGEST = 1e30
_LEAST_SHARE = 1e-6
"""A smaller probability of the true class counts as this one: no answer outweighs all others."""


@dataclass(frozen=True, slots=True)
class Classes:
    """The best classes of one frame, best first."""

    indices: NDArray[np.int64]
    """(n,): class index, from 0."""
    scores: NDArray[np.float32]
    """(n,): probabilities; over all classes they sum to at most 1."""

    def __len__(self) -> int:
        return len(self.indices)


class Classification(FrameTask):
    """One classifier: its pictures, its best classes, their score."""

    draws: ClassVar[Sequence[str]] = ("picture", "sound")
    reveals_misreading: ClassVar[bool] = True

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's output.
        """
        if recipe.postprocess.decoder not in CLASSIFIERS:
            raise NotFoundError("decoder of task classification", recipe.postprocess.decoder, CLASSIFIERS)
        self._is_read = Embedded.POSTPROCESS in recipe.embedded
        states = set(recipe.input.states.values())
        outputs = [output for output in outputs if output.name not in states] or outputs
        if not self._is_read:
            require_fit(recipe, outputs)
        self._name, self._output = recipe.input.tensor or inputs[0].name, outputs[0].name
        self._size = recipe.input.size
        self._fitting = None if outputs[0].is_unranked else outputs[0].shape
        self._picture: Feed | None = None
        self._sound = SoundInput(recipe, inputs) if recipe.kind == "sound" else None
        if recipe.kind == "picture":
            self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)
        self._recipe, self._first = recipe, int(recipe.postprocess.background)
        self._top = max(recipe.postprocess.top, _MOST_RANKED) if evaluating else recipe.postprocess.top
        self._classes = _class_count(outputs[0]) - self._first
        self._is_probability = recipe.postprocess.decoder == "probabilities"

    @property
    def holds_outputs(self) -> bool:
        """Whether the model itself gives the answer."""
        return self._is_read

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """The classes, which exclude one another."""
        if self._is_read:
            return ()
        sides = [side if isinstance(side, int) else 0 for side in (self._fitting or ())[1:]]
        axis = 1 + sides.index(max(sides)) if sides else -1
        scale = Scale.SHARES if self._is_probability else Scale.SOFTMAX
        return (LearnedHead(Columns(self._output, axis, self._first), scale),)

    def preprocess(self, frame: Sample) -> tuple[Tensors, Geometry | None]:
        """Return the input tensor; arrays stay unchanged."""
        if isinstance(frame, Mapping):
            return frame, Geometry.of_input(self._size or (1, 1))
        if self._sound is not None:
            return self._sound(frame), Geometry.of_input((1, 1))
        if self._picture is None:
            raise UnsupportedError(
                f"task classification takes pictures, recipe {self._recipe.name!r} takes {self._recipe.kind}s",
                remedy=f'write task = "{self._recipe.kind}_classification" in the recipe',
            )
        tensor, geometry = self._picture(frame)
        return {self._name: tensor}, geometry

    def postprocess(self, outputs: Tensors, geometry: Geometry | None = None) -> Classes:
        """Return the best classes; logits become probabilities by softmax. No class where the output holds NaN.

        Raises:
            UnsupportedError: If the output of this frame is not one score a class.
        """
        del geometry
        if self._is_read:
            return Classes(outputs[CLASSES], outputs[SCORES])
        array = np.asarray(outputs[self._output])
        if array.shape != self._fitting:
            require_fit(self._recipe, [TensorSpec(self._output, str(array.dtype), array.shape)])
            self._fitting = array.shape
        values = np.asarray(array, np.float32).reshape(-1)[self._first :]
        if np.isnan(values).any():
            return Classes(np.empty(0, np.int64), np.empty(0, np.float32))
        values = np.clip(values, -LARGEST, LARGEST)  # differences stay finite
        top = min(self._top, len(values))
        best = np.argpartition(values, -top)[-top:]
        best = best[np.argsort(-values[best], kind="stable")]
        if self._is_probability:
            return Classes(best.astype(np.int64), values[best])
        exponents = np.exp(np.maximum(values - values[best[0]], -80))
        return Classes(best.astype(np.int64), exponents[best] / exponents.sum())

    def count(self, answer: Classes) -> int:
        """Return the number of classes that are listed; 0 where the output held NaN."""
        return len(answer)

    def best_score(self, answer: Classes) -> float:
        """Return the probability of the best class; 0 where the output held NaN."""
        return float(answer.scores[0]) if len(answer) else 0.0

    def classes_in(self, answer: Classes) -> Sequence[int]:
        """Return the best class."""
        return [int(index) for index in answer.indices[:1]]

    def choice(self, answer: Classes) -> Hashable | None:
        """Return the first class, or by top-5 the set of the first five; None by a metric that is no share."""
        listed = {"top1": 1, "top5": _MOST_RANKED}.get(self._recipe.evaluation.metric)
        return None if listed is None else frozenset(answer.indices[:listed].tolist())

    def as_text(self, answer: Classes) -> str:
        """Return classes with their probabilities."""
        return "; ".join(f"{name} {score:.3f}" for name, score in self._named(answer)) or "nothing"

    def as_json(self, answer: Classes) -> dict[str, Any]:
        """Return `classes`, best first, each with `class`, `index` and `score`."""
        pairs = zip(answer.indices.tolist(), answer.scores.tolist(), strict=True)
        return {
            "classes": [
                {"class": self._recipe.class_name(i), "index": i, "score": score_as_json(score)} for i, score in pairs
            ]
        }

    def draw(self, frame: Any, answer: Classes, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with the best class in its corner; of a sound its waveform over the best ones."""
        if isinstance(frame, Sound):
            return draw_classes_of_sound(frame, self._named(answer), height)
        drawn = scaled(frame, height)
        if len(answer):
            write_text(drawn, f"{self._recipe.class_name(int(answer.indices[0]))} {answer.scores[0]:.2f}", (4, 18))
        return drawn

    def _named(self, answer: Classes) -> list[tuple[str, float]]:
        """Return the name and the score of each class that an answer lists."""
        pairs = zip(answer.indices.tolist(), answer.scores.tolist(), strict=True)
        return [(self._recipe.class_name(i), score) for i, score in pairs]

    def score(self, answers: Sequence[Classes], labels: Labels) -> Accuracy:
        """Return the recipe's metric, the others beside it.

        Raises:
            InvalidFileError: If the labels are not classes, or not this model's.
        """
        return accuracy_of(self._ranks(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Classes], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times."""
        return resampled_accuracy(self._ranks(answers, labels), self._recipe, counts)

    def _ranks(self, answers: Sequence[Classes], labels: Labels) -> Ranks:
        """Return where the true class of each image stands among the listed ones."""
        classes = self._classes_of(labels)
        known = self._classes if self._classes > 0 else max(classes) + 1
        beyond = [i for i, true in enumerate(classes) if true >= known]
        if beyond:
            first = f"{labels.files[beyond[0]]} has class {classes[beyond[0]]}"
            raise InvalidFileError(
                f"{labels.source}: {plural(len(beyond), 'label')} beyond the model's {known} classes: {first}",
                remedy=f"count classes from 0 to {known - 1}, in the order of the model's output",
            )
        places = [
            next(iter(np.flatnonzero(answer.indices == true)), _NOT_LISTED)
            for answer, true in zip(answers, classes, strict=True)
        ]
        return Ranks(np.array(places, np.int64), known)

    def _classes_of(self, labels: Labels) -> Sequence[int]:
        """Return the class of each picture: by the names of classes, where both the labels and the recipe have them.

        Raises:
            InvalidFileError: If the labels are not classes, or not those of the recipe.
        """
        if not isinstance(labels, ClassLabels):
            raise InvalidFileError(f"{labels.source} holds no classes", remedy="pass a CSV of file,class_index")
        indices = labels.indices_of(self._recipe.class_names, max(self._classes, 0))
        return [indices[class_] for class_ in labels.classes] if labels.names else labels.classes

    def agreement(self, answers: Sequence[Classes], reference: Sequence[Classes]) -> float:
        """Return the mean overlap of the listed probabilities, 1 when they are the same.

        Equal top-1 alone moves in steps of one image; the overlap also sees how near a flip is.
        """
        shares = [(_overlap(a, b), 1.0) for a, b in zip(answers, reference, strict=True)]
        return find_metric("agreement").score(np.array([shares]), len(shares)) if shares else 1.0

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the mean divergence of the probabilities, in nats: of the Softmax, or of scores that sum to 1."""
        if self._is_read or not reference:
            return worst_error(outputs, reference)
        return divergence(self._probabilities(outputs), self._probabilities(reference))

    def _probabilities(self, outputs: Sequence[Tensors]) -> NDArray[np.float64]:
        """Return (pictures, classes)."""
        rows = np.stack([np.asarray(output[self._output], np.float64).reshape(-1)[self._first :] for output in outputs])
        if self._is_probability:
            return rows
        powers = np.exp(np.clip(rows - rows.max(axis=1, keepdims=True), -80, 0))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def sureness(self, answers: Sequence[Classes]) -> NDArray[np.float64]:
        """Return (answers,) how far each is from their mean: 0 where all are alike, near 1 where sure and diverse.

        Source: the divergences whose mean is the logarithm of the Inception score, over the logarithm of the answers.
        """
        listed = sorted({int(i) for answer in answers for i in answer.indices})
        shares = np.zeros((len(answers), len(listed) + 1))
        for row, classes in zip(shares, answers, strict=True):
            row[np.searchsorted(listed, classes.indices)] = np.clip(classes.scores, 0.0, 1.0)
            row[-1] = max(1 - row.sum(), 0.0)  # classes that are not listed
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        ratios = np.divide(shares, shares.mean(axis=0), out=np.ones_like(shares), where=shares > 0)
        divergences: NDArray[np.float64] = (shares * np.log(ratios)).sum(axis=1)
        return np.clip(divergences / max(math.log(len(answers)), 1.0), 0.0, 1.0).astype(np.float64)

    def rightness(self, answers: Sequence[Classes], labels: Labels) -> NDArray[np.float64]:
        """Return (answers,) the logarithm of the true class's probability: 1 where it is sure, 0 at `_LEAST_SHARE`.

        Classes that are not listed share what is left. Source: the logarithmic score, Good 1952.
        """
        unlisted = max(self._classes - self._top, 1)
        shares = np.empty(len(answers))
        for i, (classes, true) in enumerate(zip(answers, self._classes_of(labels), strict=True)):
            array = np.clip(classes.scores.astype(np.float64), 0.0, 1.0)
            is_true = classes.indices == true
            shares[i] = array[is_true].sum() if is_true.any() else (1 - array.sum()) / unlisted
        return 1 - np.log(np.clip(shares, _LEAST_SHARE, 1.0)) / math.log(_LEAST_SHARE)


def _class_count(output: TensorSpec) -> int:
    """Return how many classes an output has; 0 or less where its shape does not say."""
    sizes = output.shape[1:] if len(output.shape) > 1 else output.shape
    return math.prod(size if isinstance(size, int) else 0 for size in sizes)


def _overlap(a: Classes, b: Classes) -> float:
    """Return the shared probability of two answers over the larger of the two listed sums."""
    theirs = dict(zip(b.indices.tolist(), b.scores.tolist(), strict=True))
    shared = sum(min(score, theirs.get(i, 0.0)) for i, score in zip(a.indices.tolist(), a.scores.tolist(), strict=True))
    whole = max(float(a.scores.sum()), float(b.scores.sum()))
    return min(shared / whole, 1.0) if whole > 0 else 1.0


TASK = Classification
