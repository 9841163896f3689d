"""Readings of outputs that no shipped recipe recognises: classes of pixels, another picture, text."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.questions import NORMS
from edgeopt.recipes.inputs.preprocess import Colour, Layout, Preprocess, Resize
from edgeopt.recipes.outputs.output_shapes import SPREADING
from edgeopt.recipes.recipe import NO_DECODER, READERS, Evaluation, Postprocess, Recipe, Scores
from edgeopt.recipes.texts.alphabet import Alphabet

_MOST_CLASSES = 256
"""Most classes of a map that is taken for classes of pixels: more channels are features."""
_LEAST_SCORES = 11
"""Least scores of a recogniser's step: ten digits and the blank."""
_HIGHEST_LINE, _SHORTEST_STRIDE, _LONGEST_STRIDE = 96, 4, 8
"""Pixels of a line of text, and along it from step to step."""
_IMAGENET_CLASSES = (1000, 1001)
_MOST_OUTPUTS = 2
"""A map of classes, and one that only training reads."""
_SCALE, _MEAN, _STD = NORMS["ImageNet's mean and std"]
LINE_SIZE = (48, 320)
"""Height and width of a line of text, where the model leaves them free: PaddleOCR's."""


def map_readings(size: Sequence[int], layout: Layout, outputs: Sequence[TensorSpec]) -> list[Recipe]:
    """Return recipes for a model whose first output is a map of the picture, the likely one first; else none.

    Args:
        size: Height and width of the picture.
        layout: Of the picture; maps have the same.
        outputs: Of the model.
    """
    first = outputs[0]
    if len(outputs) > _MOST_OUTPUTS or not _is_map(first, size, layout):
        return []
    if len(first.shape) == 3 and first.op in SPREADING:
        return []
    channels = _channels(first, layout)
    if "float" not in first.dtype:
        return [_segmentation("class_map")] if channels == 1 else []
    image = Recipe(
        "image",
        "image",
        "another picture, or a map of depth: judged by its likeness to the original's",
        *_UNKNOWN,
        Postprocess(NO_DECODER),
        Evaluation("psnr"),
        preprocess=Preprocess(scale=_SCALE),
    )
    if channels == 1:
        scores = Scores.PROBABILITIES if first.op == "Sigmoid" else Scores.USUAL
        mask = _segmentation("argmax", scores)
        return [mask, image] if first.op == "Sigmoid" else [image, *([mask] if len(first.shape) == 4 else [])]
    if channels == 3 and first.op not in SPREADING:
        return [image, _segmentation("argmax")]
    return [_segmentation("argmax")] if not isinstance(channels, int) or channels <= _MOST_CLASSES else []


def class_count(recipe: Recipe, outputs: Sequence[TensorSpec]) -> int:
    """Return how many classes a pixel has; 0: unknown."""
    count = _channels(outputs[0], recipe.input.layout) if recipe.postprocess.decoder == "argmax" else 0
    return (2 if count == 1 else count) if isinstance(count, int) else 0


def scores_of_step(size: Sequence[int | str | None], outputs: Sequence[TensorSpec]) -> int:
    """Return how many scores a step of text has; 0 where the outputs are none of a recogniser.

    Args:
        size: Height and width of the picture, as the model says.
        outputs: Of the model.
    """
    first, (height, width) = outputs[0], size
    if len(outputs) > 1 or len(first.shape) != 3 or "float" not in first.dtype:
        return 0
    steps, count = _steps(first), first.shape[2]
    if not isinstance(count, int) or count < _LEAST_SCORES or steps == 1:
        return 0
    is_wide = not isinstance(width, int) or (isinstance(height, int) and width >= 2 * height)
    return count if is_wide and (first.op in SPREADING or not isinstance(steps, int) or steps < count) else 0


def is_surely_text(size: Sequence[int | str | None], outputs: Sequence[TensorSpec]) -> bool:
    """Return whether outputs that may be a recogniser's can be nothing else.

    A line is low and wide, and the network strides along it: its steps follow from the width alone. The rows of a
    detector follow from height and width, and hold boxes, which no softmax spreads.

    Args:
        size: Height and width of the picture, as the model says.
        outputs: Of the model.
    """
    first, (height, width) = outputs[0], size
    if not scores_of_step(size, outputs) or first.op == "Sigmoid":
        return False
    steps, is_low = _steps(first), isinstance(height, int) and height <= _HIGHEST_LINE
    if not isinstance(width, int) or not isinstance(steps, int):
        return is_low or (first.op in SPREADING and not isinstance(steps, int))
    return is_low and width // _LONGEST_STRIDE - 1 <= steps <= width // _SHORTEST_STRIDE + 2


def _steps(scores: TensorSpec) -> int | str | None:
    """Return the steps of (batch, steps, scores), or of (steps, batch, scores) as recurrent layers write them."""
    first, second = scores.shape[:2]
    leads = second == 1 or (isinstance(first, int) and first > 1 and not isinstance(second, int))
    return first if leads else second


def are_features(output: TensorSpec) -> bool:
    """Return whether an output is one place of a map, not spread over classes: what a network sees, for another one.

    ImageNet's classes are known by their number.
    """
    sizes = [size for size in output.shape[1:] if size != 1]
    return (
        len(output.shape) == 4
        and len(sizes) == 1
        and output.op not in (*SPREADING, "Sigmoid")
        and sizes[0] not in _IMAGENET_CLASSES
    )


def text_reading(alphabet: Alphabet) -> Recipe:
    """Return the recipe of a recogniser of text, fed as PaddleOCR's are."""
    how = Preprocess(Colour.BGR, Resize.LINE, scale=1 / 255, mean=(0.5,), std=(0.5,))
    return Recipe(
        "ocr",
        "ocr",
        "lines of text",
        *_UNKNOWN,
        Postprocess(READERS[0]),
        Evaluation("character_accuracy"),
        preprocess=how,
        alphabet=alphabet,
    )


_UNKNOWN = ("unknown", "unknown")
"""Licence and source."""


def _segmentation(decoder: str, scores: Scores = Scores.USUAL) -> Recipe:
    return Recipe(
        "segmentation",
        "segmentation",
        "a class for each pixel: judged by the overlap with masks",
        *_UNKNOWN,
        Postprocess(decoder, scores=scores),
        Evaluation("mIoU"),
        preprocess=Preprocess(scale=_SCALE, mean=_MEAN, std=_STD),
    )


def _channels(output: TensorSpec, layout: Layout) -> int | str | None:
    return 1 if len(output.shape) == 3 else output.shape[1 if layout is Layout.NCHW else 3]


def _is_map(output: TensorSpec, size: Sequence[int], layout: Layout) -> bool:
    """Whether an output has the picture's proportions, and as many pixels, or a whole number of times more or fewer."""
    shape = output.shape
    if len(shape) not in (3, 4) or (isinstance(shape[0], int) and shape[0] != 1):
        return False
    plane = shape[1:3] if len(shape) == 3 or layout is Layout.NHWC else shape[2:4]
    pairs = [(mine, side) for mine, side in zip(plane, size, strict=True) if isinstance(mine, int)]
    if any(mine < 2 for mine, _ in pairs):
        return False
    ratios = {mine / side for mine, side in pairs}
    return len(ratios) < 2 and all(ratio.is_integer() or (1 / ratio).is_integer() for ratio in ratios)
