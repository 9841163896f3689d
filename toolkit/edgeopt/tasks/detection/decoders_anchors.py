"""Outputs that move and stretch anchors (priors) which the graph does not hold: SSD, RetinaFace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.output_shapes import STRIDES, landmarks_of, without_landmarks
from edgeopt.recipes.recipe import Centres, Postprocess, Scores
from edgeopt.tasks.detection.head_parts import (
    Array,
    Candidates,
    best_class,
    corners,
    probabilities,
    scores_first,
    softmax,
)

VARIANCES = (0.1, 0.2)
"""What an offset of a centre and of a size is multiplied by; TensorFlow divides by 10 and 5."""


@lru_cache(maxsize=8)
def priors(
    size: tuple[int, int], strides: tuple[int, ...], anchors: tuple[tuple[float, ...], ...], centres: Centres
) -> Array:
    """Return (n, 4) centre and size of the anchors in pixels: stride by stride, row by row, all anchors of a cell.

    Args:
        size: Height and width of the input.
        strides: As in the recipe; a last row or column that is not whole counts.
        anchors: Width and height in pixels, alternating, for each stride.
        centres: Where the middle of a cell lies.
    """
    parts = []
    for stride, flat in zip(strides, anchors, strict=True):
        rows, columns = -(-size[0] // stride), -(-size[1] // stride)
        step = (size[0] / rows, size[1] / columns) if centres is Centres.EVEN else (stride, stride)
        shift = 0.0 if centres is Centres.CORNER else 0.5
        x, y = np.meshgrid((np.arange(columns) + shift) * step[1], (np.arange(rows) + shift) * step[0])
        if centres is Centres.CLIPPED:
            x, y = np.minimum(x, size[1]), np.minimum(y, size[0])
        sides = np.asarray(flat).reshape(-1, 2)
        places = np.repeat(np.stack([x.ravel(), y.ravel()], axis=1), len(sides), axis=0)
        parts.append(np.concatenate([places, np.tile(sides, (rows * columns, 1))], axis=1))
    return np.concatenate(parts).astype(np.float32)


def ssd_offsets(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode offsets (1, n, 4), x before y, and scores (1, n, classes); `landmarks` reads five points, (1, n, 10).

    With an anchor of centre p and size s: centre p + 0.1 t s, size s exp(0.2 t). Raw scores are logits: softmax where
    the recipe says `background`, else sigmoid.

    Source: SSD (arXiv 1512.02325), torchvision `BoxCoder.decode_single` and `DefaultBoxGenerator`;
    Pytorch_Retinaface, `decode` and `PriorBox`.
    """
    return _decoded(outputs, numbers, size, threshold, order=(0, 1, 2, 3))


def ssd_offsets_yx(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float
) -> Candidates:
    """Decode as `ssd_offsets` with y before x, height before width, cells that share the input evenly, probabilities.

    Logits have a sigmoid each, the background too.

    Source: TensorFlow Object Detection API, `FasterRcnnBoxCoder._decode` and `MultipleGridAnchorGenerator`;
    `export_tflite_ssd_graph_lib.py` for the outputs.
    """
    return _decoded(outputs, numbers, size, threshold, order=(1, 0, 3, 2))


def _decoded(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float, order: Sequence[int]
) -> Candidates:
    kept, value, classes = _kept(outputs, numbers, threshold)
    _, offsets = scores_first(without_landmarks(outputs))
    places, found = anchors_of(numbers, size)[kept], offsets[kept][:, order]
    centre, stretch = numbers.variances or VARIANCES
    middles = places[:, :2] + centre * found[:, :2] * places[:, 2:]
    return corners(middles, places[:, 2:] * np.exp(stretch * found[:, 2:])).astype(np.float32), value, classes


def _kept(
    outputs: Sequence[Array], numbers: Postprocess, threshold: float
) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return rows, scores and classes above the threshold."""
    raw, _ = scores_first(without_landmarks(outputs))
    if is_logits(numbers):
        raw = softmax(raw) if has_softmax(numbers) else probabilities(raw)
    return best_class(raw[:, int(numbers.background) :], threshold)


def landmarks(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Array | None:
    """Return (n, 5, 2) points of the boxes that `ssd_offsets` decodes, in its order; None where no output holds them.

    With an anchor of centre p and size s: p + 0.1 t s.

    Source: Pytorch_Retinaface, `decode_landm`.
    """
    found = landmarks_of(outputs)
    if found is None:
        return None
    kept, _, _ = _kept(outputs, numbers, threshold)
    places, (centre, _) = anchors_of(numbers, size)[kept, None], numbers.variances or VARIANCES
    moved = found[0][kept].reshape(-1, 5, 2)
    return np.asarray(places[..., :2] + centre * moved * places[..., 2:], np.float32)


def anchors_of(numbers: Postprocess, size: tuple[int, int]) -> Array:
    """Return the anchors, (n, 4), of a recipe."""
    centres = numbers.centres
    if centres is Centres.USUAL:
        centres = Centres.EVEN if numbers.decoder == ssd_offsets_yx.__name__ else Centres.MIDDLE
    return priors(size, numbers.strides or STRIDES, numbers.anchors, centres)


def has_softmax(numbers: Postprocess) -> bool:
    """Return whether logits of classes exclude one another: TensorFlow's never do, a background or none."""
    return numbers.background and numbers.decoder != ssd_offsets_yx.__name__


def is_logits(numbers: Postprocess) -> bool:
    """Return whether raw scores are logits."""
    if numbers.scores is Scores.USUAL:
        return numbers.decoder == ssd_offsets.__name__
    return numbers.scores is Scores.LOGITS
