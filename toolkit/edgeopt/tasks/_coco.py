"""Answers matched with labels in COCO's words: boxes, masks and poses are scored by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels.boxes import BoxLabels
from edgeopt.recipes.scoring.average_precision import MatchTable, match_tables


def category_ids(labels: BoxLabels, class_names: Sequence[str]) -> dict[int, int]:
    """Return the category id of each class index: by name, or by order where no name is known.

    Raises:
        InvalidFileError: If no category is a class.
    """
    if known := labels.categories_of(class_names):
        return known
    by_name = [str(value["name"]) for value in labels.coco["categories"]]
    raise InvalidFileError(
        f"{labels.source}: none of its categories ({', '.join(by_name[:5])}, ...) is a class of the recipe",
        remedy="give both the same class names",
    )


def image_ids(labels: BoxLabels) -> list[int]:
    """Return the id of each picture of the labels."""
    ids = {str(image["file_name"]): int(image["id"]) for image in labels.coco["images"]}
    return [ids[file] for file in labels.files]


def matched_tables(
    truth: Mapping[str, Any],
    results: list[dict[str, Any]],
    ids: Sequence[int],
    kind: str,
    categories: Collection[int],
    *,
    sigmas: NDArray[np.float64] | None = None,
) -> list[MatchTable]:
    """Return answers matched with truths, by category; no table where nothing was found.

    Args:
        truth: Images, annotations and categories.
        results: One an answer: image_id, category_id, score and what `kind` compares.
        ids: Of the pictures, in their order.
        kind: `bbox`, `segm` or `keypoints`.
        categories: Ids that are classes of the model; others are left out, as `open_labelled` warns.
        sigmas: Of keypoints: how far annotators place each point apart, over the square root of the area.
    """
    if not results:
        return []
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools reports by print
        known = COCO()
        known.dataset = {"info": {}, **truth}
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(results), kind)
        evaluation.params.imgIds = list(ids)
        evaluation.params.catIds = sorted(categories)
        params = evaluation.params
        params.areaRng, params.areaRngLbl = params.areaRng[:1], params.areaRngLbl[:1]  # of all sizes: no other is read
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = sigmas
        evaluation.evaluate()
        return match_tables(evaluation, ids)
