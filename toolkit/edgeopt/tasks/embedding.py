"""Embedding: one vector, alike for what is alike. Picture or arrays in, a vector of length 1, the nearest other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.sample_drawing import draw_vector_of_picture, draw_vector_of_sound, draw_vector_of_text
from edgeopt.recipes.embedded import picture_feed
from edgeopt.recipes.inputs.sound_input import SoundInput
from edgeopt.recipes.inputs.text_input import TextInput, TextLength
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.recipes.labels.texts import TextLabels
from edgeopt.recipes.recipe import NO_DECODER, Recipe
from edgeopt.recipes.scoring.retrieval import Retrieval, nearest, retrieve
from edgeopt.recipes.texts.text import Pooling
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._json_numbers import share_as_json

_AS_NEAR = 0.02
"""Cosine: another neighbour that is so much farther is as good."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of one picture or text."""

    vector: NDArray[np.float32]
    """(length,): a vector of length 1; zeros if the output held NaN."""


class Embedder(FrameTask):
    """One model that embeds: its pictures or arrays, its vector, what it finds with it."""

    draws: ClassVar[Sequence[str]] = ("picture", "sound", "text")

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        The first output with one vector is read; where there is none, the mean of the first with a vector a token.

        Raises:
            NotFoundError: If the recipe asks for a decoder, of which this task has none.
            UnsupportedError: If no output holds a vector.
        """
        if recipe.postprocess.decoder != NO_DECODER:
            raise NotFoundError("decoder of task embedding", recipe.postprocess.decoder, [NO_DECODER])
        floats = [output for output in outputs if "float" in output.dtype]
        vectors = [spec for spec in floats if len([size for size in spec.shape[1:] if size != 1]) == 1]
        tokens = [spec for spec in floats if len(spec.shape) == 3]
        if not vectors and not tokens:
            raise UnsupportedError(
                f"recipe {recipe.name!r} does not fit this model: an embedding is 1 x length, or 1 x tokens x length; "
                f"the model has {', '.join(map(str, outputs))}",
                remedy='write task = "tensors" in the recipe',
            )
        self._output, self._pooling = _read(recipe, vectors, tokens)
        self._recipe, self._names = recipe, tuple(spec.name for spec in inputs)
        self._is_cosine = recipe.evaluation.metric == "cosine"
        self._picture, self._text = None, TextInput(recipe, inputs) if recipe.kind == "text" else None
        self._sound = SoundInput(recipe, inputs) if recipe.kind == "sound" else None
        if recipe.input.size:
            self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)

    def preprocess(self, frame: Sample) -> tuple[Tensors, NDArray[Any] | None]:
        """Return the inputs, and which tokens are there; None: all, or it is a picture.

        Raises:
            UnsupportedError: If a picture is given to a model that takes none.
        """
        if isinstance(frame, Mapping):
            return frame, frame.get(self._recipe.tokenizer.mask)
        if self._text is not None:
            tensors, encoded = self._text(frame)
            return tensors, encoded.mask
        if self._sound is not None:
            return self._sound(frame), None
        if self._picture is None:
            raise UnsupportedError(
                f"a {'text' if isinstance(frame, str) else 'picture'} cannot become the model's inputs "
                f"{', '.join(self._names)} by recipe {self._recipe.name!r}",
                remedy="pass them as they are: an .npz with an array for each, samples first",
            )
        return {self._recipe.input.tensor or self._names[0]: self._picture(frame)[0]}, None

    def length_of(self, text: str) -> TextLength:
        """Return how much of a text the model reads.

        Raises:
            UnsupportedError: If it takes no texts.
        """
        if self._text is None:
            raise UnsupportedError(f"recipe {self._recipe.name!r} takes no texts", remedy="pass what it takes")
        return self._text.length_of(text)

    def postprocess(self, outputs: Tensors, geometry: NDArray[Any] | None = None) -> Embedding:
        """Return the vector, of length 1."""
        array = np.asarray(outputs[self._output], np.float64)
        if self._pooling is Pooling.FIRST:
            array = array.reshape(-1, array.shape[-1])[0]
        if self._pooling is Pooling.MEAN:
            rows = array.reshape(-1, array.shape[-1])
            there = np.ones(len(rows)) if geometry is None else np.asarray(geometry, np.float64).reshape(-1)
            if len(there) != len(rows):  # a model that pools tokens in between
                there = np.ones(len(rows))
            array = there @ rows / max(there.sum(), 1.0)
        flat = array.reshape(-1)
        largest = float(np.abs(flat).max(initial=0.0))
        if not math.isfinite(largest) or largest == 0:
            return Embedding(np.zeros(len(flat), np.float32))
        flat = flat / largest  # squares of large numbers would overflow
        return Embedding((flat / np.linalg.norm(flat)).astype(np.float32))

    def count(self, answer: Embedding) -> int:
        """Return 1; 0 where the output held NaN, or zeros only."""
        return int(answer.vector.any())

    def as_text(self, answer: Embedding) -> str:
        """Return the length and the first numbers."""
        if not self.count(answer):
            return "nothing"
        first = ", ".join(f"{value:.3f}" for value in answer.vector[:4])
        return f"{len(answer.vector)} numbers: {first}{', ...' if len(answer.vector) > 4 else ''}"

    def as_json(self, answer: Embedding) -> dict[str, Any]:
        """Return `embedding`, a list of numbers whose squares sum to 1."""
        return {"embedding": [share_as_json(value) for value in answer.vector.tolist()]}

    def draw(self, frame: Any, answer: Embedding, height: int = HEIGHT) -> Frame:
        """Return a picture of the frame with the vector as a strip of colours at its lower edge: alike where alike.

        Raises:
            UnsupportedError: If arrays were fed.
        """
        if isinstance(frame, Mapping):
            raise UnsupportedError("arrays have no picture", remedy="leave --save and --view out, or pass --json")
        if isinstance(frame, str):
            return draw_vector_of_text(frame, answer.vector, height)
        if isinstance(frame, Sound):
            return draw_vector_of_sound(frame, answer.vector, height)
        return draw_vector_of_picture(frame, answer.vector, height)

    def score(self, answers: Sequence[Embedding], labels: Labels) -> Accuracy:
        """Return the recipe's metric.

        Raises:
            InvalidFileError: If the labels do not say what each picture shows.
        """
        return accuracy_of(_retrieval(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Embedding], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times."""
        return resampled_accuracy(_retrieval(answers, labels), self._recipe, counts)

    def agreement(self, answers: Sequence[Embedding], reference: Sequence[Embedding]) -> float:
        """Return the mean cosine with the reference, or the share of equal neighbours where that is less.

        A neighbour that the reference has almost as near is as good. By the metric `cosine` neighbours do not count.
        """
        if not reference:
            return 1.0
        mine, theirs = _stacked(answers), _stacked(reference)
        if mine.shape != theirs.shape:
            return 0.0
        cosine = float(np.clip(np.mean(_cosines(mine, theirs)), 0.0, 1.0))
        if self._is_cosine or len(theirs) < 3:
            return cosine
        rows = np.arange(len(theirs))
        chosen, best = (np.sum(theirs[rows] * theirs[nearest(array)], axis=1) for array in (mine, theirs))
        return min(cosine, float(np.mean(chosen >= best - _AS_NEAR)))

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return 1 less the mean cosine; infinite where an embedding is not finite."""
        if not reference:
            return 0.0
        mine, theirs = ([self.postprocess(arrays) for arrays in many] for many in (outputs, reference))
        if not all(np.isfinite(output[self._output]).all() for output in outputs):
            return math.inf
        return float(np.mean(1 - _cosines(_stacked(mine), _stacked(theirs))))

    def sureness(self, answers: Sequence[Embedding]) -> NDArray[np.float64]:
        """Return 1 for each: a vector shows no sureness."""
        return np.ones(len(answers))

    def rightness(self, answers: Sequence[Embedding], labels: Labels) -> None:
        """Return None: pictures are found among each other."""


def _stacked(answers: Sequence[Embedding]) -> NDArray[np.float32]:
    return np.stack([answer.vector for answer in answers])


def _cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (rows,) cosines of vectors of length 1, exactly 1 where they are equal; of a zero and another 0."""
    apart = np.square(a.astype(np.float64) - b).sum(axis=1)
    return np.where(a.any(axis=1) == b.any(axis=1), 1 - apart / 2, 0.0)


def _read(recipe: Recipe, vectors: Sequence[TensorSpec], tokens: Sequence[TensorSpec]) -> tuple[str, Pooling]:
    """Return which output is read, and how its vectors become one.

    Raises:
        UnsupportedError: If the recipe asks for what no output holds.
    """
    pooling = recipe.text.pooling
    if pooling is Pooling.USUAL:
        pooling = Pooling.MODEL if vectors else Pooling.MEAN
    holding = vectors if pooling is Pooling.MODEL else tokens
    if not holding:
        held = "one vector" if pooling is Pooling.MODEL else "a vector a token"
        raise UnsupportedError(
            f"recipe {recipe.name!r} pools by {pooling.value!r}, and the model has no output of {held}",
            remedy="leave pooling under [text] out, or write another",
        )
    return holding[0].name, pooling


def _retrieval(answers: Sequence[Embedding], labels: Labels) -> Retrieval:
    if isinstance(labels, TextLabels):
        kinds = {name: i for i, name in enumerate(sorted({*labels.classes}))}
        return retrieve(_stacked(answers), np.array([kinds[class_] for class_ in labels.classes], np.int64))
    if not isinstance(labels, ClassLabels):
        raise InvalidFileError(
            f"{labels.source} does not say what each picture shows", remedy="pass a CSV of file,class_index"
        )
    return retrieve(_stacked(answers), np.array(labels.classes, np.int64))


TASK = Embedder
