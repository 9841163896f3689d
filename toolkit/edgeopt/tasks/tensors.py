"""Tensors: the answer is the model's outputs as they are, compared by their cosine. It knows no labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.labels import Labels
from edgeopt.picture import PictureInput
from edgeopt.recipe import LEAST_EQUAL, Recipe
from edgeopt.tasks import Accuracy
from edgeopt.tensors import Sample, Tensors, TensorSpec

_METRIC, _DECODER = "cosine", "none"
_MOST_ELEMENTS = 2**18
"""Of one output: enough for four digits of a cosine."""


class TensorsAsTheyAre:
    """Inputs and outputs of one model, unchanged; a picture becomes the input where the recipe says how."""

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe asks for a decoder or a metric, of which this task has none.
        """
        if recipe.postprocess.decoder != _DECODER:
            raise NotFoundError("decoder of task tensors", recipe.postprocess.decoder, [_DECODER])
        if recipe.evaluation.metric != _METRIC:
            raise NotFoundError("metric of task tensors", recipe.evaluation.metric, [_METRIC])
        self._recipe, self._names = recipe.name, tuple(one.name for one in inputs)
        self._has_real = any("float" in one.dtype for one in outputs)
        self._picture, self._samples = None, evaluating
        if recipe.input.size:
            self._picture = PictureInput(recipe.input, recipe.preprocess, reuse=not evaluating)

    def preprocess(self, frame: Sample) -> tuple[Tensors, None]:
        """Return the inputs as they are, or the tensor of a picture.

        Raises:
            UnsupportedError: If a picture is given to a model that takes none.
        """
        if isinstance(frame, Mapping):
            return frame, None
        if self._picture is None:
            raise UnsupportedError(
                f"a picture cannot become the model's inputs {', '.join(self._names)} by recipe {self._recipe!r}",
                remedy="pass them as they are: an .npz with an array for each, samples first",
            )
        tensor, _ = self._picture(frame)
        return {self._names[0]: tensor}, None

    def postprocess(self, outputs: Tensors, geometry: Any = None) -> Tensors:
        """Return the outputs; for evaluating, of large ones a fixed sample, so that many answers fit into memory."""
        del geometry
        return {name: _sampled(value) for name, value in outputs.items()} if self._samples else dict(outputs)

    def score(self, answers: Sequence[Tensors], labels: Labels) -> Accuracy:
        """Refuse: what outputs as they are should be, no label says."""
        self._refuse(labels)

    def score_resamples(
        self, answers: Sequence[Tensors], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Refuse, as `score`."""
        self._refuse(labels)

    def _refuse(self, labels: Labels) -> NoReturn:
        raise UnsupportedError(
            f"{labels.source}: recipe {self._recipe!r} knows no metric on labels, its task compares outputs only",
            remedy="leave --eval out, or pass a recipe whose task is detection or classification",
        )

    def agreement(self, answers: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the mean over inputs of the least likeness of an output: 1 when they are the same.

        The likeness of real outputs is 1 - |x - y|^2 / (2 |x| |y|): the cosine where both are equally long, and less
        where they are not, which a cosine does not see. Of whole numbers it is the share of equal elements; beside real
        outputs, that share counts only where it is below 0.90, since it falls faster than a cosine. An output that is
        missing, has another shape, is silent alone, or is NaN where the other is not has likeness 0.
        """
        pairs = zip(answers, reference, strict=True)
        return float(np.mean([self._least_likeness(a, b) for a, b in pairs])) if answers else 1.0

    def _least_likeness(self, found: Tensors, expected: Tensors) -> float:
        least = 1.0
        for name, value in expected.items():
            likeness = _likeness(value, found.get(name))
            is_forgiven = self._has_real and likeness >= LEAST_EQUAL and np.asarray(value).dtype.kind in "iub"
            least = min(least, 1.0 if is_forgiven else likeness)
        return least


def _sampled(value: NDArray[Any]) -> NDArray[Any]:
    return value if np.size(value) <= _MOST_ELEMENTS else np.asarray(value).reshape(-1)[_positions(np.size(value))]


@lru_cache(maxsize=8)
def _positions(size: int) -> NDArray[np.int64]:
    """Return positions drawn once for all: evenly spaced ones could all fall into a few columns."""
    return np.sort(np.random.default_rng(0).integers(0, size, _MOST_ELEMENTS))


def _likeness(expected: NDArray[Any], found: NDArray[Any] | None) -> float:
    if found is None or np.shape(expected) != np.shape(found):
        return 0.0
    x, y = np.asarray(expected), np.asarray(found)
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        return float(np.mean(x == y)) if x.size else 1.0
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return 0.0
    x, y = x[finite].astype(np.float64), y[finite].astype(np.float64)
    peak = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))
    if peak == 0:
        return 1.0
    x, y = x / peak, y / peak  # squares of large numbers would overflow
    product, error = float(np.linalg.norm(x) * np.linalg.norm(y)), x - y
    return max(1 - float(error @ error) / (2 * product), 0.0) if product > 0 else 0.0


TASK = TensorsAsTheyAre
