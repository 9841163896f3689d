"""Whether labelled boxes lie in their pictures: corners, fractions and turned pictures are seen before work begins.

It reads pictures for their size only, and knows nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.text import plural

_PICTURES = 100
"""Decoded for their size, spread over all: a second at most."""
_SLACK = 0.02
"""Slack of a side: how far a box may reach over the border; annotators are not exact."""
_MOST, _ALL, _SOME = 0.5, 0.95, 0.25
"""Shares of the boxes: a few wrong ones are the labels' own noise."""


@dataclass(frozen=True)
class _Places:
    """Boxes and the pictures that they are on, one row a box."""

    boxes: NDArray[np.float64]
    """(n, 4) left, top, width, height."""
    sizes: NDArray[np.float64]
    """(n, 2) width and height of the picture."""
    files: tuple[str, ...]

    def fits(self, ends: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return (n,) whether boxes that end there lie in pictures of that size."""
        slack = _SLACK * sizes + 1
        inside = (self.boxes[:, :2] >= -slack) & (ends <= sizes + slack)
        return np.asarray(inside.all(axis=1), np.bool_)

    def show(self, row: int) -> str:
        """Return one box with its picture."""
        box, (width, height) = self.boxes[row], self.sizes[row]
        return f"[{', '.join(f'{value:g}' for value in box)}] on {self.files[row]} ({width:.0f}x{height:.0f})"


def check_places(source: Path, labelled: Sequence[str], coco: Mapping[str, Any], pictures: Frames) -> tuple[Note, ...]:
    """Raise where boxes cannot be what COCO calls boxes; return what else is odd about their places.

    Args:
        source: The label file.
        labelled: File of each picture.
        coco: Images, annotations and categories.
        pictures: In the same order.

    Raises:
        InvalidFileError: If no box is on these pictures, or most of them leave their picture.
    """
    images = {str(value["file_name"]): value for value in coco["images"]}
    boxes: dict[Any, list[Any]] = {}
    for entry in coco["annotations"]:
        boxes.setdefault(entry["image_id"], []).append(entry["bbox"])
    if not any(images[file]["id"] in boxes for file in labelled):
        raise InvalidFileError(
            f"{source}: no box is on any of the {plural(len(labelled), 'picture')}",
            remedy="pass the labels of these pictures; image_id of an annotation is the id of its image",
        )
    kept = np.unique(np.linspace(0, len(pictures) - 1, min(len(pictures), _PICTURES)).round().astype(int)).tolist()
    sizes = {labelled[i]: pictures.picture(i).shape[1::-1] for i in kept}
    rows = [(box, sizes[file], file) for file in sizes for box in boxes.get(images[file]["id"], ())]
    notes = _note_sizes(source, images, sizes)
    if not rows:
        return notes
    found, size, files = zip(*rows, strict=True)
    places = _Places(np.array(found, np.float64), np.array(size, np.float64), files)
    return (*notes, *_judge(source, places))


def _note_sizes(source: Path, images: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]]) -> tuple[Note, ...]:
    """Return what the file says otherwise than the pictures of their width and height."""
    values = {file: (images[file].get("width"), images[file].get("height")) for file in sizes}
    other = [file for file in sizes if None not in values[file] and values[file] != sizes[file]]
    if not other:
        return ()
    turned = [file for file in other if values[file] == sizes[file][::-1]]
    file = (turned or other)[0]
    shown = f"{file} is {'x'.join(map(str, sizes[file]))}, the labels say {'x'.join(map(str, values[file]))}"
    if turned:
        what, hint = "turned", "their EXIF turns them: label them as they are shown, or store them turned"
    else:
        what, hint = "of another size", "boxes are in pixels of the pictures as they are stored"
    count = f"{len(turned or other)} of {plural(len(sizes), 'labelled picture')}"
    return (Note(NoteKind.WARNING, f"{source}: {count} {what}: {shown}", hint),)


def _judge(source: Path, places: _Places) -> tuple[Note, ...]:
    boxes, sizes = places.boxes, places.sizes
    ends = boxes[:, :2] + boxes[:, 2:]
    leaves = ~places.fits(ends, sizes)
    if ends.max() <= 1 + _SLACK and sizes.min() > 2:
        raise InvalidFileError(
            f"{source}: boxes are fractions of the picture, for example {places.show(0)}",
            remedy="store pixels: left and width times the picture's width, top and height times its height",
        )
    if not leaves.any():
        return ()
    first = int(np.flatnonzero(leaves)[0])
    shown = f"{int(leaves.sum())} of {len(boxes)} box{'es' if len(boxes) > 1 else ''} leave their picture, for example "
    shown += places.show(first)
    corners = places.fits(boxes[:, 2:], sizes) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    if leaves.mean() >= _SOME and corners.mean() >= _ALL:
        raise InvalidFileError(
            f"{source}: boxes are corners: {shown}; as [left, top, right, bottom] they fit",
            remedy="store [left, top, width, height]: width is right - left, height is bottom - top",
        )
    if leaves.mean() >= _SOME and places.fits(ends, sizes[:, ::-1]).mean() >= _ALL:
        raise InvalidFileError(
            f"{source}: boxes are of turned pictures: {shown}; with width and height exchanged they fit",
            remedy="EXIF turns these pictures: label them as they are shown, or store them turned",
        )
    if leaves.mean() > _MOST:
        raise InvalidFileError(
            f"{source}: {shown}", remedy="store [left, top, width, height] in pixels of the pictures as they are"
        )
    return (Note(NoteKind.WARNING, f"{source}: {shown}", "[left, top, width, height] in pixels"),)
