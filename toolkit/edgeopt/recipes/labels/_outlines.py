"""The outlines of COCO's annotations, polygons and run lengths, checked when a task asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import require_right
from edgeopt.recipes.labels.boxes import BoxLabels
from edgeopt.recipes.scoring.run_lengths import read_string
from edgeopt.system.text import short

_MOST_PIXELS = 2**26
"""Most pixels of a picture: a mask of it has so many bits."""
_REMEDY = (
    "write segmentation as polygons [[x, y, x, y, x, y, ...]] in pixels, or as run lengths {size: [height, width], "
    "counts}; images have width and height"
)


def outlines_of(labels: BoxLabels, sizes: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """Return images, categories and annotations with their masks, in the words that pycocotools reads.

    Args:
        labels: As read.
        sizes: Height and width of the answers' masks, by the image's id; other pictures are left out.

    Raises:
        InvalidFileError: If no annotation has an outline, some are wrong, or a picture has another size.
    """
    from pycocotools import mask as masks

    images = {int(value["id"]): value for value in labels.coco["images"]}
    if not any(one.get("segmentation") for one in labels.beside):
        raise InvalidFileError(f"{labels.source} holds no outlines", remedy=_REMEDY)
    wrong = [
        f"image {images[i]['file_name']} is {images[i].get('width')}x{images[i].get('height')}, its picture {w}x{h}"
        for i, (h, w) in sizes.items()
        if (images[i].get("height"), images[i].get("width")) != (h, w)
    ]
    entries, pairs = list[dict[str, Any]](), zip(labels.coco["annotations"], labels.beside, strict=True)
    for i, (box, values) in enumerate(pairs):
        if box["image_id"] not in sizes:
            continue
        size = sizes[box["image_id"]]
        if why := _why_wrong(values.get("segmentation"), size):
            wrong.append(f"annotations[{i}]: {why}")
        elif not wrong:
            entries.append({**box, "segmentation": _encoded(values["segmentation"], size, masks)})
    require_right(labels.source, wrong, _REMEDY)
    return {**labels.coco, "annotations": entries}


def _encoded(outline: Any, size: tuple[int, int], masks: Any) -> Any:
    if isinstance(outline, list):
        return masks.merge(masks.frPyObjects(outline, *size))
    counts = outline["counts"]
    whole = {"size": list(size), "counts": read_string(counts) if isinstance(counts, str) else counts}
    return masks.frPyObjects(whole, *size)


def _why_wrong(outline: Any, size: tuple[int, int]) -> str:
    if size[0] * size[1] > _MOST_PIXELS:
        return f"its picture has {size[1]}x{size[0]} pixels"
    if isinstance(outline, list) and outline:
        return next((why for value in outline if (why := _why_wrong_polygon(value, size))), "")
    if not isinstance(outline, dict):
        return f"segmentation is {short(outline)}, no outline"
    counts = outline.get("counts")
    counts = read_string(counts) if isinstance(counts, str) else counts
    if outline.get("size") != list(size):
        return f"run lengths are of {short(outline.get('size'))}, the picture has [{size[0]}, {size[1]}]"
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        return f"counts are {short(outline.get('counts'))}, no run lengths"
    return "" if sum(counts) == size[0] * size[1] else f"run lengths add up to {sum(counts)}, not {size[0] * size[1]}"


def _why_wrong_polygon(polygon: Any, size: Sequence[int]) -> str:
    """Return why; points far outside would fill all memory where pycocotools walks along the edges."""
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
        return f"a polygon is {short(polygon)}, not three points or more"
    if not all(type(value) in (int, float) and abs(value) <= 2 * max(size) for value in polygon):
        return f"a polygon is {short(polygon)}, which lies outside the picture"
    return ""
