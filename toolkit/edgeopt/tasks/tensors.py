"""Tensors: the answer is the model's outputs, each compared by its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.graph.columns import as_rows, column_axis
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.sample_drawing import (
    draw_tensors_of_arrays,
    draw_tensors_of_picture,
    draw_tensors_of_sound,
)
from edgeopt.recipes.drawings.tensor_drawing import DrawnOutput
from edgeopt.recipes.embedded import picture_feed
from edgeopt.recipes.inputs.sound_input import SoundInput
from edgeopt.recipes.inputs.text_input import TextInput, TextLength
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.metrics import Metric, metrics_on_labels, require_metric_of
from edgeopt.recipes.recipe import LEAST_EQUAL, Recipe
from edgeopt.system.text import printable, short, shorten
from edgeopt.tasks import Accuracy, FrameTask
from edgeopt.tasks._likeness import OutputKind, Shares, compare_output, cosines, kind_of, share_of_each
from edgeopt.tasks._losses import worst_error

_DECODER, _COSINE = "none", "cosine"
_MOST_TEXTS = 3
"""Most texts of an answer in texts that one line shows."""
_TABLE = 2
"""Dimensions of an output with a number for each token of a text: texts, tokens."""
_NAME = 28
"""Columns of a name in a picture."""
_MOST_ELEMENTS = 2**18
"""Most elements of one output: enough for four digits of a cosine."""


class TensorsAsTheyAre(FrameTask):
    """One model whose outputs are its answer; it takes arrays, or what the recipe makes them of."""

    draws: ClassVar[Sequence[str]] = ("picture", "sample", "sound")

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe asks for a decoder or a metric, of which this task has none.
        """
        if recipe.postprocess.decoder != _DECODER:
            raise NotFoundError("decoder of task tensors", recipe.postprocess.decoder, [_DECODER])
        self._metric: Metric = require_metric_of("tensors", recipe.evaluation.metric)
        self._is_cosine = recipe.evaluation.metric == _COSINE
        self._recipe, self._names = recipe.name, tuple(spec.name for spec in inputs)
        self._has_float = any("float" in output.dtype for output in outputs)
        self._kinds, self._states = recipe.evaluation.kinds, frozenset(recipe.input.states.values())
        self._picture, self._samples = None, evaluating
        self._sound = SoundInput(recipe, inputs) if recipe.kind == "sound" else None
        self._text, self._by_token = None, frozenset[str]()
        if recipe.kind == "text":
            self._text, length = TextInput(recipe, inputs), recipe.input.shapes[recipe.tokenizer.ids][1]
            tables = {spec.name: spec.shape[1] for spec in outputs if len(spec.shape) >= _TABLE}
            self._by_token = frozenset(
                name for name, size in tables.items() if not isinstance(size, int) or size == length
            )
        if recipe.input.size:
            self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)

    def preprocess(self, frame: Sample) -> tuple[Tensors, NDArray[np.int64] | None]:
        """Return the inputs as they are, or the tensors of a picture, a sound or a text, and which tokens that has.

        Raises:
            UnsupportedError: If a picture is given to a model that takes none.
        """
        if isinstance(frame, Mapping):
            return frame, None
        if self._sound is not None:
            return self._sound(frame), None
        if self._text is not None:
            tensors, encoded = self._text(frame)
            return tensors, encoded.mask
        if self._picture is None:
            raise UnsupportedError(
                f"a {'text' if isinstance(frame, str) else 'picture'} cannot become the model's inputs "
                f"{', '.join(self._names)} by recipe {self._recipe!r}",
                remedy="pass them as they are: an .npz with an array for each, samples first",
            )
        tensor, _ = self._picture(frame)
        return {self._names[0]: tensor}, None

    def length_of(self, text: str) -> TextLength:
        """Return how much of a text the model reads.

        Raises:
            UnsupportedError: If it takes no texts.
        """
        if self._text is None:
            raise UnsupportedError(f"recipe {self._recipe!r} takes no texts", remedy="pass what it takes")
        return self._text.length_of(text)

    def postprocess(self, outputs: Tensors, geometry: Any = None) -> Tensors:
        """Return the outputs; for evaluating a fixed sample of large ones, so that many answers fit into memory."""
        if not self._samples:
            return dict(outputs)
        return {name: _sampled(_of_text(value, geometry)) for name, value in outputs.items()}

    def count(self, answer: Tensors) -> int:
        """Return the number of outputs."""
        return len(answer)

    def as_text(self, answer: Tensors) -> str:
        """Return type, shape and range of each output."""
        return "; ".join(f"{name} {_as_text(np.asarray(value))}" for name, value in answer.items())

    def as_json(self, answer: Tensors) -> dict[str, Any]:
        """Return `outputs` by name, each with `dtype`, `shape` and `values` in order; None where not finite."""
        return {"outputs": {name: _as_json(np.asarray(value)) for name, value in answer.items()}}

    def draw(self, frame: Any, answer: Tensors, height: int = HEIGHT) -> Frame:
        """Return the outputs, states last, as curves and maps: beside a picture, below a sound, alone for arrays."""
        names = sorted(answer, key=self._states.__contains__)
        outputs = [_drawable(name, np.asarray(answer[name])) for name in names]
        if isinstance(frame, Mapping):
            return draw_tensors_of_arrays(outputs, height)
        if isinstance(frame, Sound):
            return draw_tensors_of_sound(frame, outputs, height)
        return draw_tensors_of_picture(frame, outputs, height)

    def score(self, answers: Sequence[Tensors], labels: Labels) -> Accuracy:
        """Refuse: no labels say what the outputs should be."""
        self._refuse(labels)

    def score_resamples(
        self, answers: Sequence[Tensors], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Refuse, as `score` does."""
        self._refuse(labels)

    def _refuse(self, labels: Labels) -> NoReturn:
        raise UnsupportedError(
            f"{labels.source}: recipe {self._recipe!r} knows no metric on labels, its task compares outputs only",
            remedy=f"leave --eval out, or pass a recipe whose metric is one of {', '.join(metrics_on_labels())}",
        )

    def agreement(self, answers: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the agreement of the worst output with the reference, by the recipe's metric: 1 when all are equal.

        Of an output of numbers the worst column or channel counts, as far as the samples tell columns apart. Whole
        numbers agree by their share of equal elements. Of texts the tokens that both models give are compared: one may
        fill them to a length. Beside float outputs that share counts only below 0.90, since
        it falls faster than the others. States count only where a model has no other outputs: what they lead to is
        judged in the next samples.
        """
        shares = self._shares(answers, reference)
        return self._metric.score(np.stack(shares), len(reference)) if shares else 1.0

    def agreement_of_each(self, answers: Sequence[Tensors], reference: Sequence[Tensors]) -> NDArray[np.float64]:
        """Return (samples,) how far each agrees in the output and column that agree least over all samples."""
        shares = self._shares(answers, reference)
        if not shares:
            return np.ones(len(reference))
        least = min(shares, key=lambda share: share[:, 0].sum() / max(share[:, 1].sum(), 1e-30))
        return share_of_each(least)

    def _shares(self, answers: Sequence[Tensors], reference: Sequence[Tensors]) -> list[Shares]:
        """Return the shares of each comparison of each output that counts."""
        if not reference:
            return []
        names = [name for name in reference[0] if name not in self._states] or list(reference[0])
        return [array for name in names for array in self._compare(name, answers, reference)]

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the relative error, squared, mean over the outputs, or that of the worst column where it is more."""
        return worst_error(outputs, reference)

    def sureness(self, answers: Sequence[Tensors]) -> NDArray[np.float64]:
        """Return 1 for each: outputs alone show no sureness."""
        return np.ones(len(answers))

    def rightness(self, answers: Sequence[Tensors], labels: Labels) -> None:
        """Return None: no labels say what the outputs should be."""

    def _compare(self, name: str, answers: Sequence[Tensors], reference: Sequence[Tensors]) -> list[Shares]:
        expected = [np.asarray(arrays[name]) for arrays in reference]
        found = [np.asarray(answer[name]) if name in answer else None for answer in answers]
        if name in self._by_token:
            expected, found = _as_far_as_both(expected, found)
        kind = kind_of(expected, self._kinds.get(name, ""))
        shares = [cosines(expected, found)] if self._is_cosine else compare_output(expected, found, kind)
        if kind is OutputKind.WHOLE and self._has_float:
            equal = [share[:, 0].sum() >= LEAST_EQUAL * share[:, 1].sum() for share in shares]
            return [share for share, is_forgiven in zip(shares, equal, strict=True) if not is_forgiven]
        return shares


def _as_json(value: NDArray[Any]) -> dict[str, Any]:
    flat = value.reshape(-1)
    elements = flat.tolist()
    if value.dtype.kind == "f":
        elements = [
            element if finite else None for element, finite in zip(elements, np.isfinite(flat).tolist(), strict=True)
        ]
    return {"dtype": str(value.dtype), "shape": list(value.shape), "values": elements}


def _drawable(name: str, value: NDArray[Any]) -> DrawnOutput:
    return DrawnOutput(f"{shorten(printable(name), _NAME)} {_as_text(value)}", value)


def _as_text(value: NDArray[Any]) -> str:
    is_text = value.dtype.kind in "OUS"
    text = f"{'string' if is_text else value.dtype} {'x'.join(map(str, value.shape))}".rstrip()
    if is_text:
        more = ", ..." if value.size > _MOST_TEXTS else ""
        return (
            f"{text}: {', '.join(map(short, value.reshape(-1)[:_MOST_TEXTS].tolist()))}{more}" if value.size else text
        )
    if not value.size or value.dtype.kind not in "fiub":
        return text
    finite = value[np.isfinite(value)]
    if finite.size < value.size:
        text += f" NaN or infinite in {value.size - finite.size} of {value.size}"
    if value.size == 1 or not finite.size:
        return f"{text} {finite[0]:g}" if finite.size else text
    return f"{text} from {np.min(finite):g} to {np.max(finite):g}"


def _of_text(value: NDArray[Any], mask: NDArray[np.int64] | None) -> NDArray[Any]:
    """Return the rows of a text's own tokens of a large output: which rows are drawn must not hang on the filled ones.

    Args:
        value: An output.
        mask: (tokens,) 1 where a token is, 0 where it is filled; None: of no text.
    """
    is_large = mask is not None and np.ndim(value) > _TABLE and np.size(value) > _MOST_ELEMENTS
    if not is_large or mask is None or value.shape[1] != len(mask):
        return value
    return value[:, : int(mask.sum())]


def _as_far_as_both(
    expected: Sequence[NDArray[Any]], found: Sequence[NDArray[Any] | None]
) -> tuple[list[NDArray[Any]], list[NDArray[Any] | None]]:
    """Return an output of texts as far as both models have tokens: one fills them to a length, another does not."""
    cut, own = list(expected), list(found)
    for i, (before, other) in enumerate(zip(expected, found, strict=True)):
        if other is None or before.ndim != other.ndim or before.ndim < _TABLE:
            continue
        tokens = min(before.shape[1], other.shape[1])
        cut[i], own[i] = before[:, :tokens], other[:, :tokens]
    return cut, own


def _sampled(value: NDArray[Any]) -> NDArray[Any]:
    """Return at most `_MOST_ELEMENTS` of an output; channels stay together, for they may be one decision."""
    if np.size(value) <= _MOST_ELEMENTS:
        return value
    axis = column_axis(value.shape, [value])
    if axis is None or value.shape[axis] > _MOST_ELEMENTS:
        return value.reshape(-1)[_positions(value.size, _MOST_ELEMENTS)]
    rows = as_rows(value, axis)
    return rows[_positions(len(rows), _MOST_ELEMENTS // value.shape[axis])]


@lru_cache(maxsize=8)
def _positions(size: int, count: int) -> NDArray[np.int64]:
    """Return random positions, always the same: evenly spaced ones could all fall into a few columns."""
    return np.sort(np.random.default_rng(0).integers(0, size, count))


TASK = TensorsAsTheyAre
