"""Labels of images: COCO JSON boxes, or a CSV of classes. It reads no image."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError


@dataclass(frozen=True, slots=True)
class Labels:
    """What is true of a set of images, in the order in which the images are read."""

    files: tuple[str, ...]
    """Image file names as the label file writes them."""
    classes: tuple[int, ...] = ()
    """Classification: the class index of each image."""
    coco: Mapping[str, Any] | None = None
    """Detection: the COCO JSON, whole."""
    source: Path = Path()

    def select(self, kept: Sequence[int]) -> Labels:
        """Return the labels of the images at these positions only."""
        return Labels(
            files=tuple(self.files[i] for i in kept),
            classes=tuple(self.classes[i] for i in kept) if self.classes else (),
            coco=self.coco,
            source=self.source,
        )


def read_labels(path: Path) -> Labels:
    """Read a COCO JSON (`.json`) or a CSV with the columns `file` and `class_index` (or two unnamed columns).

    Raises:
        InvalidFileError: If it is neither, or holds no label.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFileError(f"{path} cannot be read: {error}", remedy="pass a COCO JSON or a CSV") from error
    if path.suffix.lower() == ".json":
        return _read_coco(path, text)
    if path.suffix.lower() == ".csv":
        return _read_csv(path, text)
    raise InvalidFileError(f"{path} is no label file", remedy="pass a COCO JSON (.json) or a CSV of labels (.csv)")


def _read_coco(path: Path, text: str) -> Labels:
    try:
        values = json.loads(text)
        files = tuple(str(image["file_name"]) for image in values["images"])
        if not all({"image_id", "bbox", "category_id"} <= one.keys() for one in values["annotations"]):
            raise KeyError("image_id, bbox or category_id")
        names = [str(one["name"]) for one in values["categories"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFileError(
            f"{path} is not COCO detection JSON: {error}",
            remedy="needed: images (id, file_name), annotations (image_id, category_id, bbox), categories (id, name)",
        ) from error
    if not files or not names:
        raise InvalidFileError(f"{path} labels no image", remedy="pass the label file of your evaluation images")
    return Labels(files=files, coco=values, source=path)


def _read_csv(path: Path, text: str) -> Labels:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if rows and not rows[0][-1].strip().lstrip("-").isdigit():
        rows = rows[1:]
    try:
        pairs = [(row[0].strip(), int(row[1])) for row in rows]
    except (IndexError, ValueError) as error:
        raise InvalidFileError(
            f"{path} is no CSV of classes: {error}", remedy="write one line an image: file,class_index"
        ) from error
    if not pairs or min(index for _, index in pairs) < 0:
        raise InvalidFileError(f"{path} labels no image", remedy="write one line an image: file,class_index (from 0)")
    files, classes = zip(*pairs, strict=True)
    return Labels(files=files, classes=classes, source=path)
