"""OCR: a picture of a line becomes its text, a sound of speech its letters.

Frame to tensor, scores step by step to characters, what is wrong of them.

Source of the decoder: Graves et al. 2006, Connectionist temporal classification, 3.2, best path.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import scaled, write_below
from edgeopt.recipes.embedded import FRAME, Embedded, Feed, picture_feed
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.inputs.sound_input import SoundInput
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.transcripts import Transcripts
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.recipes.recipe import READERS, Recipe, Scores
from edgeopt.recipes.scoring.spelling import Spelling, right_characters, spelling_of
from edgeopt.system.text import plural, printable
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._json_numbers import score_as_json
from edgeopt.tasks._losses import divergence

_ROWS_SUM = 0.01
"""How far the sum of a row of probabilities may lie from 1."""


@dataclass(frozen=True, slots=True)
class Line:
    """The text of one frame."""

    text: str
    """The text; empty if nothing was read, or if the output held NaN."""
    confidence: float
    """Mean probability of the characters, 0 to 1; 0 if there are none."""


class Reader(FrameTask):
    """One recogniser of text: its pictures of lines, their text, its score."""

    draws: ClassVar[Sequence[str]] = ("picture",)
    reveals_misreading: ClassVar[bool] = True

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors; of several outputs the first is read.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If the recipe names no alphabet, or the output has other scores than it has characters.
        """
        if recipe.postprocess.decoder not in READERS:
            raise NotFoundError("decoder of task ocr", recipe.postprocess.decoder, READERS)
        if not recipe.alphabet.characters:
            raise UnsupportedError(
                f"recipe {recipe.name!r} names no alphabet, and the model tells none",
                remedy='write [alphabet] file = "dict.txt" in a recipe.toml: the dictionary that it was trained with, '
                "one character a line",
            )
        self._recipe, self._output = recipe, outputs[0].name
        self._name, self._size = recipe.input.tensor or inputs[0].name, recipe.input.size
        self._scores = recipe.postprocess.scores
        self._sound = SoundInput(recipe, inputs) if recipe.kind == "sound" else None
        self._picture: Feed | None = None
        if self._sound is None:
            self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)
        self._is_fed_frames = Embedded.PREPROCESS in recipe.embedded
        self._axes = dict[tuple[int, ...], tuple[int, tuple[str, ...]]]()
        sizes = [one for one in outputs[0].shape if isinstance(one, int)]
        is_told = any(map(recipe.alphabet.of_scores, sizes)) or len(sizes) == len(outputs[0].shape)
        place = self._scores_of(outputs[0]) if is_told or "float" not in outputs[0].dtype else None
        self._heads = () if place is None else (self._head(outputs[0].op, *place),)

    def _head(self, op: str, axis: int, symbols: Sequence[str]) -> LearnedHead:
        is_logit = self._scores is Scores.LOGITS or (self._scores is Scores.USUAL and op != "Softmax")
        scale = Scale.SOFTMAX if is_logit else Scale.SHARES
        return LearnedHead(Columns(self._output, axis), scale, background=symbols.index(""))

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """Return the scores step by step; a blank says that nothing is there."""
        return self._heads

    def _scores_of(self, output: TensorSpec) -> tuple[int, tuple[str, ...]]:
        """Return the axis of an output along which scores lie, the last that fits, and what each stands for.

        Raises:
            UnsupportedError: If there is none, or the output has more than steps and scores.
        """
        sizes = [one if isinstance(one, int) else 0 for one in output.shape]
        found = [(axis, self._recipe.alphabet.of_scores(size)) for axis, size in enumerate(sizes)]
        fitting = [(axis, symbols) for axis, symbols in found if symbols is not None]
        if not fitting or sum(other > 1 for other in sizes) > 2 or "float" not in output.dtype:
            count = len(self._recipe.alphabet.symbols)
            raise UnsupportedError(
                f"recipe {self._recipe.name!r} does not fit this model: its alphabet of {plural(count, 'character')} "
                f"needs {count + 1} scores a step, {count + 2} with a space; the model has {output}",
                remedy="write the dictionary that the model was trained with under [alphabet]",
            )
        return fitting[-1]

    def preprocess(self, frame: Sample) -> tuple[Tensors, Geometry]:
        """Return the input tensor; arrays stay unchanged."""
        if isinstance(frame, Mapping):
            return frame, Geometry.of_input(frame[FRAME].shape if self._is_fed_frames else self._size or (1, 1))
        if self._sound is not None:
            return self._sound(frame), Geometry.of_input((1, 1))
        assert self._picture is not None
        tensor, geometry = self._picture(frame)
        return {self._name: tensor}, geometry

    def postprocess(self, outputs: Tensors, geometry: Geometry | None = None) -> Line:
        """Return the text: the best of each step, repetitions joined, blanks left out.

        Raises:
            UnsupportedError: If the output of this frame has other scores than the alphabet has characters.
        """
        del geometry
        steps, symbols = self._steps(outputs)
        if not np.isfinite(steps).all():
            return Line("", 0.0)
        best = steps.argmax(axis=1)
        begins = np.diff(best, prepend=-1) != 0
        kept = np.flatnonzero(begins & (best != symbols.index("")))
        if not len(kept):
            return Line("", 0.0)
        sure = self._probabilities(steps[kept])[np.arange(len(kept)), best[kept]]
        text = "".join(symbols[i] for i in best[kept])
        return Line(text if self._sound is None else text.strip(), float(sure.mean()))

    def _steps(self, outputs: Tensors) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return (steps, scores), and what each score stands for."""
        array = np.asarray(outputs[self._output])
        if array.shape not in self._axes:
            self._axes[array.shape] = self._scores_of(TensorSpec(self._output, str(array.dtype), array.shape))
        axis, symbols = self._axes[array.shape]
        return np.moveaxis(array, axis, -1).reshape(-1, len(symbols)), symbols

    def _probabilities(self, steps: NDArray[Any]) -> NDArray[np.float64]:
        """Return (steps, scores) as probabilities; unless the recipe tells, rows that sum to 1 are such already."""
        rows = steps.astype(np.float64)
        if self._scores is Scores.PROBABILITIES:
            return rows
        if self._scores is Scores.USUAL and rows.min() >= 0 and np.abs(rows.sum(axis=1) - 1).max() <= _ROWS_SUM:
            return rows
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def count(self, answer: Line) -> int:
        """Return the number of characters."""
        return len(answer.text)

    def best_score(self, answer: Line) -> float:
        """Return the confidence."""
        return answer.confidence

    def choice(self, answer: Line) -> Hashable | None:
        """Return the text, where whole lines are right or wrong."""
        return answer.text if self._recipe.evaluation.metric == "exact_match" else None

    def as_text(self, answer: Line) -> str:
        """Return the text and how sure it is."""
        return f"{printable(answer.text)} ({answer.confidence:.3f})" if answer.text else "nothing"

    def as_json(self, answer: Line) -> dict[str, Any]:
        """Return `text` and `confidence`."""
        return {"text": answer.text, "confidence": score_as_json(answer.confidence)}

    def draw(self, frame: Frame, answer: Line, height: int = HEIGHT) -> Frame:
        """Return a copy of the frame with its text in a strip below."""
        strip = height // 3
        return write_below(scaled(frame, height - strip), self.as_text(answer), strip)

    def score(self, answers: Sequence[Line], labels: Labels) -> Accuracy:
        """Return the recipe's metric, the others beside it.

        Raises:
            InvalidFileError: If the labels are not texts.
        """
        return accuracy_of(_spelling(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Line], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times."""
        return resampled_accuracy(_spelling(answers, labels), self._recipe, counts)

    def agreement(self, answers: Sequence[Line], reference: Sequence[Line]) -> float:
        """Return 1 less the error rate of characters, the reference's being the true ones."""
        spelling = spelling_of([one.text for one in answers], [one.text for one in reference])
        return float(right_characters(spelling, np.ones((1, len(answers)), np.int64))[0])

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the mean divergence of the steps' probabilities, in nats."""
        pairs = zip(outputs, reference, strict=True)
        losses = [divergence(self._all_probabilities(a), self._all_probabilities(b)) for a, b in pairs]
        return float(np.mean(losses)) if losses else 0.0

    def _all_probabilities(self, outputs: Tensors) -> NDArray[np.float64]:
        steps = self._steps(outputs)[0]
        return self._probabilities(steps) if np.isfinite(steps).all() else np.full(steps.shape, np.nan)

    def sureness(self, answers: Sequence[Line]) -> NDArray[np.float64]:
        """Return (answers,) the confidence of each."""
        return np.array([answer.confidence for answer in answers], np.float64)

    def rightness(self, answers: Sequence[Line], labels: Labels) -> None:
        """Return None: an error rate does not see how sure an answer is."""


def _spelling(answers: Sequence[Line], labels: Labels) -> Spelling:
    if not isinstance(labels, Transcripts):
        raise InvalidFileError(
            f"{labels.source} holds no texts", remedy="pass a list of file, tab, text, or a CSV of file,text"
        )
    return spelling_of([answer.text for answer in answers], labels.lines)


TASK = Reader
