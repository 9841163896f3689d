"""Raw outputs to boxes, for heads that give each side of a box as a distribution over distances.

A side is the mean of 0, 1, ... bins - 1 under the softmax of its bins, in cells.

Source: Generalized Focal Loss (arXiv 2006.04388), equation 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.recipes.output_shapes import DFL_BINS, STRIDES
from edgeopt.recipes.recipe import Centres, Postprocess, Scores
from edgeopt.tasks.detection.head_parts import Array, Candidates, best_class, grid, logit, probabilities, softmax


def distances(raw: Array, bins: int) -> Array:
    """Return (n, 4) distances to left, top, right and bottom, in cells, of (n, 4 * bins); one bin is the distance."""
    if bins == 1:
        return raw
    shares = softmax(raw.reshape(-1, bins))
    return np.asarray(shares @ np.arange(bins, dtype=np.float32), np.float32).reshape(-1, 4)


def yolov8_dfl(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode YOLOv8, v9, v11, v12 and 26 without their last part: distributions of the sides, then classes.

    Read are (1, 4 * bins + classes, n); boxes (1, 4 * bins, n) and classes (1, classes, n); or for each stride boxes
    (1, 4 * bins, h, w) and classes (1, classes, h, w), with or without the sum of the classes (1, 1, h, w) behind
    them, or both in one. Scores are logits unless the recipe says otherwise. 16 bins unless it says so; YOLO26 has 1.

    Source: Ultralytics, `Detect.forward_head`, `DFL` and `dist2bbox`; for each stride: airockchip/ultralytics_yolov8,
    `Detect.forward` for the format rknn.
    """
    bins = numbers.bins or DFL_BINS[yolov8_dfl.__name__]
    sides, raw = _rows(outputs, 4 * bins)
    is_logit = is_logits(numbers)
    best = raw.max(axis=0)
    kept = np.flatnonzero(best > (logit(threshold) if is_logit else threshold))
    scores = probabilities(best[kept]) if is_logit else best[kept]
    cells, strides = grid(size, tuple(sorted(numbers.strides or STRIDES)))
    far, centres = distances(sides[:, kept].T, bins), cells[kept] + 0.5
    boxes = np.concatenate([centres - far[:, :2], centres + far[:, 2:]], axis=1) * strides[kept]
    return boxes.astype(np.float32), scores, raw[:, kept].argmax(axis=0).astype(np.int64)


def _rows(outputs: Sequence[Array], sides: int) -> tuple[Array, Array]:
    """Return (sides, n) and (classes, n), finest stride first."""
    planes = [one[0].reshape(one.shape[1], -1) for one in outputs]
    pairs = [
        (planes[i], planes[j]) if i != j else (planes[i][:sides], planes[i][sides:])
        for i, j in pairs_of([one.shape for one in planes], sides)
    ]
    return np.concatenate([one for one, _ in pairs], axis=1), np.concatenate([one for _, one in pairs], axis=1)


def pairs_of(planes: Sequence[tuple[int, ...]], sides: int) -> list[tuple[int, int]]:
    """Return which outputs hold sides and which classes, finest stride first; the same one where it holds both.

    Args:
        planes: Channels and cells of each output.
        sides: Channels of the sides.
    """
    scales: dict[int, list[int]] = {}
    for i, (_, cells) in enumerate(planes):
        scales.setdefault(cells, []).append(i)
    pairs = []
    for _, mine in sorted(scales.items(), reverse=True):
        box = next((i for i in mine if planes[i][0] == sides), mine[0])
        pairs.append((box, next((i for i in mine if i != box), box)))
    return pairs


def nanodet(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, classes + 4 * bins): class probabilities, then distributions of the sides; 8 bins.

    Sides are measured from the corner of a cell; `centres = "middle"` from its middle, as before NanoDet-Plus. A last
    row or column of a grid that is not whole counts. Boxes are cut at the input's edges, before suppression. Older
    exports have both apart for each stride, (1, n, classes) and (1, n, 4 * bins).

    Source: NanoDet, `NanoDetPlusHead._forward_onnx`, `get_bboxes` and `get_single_level_center_priors`; apart:
    `NanoDetHead.forward_single` of version 0.1.
    """
    bins = numbers.bins or DFL_BINS[nanodet.__name__]
    rows = outputs[0][0]
    if len(outputs) > 1:
        pairs = nanodet_pairs([one.shape[1:] for one in outputs], 4 * bins)
        rows = np.concatenate([np.concatenate([outputs[i][0], outputs[j][0]], axis=1) for i, j in pairs])
    kept, scores, classes = best_class(rows[:, : -4 * bins], logit(threshold) if is_logits(numbers) else threshold)
    cells, strides = grid(size, numbers.strides or STRIDES, rounds_up=True)
    far, centres = distances(rows[kept, -4 * bins :], bins), cells[kept] + shift_of(numbers)
    boxes = np.concatenate([centres - far[:, :2], centres + far[:, 2:]], axis=1) * strides[kept]
    boxes = np.clip(boxes, 0, [size[1], size[0]] * 2)
    return boxes.astype(np.float32), probabilities(scores) if is_logits(numbers) else scores, classes


def nanodet_pairs(shapes: Sequence[tuple[int, ...]], sides: int) -> list[tuple[int, int]]:
    """Return which outputs hold classes and which sides, finest stride first.

    Args:
        shapes: Cells and columns of each output; of as many columns, the exporter writes classes first.
        sides: Columns of the sides.
    """
    finest = sorted(range(len(shapes)), key=lambda i: (-shapes[i][0], shapes[i][1] == sides, i))
    return list(zip(finest[::2], finest[1::2], strict=True))


def is_logits(numbers: Postprocess) -> bool:
    """Return whether raw scores are logits."""
    if numbers.scores is Scores.USUAL:
        return numbers.decoder == yolov8_dfl.__name__
    return numbers.scores is Scores.LOGITS


def shift_of(numbers: Postprocess) -> np.float32:
    """Return how far inside its cell, in cells, NanoDet measures from."""
    return np.float32(0.5 if numbers.centres is Centres.MIDDLE else 0.0)
