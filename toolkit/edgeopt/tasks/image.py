"""Image: a picture becomes another one, or a map of depth. Judged by its likeness to the original model's."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.drawing import scaled
from edgeopt.recipes.embedded import FRAME, Embedded, picture_feed
from edgeopt.recipes.inputs.preprocess import Colour, Geometry, Layout, Resize, letterbox_place
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.recipe import NO_DECODER, Recipe
from edgeopt.recipes.scoring.likeness import nearness, similarity
from edgeopt.tasks import Accuracy, FrameTask
from edgeopt.tasks._losses import relative_error

_CHANNELS = (1, 3)
_MOST = 65535
_LEAST_SPAN = 1e-3
"""Share of the span of all channels: one with less, as the blue of an infrared picture, shows nothing."""


@dataclass(frozen=True, slots=True)
class Image:
    """A model's picture of one frame."""

    values: NDArray[np.float32]
    """(height, width) or (height, width, 3), in the model's own unit, size and order of colours."""


class ImageToImage(FrameTask):
    """One model that gives a picture or a map of depth for a picture."""

    draws: ClassVar[Sequence[str]] = ("picture",)

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors; of several outputs the first is read.

        Raises:
            NotFoundError: If the recipe asks for a decoder, of which this task has none.
            UnsupportedError: If the first output is no picture of 1 or 3 channels, or the model takes no picture.
        """
        if recipe.postprocess.decoder != NO_DECODER:
            raise NotFoundError("decoder of task image", recipe.postprocess.decoder, [NO_DECODER])
        first, shape = outputs[0], outputs[0].shape
        self._axis = 3 if recipe.input.layout is Layout.NHWC else 1
        channels = 1 if len(shape) == 3 else shape[self._axis] if len(shape) == 4 else 0
        if (isinstance(channels, int) and channels not in _CHANNELS) or "float" not in first.dtype:
            raise UnsupportedError(
                f"recipe {recipe.name!r} does not fit this model: an image is floats, 1 x height x width, or with 1 or "
                f"3 channels; the model has {first}",
                remedy='write task = "segmentation" for scores of classes, "tensors" for anything else',
            )
        if not recipe.input.size:
            raise UnsupportedError(
                f"recipe {recipe.name!r} wants a picture, the model has inputs {', '.join(map(str, inputs))}",
                remedy='write task = "tensors" in the recipe',
            )
        self._recipe, self._size = recipe, (recipe.input.size[0], recipe.input.size[1])
        self._name, self._output = recipe.input.tensor or inputs[0].name, first.name
        self._is_fed_frames = Embedded.PREPROCESS in recipe.embedded
        self._anchor = recipe.preprocess.anchor if recipe.preprocess.resize is Resize.LETTERBOX else None
        self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)

    def preprocess(self, frame: Sample) -> tuple[Tensors, Geometry]:
        """Return the input tensor, and where the frame lies in it; arrays stay unchanged and are the whole frame."""
        if isinstance(frame, Mapping):
            return frame, Geometry.of_input(frame[FRAME].shape if self._is_fed_frames else self._size)
        tensor, geometry = self._picture(frame)
        return {self._name: tensor}, geometry

    def postprocess(self, outputs: Tensors, geometry: Geometry) -> Image:
        """Return the output as it is, without the border that a letterbox adds."""
        result = np.asarray(outputs[self._output], np.float32)[0]
        if result.ndim == 3:
            result = np.moveaxis(result, self._axis - 1, -1)
            result = result[..., 0] if result.shape[-1] == 1 else result
        size = (geometry.height, geometry.width)
        if self._anchor is not None and size != self._size:
            (left, top, columns, rows), _ = letterbox_place(self._size, size, self._anchor)
            down, across = (result.shape[i] / self._size[i] for i in (0, 1))
            result = result[_cut(top * down, rows * down, result.shape[0])]
            result = result[:, _cut(left * across, columns * across, result.shape[1])]
        return Image(np.array(result))

    def count(self, answer: Image) -> int:
        """Return 1; 0 where a value is NaN or infinite."""
        return int(bool(np.isfinite(answer.values).all()))

    def as_text(self, answer: Image) -> str:
        """Return size and range."""
        height, width = answer.values.shape[:2]
        if not self.count(answer):
            return "nothing"
        values = answer.values
        return f"{width}x{height} from {values.min():g} to {values.max():g}, mean {values.mean():g}"

    def as_json(self, answer: Image) -> dict[str, Any]:
        """Return `width`, `height`, `lowest`, `highest` and `png` in base64: 16 bits, 0 the lowest.

        The last three are None where a value is NaN or infinite.
        """
        height, width = answer.values.shape[:2]
        values: dict[str, Any] = {"width": width, "height": height, "lowest": None, "highest": None, "png": None}
        if not self.count(answer):
            return values
        low, high = float(answer.values.min()), float(answer.values.max())
        whole = np.rint((answer.values - low) / max(high - low, 1e-30) * _MOST).astype(np.uint16)
        data = cv2.imencode(".png", self._as_bgr(whole))[1].tobytes()
        return {**values, "lowest": low, "highest": high, "png": base64.b64encode(data).decode()}

    def _as_bgr(self, values: NDArray[Any]) -> NDArray[Any]:
        is_rgb = values.ndim == 3 and self._recipe.preprocess.colour is Colour.RGB
        return np.ascontiguousarray(values[..., ::-1] if is_rgb else values)

    def draw(self, frame: Frame, answer: Image, height: int = HEIGHT) -> Frame:
        """Return the answer as a picture; a single channel from its lowest to its highest value, dark to light."""
        if not self.count(answer):
            return scaled(frame, height)
        values, low, high = answer.values, float(answer.values.min()), float(answer.values.max())
        if values.ndim == 3:  # colours keep their meaning: 0..1, 0..255
            low, high = (0.0, 1.0 if high <= 1.5 else 255.0) if low >= -0.5 else (low, high)
        grey = np.rint(np.clip((values - low) / max(high - low, 1e-30), 0, 1) * 255).astype(np.uint8)
        shown = cv2.applyColorMap(grey, cv2.COLORMAP_INFERNO) if grey.ndim == 2 else self._as_bgr(grey)
        width = max(int(frame.shape[1] * height / frame.shape[0]), 1)
        return np.asarray(cv2.resize(shown, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)

    def score(self, answers: Sequence[Image], labels: Labels) -> Accuracy:
        """Refuse: likeness to the original's pictures judges."""
        self._refuse(labels)

    def score_resamples(
        self, answers: Sequence[Image], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Refuse, as `score` does."""
        self._refuse(labels)

    def _refuse(self, labels: Labels) -> NoReturn:
        raise UnsupportedError(
            f"{labels.source}: task image knows no metric on labels, it compares with the original's pictures",
            remedy="leave --eval out",
        )

    def agreement(self, answers: Sequence[Image], reference: Sequence[Image]) -> float:
        """Return the likeness to the reference's pictures by the recipe's metric: 1 when they are the same.

        By `agreement` the worse of the two others. The worst channel counts: three of them may be a depth, a confidence
        and a mask. The span of values of each is that of all pictures of the reference.
        """
        if not reference:
            return 1.0
        shares = self._shares(answers, reference)
        metric = find_metric(self._recipe.evaluation.metric)
        return min(metric.score(shares[channel], len(reference)) for channel in range(len(shares)))

    def agreement_of_each(self, answers: Sequence[Image], reference: Sequence[Image]) -> NDArray[np.float64]:
        """Return (samples,) how like each picture is, in the channel that is least like over all."""
        if not reference:
            return np.ones(0)
        shares = self._shares(answers, reference)
        metric = find_metric(self._recipe.evaluation.metric)
        worst = min(shares, key=lambda channel: metric.score(channel, len(reference)))
        return np.array([metric.score(worst[:, [i]], 1) for i in range(len(reference))], np.float64)

    def _shares(self, answers: Sequence[Image], reference: Sequence[Image]) -> NDArray[np.float64]:
        """Return (channels, 2, samples, 2) shares by the two metrics, each channel in its own span of values.

        A channel that is all but constant in all pictures of the reference is compared in the span of all channels.
        """
        finite = [image.values for image in reference if np.isfinite(image.values).all()]
        channels = 1 if reference[0].values.ndim < 3 else reference[0].values.shape[2]
        spans = np.array([_span([_channel(array, channel) for array in finite]) for channel in range(channels)])
        whole = max(_span(finite), 1e-30)
        spans = np.where(spans < _LEAST_SPAN * whole, whole, spans)
        likeness = [
            [[_likeness(a, b, channel, how, float(spans[channel])) for a, b in zip(answers, reference, strict=True)]]
            for channel in range(channels)
            for how in (nearness, similarity)
        ]
        shares = np.array(likeness, np.float64).reshape(channels, 2, len(reference))
        return np.stack([shares, np.ones_like(shares)], axis=3)

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the relative error, squared, of the output that is read."""
        if not all(np.isfinite(output[self._output]).all() for output in outputs):
            return math.inf
        name = self._output
        return relative_error([{name: one[name]} for one in outputs], [{name: one[name]} for one in reference])

    def sureness(self, answers: Sequence[Image]) -> NDArray[np.float64]:
        """Return 1 for each: a picture shows no sureness."""
        return np.ones(len(answers))

    def rightness(self, answers: Sequence[Image], labels: Labels) -> None:
        """Return None: no labels say what the picture should be."""


def _likeness(image: Image, expected: Image, channel: int, how: Any, span: float) -> float:
    if image.values.shape != expected.values.shape or not np.isfinite(image.values).all():
        return 0.0
    if not np.isfinite(expected.values).all():
        return 1.0
    return float(how(_channel(image.values, channel), _channel(expected.values, channel), span))


def _channel(values: NDArray[np.float32], channel: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(values[..., channel]) if values.ndim == 3 else values


def _span(arrays: Sequence[NDArray[np.float32]]) -> float:
    """Return how far the largest value of arrays lies above the smallest; 0 for none."""
    highest = max((float(array.max()) for array in arrays), default=0.0)
    return highest - min((float(array.min()) for array in arrays), default=0.0)


def _cut(first: float, count: float, size: int) -> slice:
    """Return the rows or columns of a map that a frame covers: one at least, however thin the frame."""
    start = min(round(first), size - 1)
    return slice(start, max(round(first + count), start + 1))


TASK = ImageToImage
