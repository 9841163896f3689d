"""Labels of images: COCO JSON boxes, or a CSV of classes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.system.files import read_text
from edgeopt.system.text import plural, short
from edgeopt.system.toml import read_json

_MOST_BYTES = 1 << 30
"""Of a label file; all of COCO's training labels have 448 MiB."""
_MOST_NAME_BYTES = 255
"""Of a file name on the systems that we know; also of a category's name, which reports print."""
_MOST_CLASS = 2**31 - 1
_MOST_PIXELS = 2**24
"""Of a place in a picture: up to here float32, in which boxes are matched, tells pixels apart."""
_COLUMNS = ("file", "class_index")
_CSV_REMEDY = "write one line an image: file,class_index (from 0), each file once"
_COCO_REMEDY = (
    "needed: images (id, file_name), annotations (image_id, category_id, bbox [left, top, width, height] in pixels), "
    "categories (id, name)"
)


@dataclass(frozen=True, slots=True)
class Labels:
    """What is true of a set of images, in the order in which the images are read."""

    files: tuple[str, ...]
    """Image file names as the label file writes them."""
    classes: tuple[int, ...] = ()
    """Classification: the class index of each image."""
    coco: Mapping[str, Any] | None = None
    """Detection: images, annotations and categories in COCO's words, checked, with what scoring reads and no more."""
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
    """Read a COCO JSON (`.json`), or a CSV with the columns `file` and `class_index`, or two columns without a head.

    Raises:
        InvalidFileError: If it is neither, or holds no label; the first wrong entry is named, and how many there are.
    """
    if path.suffix.lower() == ".json":
        return _read_coco(path)
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    raise InvalidFileError(f"{path} is no label file", remedy="pass a COCO JSON (.json) or a CSV of labels (.csv)")


def _read_coco(path: Path) -> Labels:
    values = read_json(path, remedy=_COCO_REMEDY, most_bytes=_MOST_BYTES)
    if missing := [one for one in _CHECKS if not isinstance(values, dict) or not isinstance(values.get(one), list)]:
        raise InvalidFileError(
            f"{path} is not COCO detection JSON: no list {', no list '.join(missing)}", remedy=_COCO_REMEDY
        )
    if empty := [one for one in _CHECKS if not values[one]]:
        raise InvalidFileError(
            f"{path} labels nothing: {' and '.join(empty)} are empty",
            remedy="pass the labels of your evaluation images",
        )
    known: dict[str, set[Any]] = {one: set() for one in _CHECKS}
    wrong: list[str] = []
    for kind, why_wrong in _CHECKS.items():
        for i, entry in enumerate(values[kind]):
            if reason := why_wrong(entry, known):
                wrong.append(f"{kind}[{i}]: {reason}")
    _require_right(path, wrong, _COCO_REMEDY)
    return Labels(
        files=tuple(image["file_name"] for image in values["images"]),
        coco={
            "images": [_only(image, "id", "file_name", "width", "height") for image in values["images"]],
            "annotations": [_annotation(i, one) for i, one in enumerate(values["annotations"])],
            "categories": [_only(one, "id", "name") for one in values["categories"]],
        },
        source=path,
    )


def _only(entry: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: entry[key] for key in keys if key in entry}


def _annotation(position: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what scoring reads.

    Boxes are numbered here: COCOeval takes number 0 for "matched nothing" and one of two equal numbers for both, and
    no number means anything outside. The area is the box's own, which selects nothing among the figures that we tell.
    """
    box = [float(value) for value in entry["bbox"]]
    numbers = {"id": position + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": int(entry.get("iscrowd", 0))}
    return {**_only(entry, "image_id", "category_id"), **numbers}


def _why_wrong_image(entry: Any, known: Mapping[str, set[Any]]) -> str:
    if reason := _why_wrong_id(entry, known["images"]):
        return reason
    if reason := _why_wrong_file(entry.get("file_name")):
        return reason
    for key in ("width", "height"):
        if key in entry and not (_is_whole(entry[key]) and entry[key] > 0):
            return f"{key} is {short(entry[key])}, no number of pixels"
    return _why_seen(("file", entry["file_name"]), known["images"], f"file_name {short(entry['file_name'])}")


def _why_wrong_category(entry: Any, known: Mapping[str, set[Any]]) -> str:
    if reason := _why_wrong_id(entry, known["categories"]):
        return reason
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > _MOST_NAME_BYTES:
        return f"name is {short(name)}, no text of 1 to {_MOST_NAME_BYTES} characters"
    return _why_seen(("name", name.lower()), known["categories"], f"name {short(name)}")


def _why_wrong_annotation(entry: Any, known: Mapping[str, set[Any]]) -> str:
    if not isinstance(entry, dict):
        return f"{short(entry)} is no object"
    for key, kind in (("image_id", "images"), ("category_id", "categories")):
        if not _is_whole(entry.get(key)) or entry[key] not in known[kind]:
            return f"{key} is {short(entry.get(key))}, the id of none of the {kind}"
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_place, box)):
        return f"bbox is {short(box)}, not four numbers"
    if min(box[2:]) < 0 or box[0] + box[2] < 0 or box[1] + box[3] < 0:
        return f"bbox is {short(box)}: left, top, width, height that lie outside every picture"
    crowd = entry.get("iscrowd", 0)
    return "" if type(crowd) in (int, bool) and crowd in (0, 1) else f"iscrowd is {short(crowd)}, not 0 or 1"


_CHECKS: Mapping[str, Callable[[Any, Mapping[str, set[Any]]], str]] = {
    "images": _why_wrong_image,
    "categories": _why_wrong_category,
    "annotations": _why_wrong_annotation,
}
"""Why an entry of each list is wrong, empty where it is right; images and categories come first and are then known."""


def _why_wrong_id(entry: Any, seen: set[Any]) -> str:
    if not isinstance(entry, dict):
        return f"{short(entry)} is no object"
    if "id" not in entry:
        return "it has no id"
    number = entry["id"]
    return _why_seen(number, seen, f"id {number}") if _is_whole(number) else f"id is {short(number)}, no whole number"


def _why_seen(value: Any, seen: set[Any], told: str) -> str:
    if value in seen:
        return f"{told} is there twice"
    seen.add(value)
    return ""


def _why_wrong_file(name: Any) -> str:
    """Return why a text names no file of a folder, or empty."""
    if not isinstance(name, str) or not name.strip():
        return f"file_name is {short(name)}, no file name"
    try:
        parts = name.encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        return f"file_name is {short(name)}, no text"
    if "\0" in name or max(map(len, parts)) > _MOST_NAME_BYTES or len(parts) > _MOST_NAME_BYTES:
        return f"file_name is {short(name)}, longer than a file name can be"
    return ""


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_place(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _MOST_PIXELS


def _require_right(path: Path, wrong: Sequence[str], remedy: str) -> None:
    if wrong:
        count = f"; {len(wrong)} entries are wrong, this is the first" if len(wrong) > 1 else ""
        raise InvalidFileError(f"{path}: {wrong[0]}{count}", remedy=remedy)


def _read_csv(path: Path) -> Labels:
    text = read_text(path, remedy=_CSV_REMEDY, most_bytes=_MOST_BYTES)
    try:
        rows = [(i + 1, row) for i, row in enumerate(csv.reader(text.splitlines(), strict=True)) if any(row)]
    except csv.Error as error:
        raise InvalidFileError(f"{path} is no CSV: {error}", remedy=_CSV_REMEDY) from error
    file, index = 0, 1
    if rows and set(_COLUMNS) <= set(head := [cell.strip().lower() for cell in rows[0][1]]):
        file, index = (head.index(column) for column in _COLUMNS)
        width, rows = len(head), rows[1:]
    else:
        width = 2
    seen: set[Any] = set()
    wrong = [f"line {i}: {reason}" for i, row in rows if (reason := _why_wrong_row(row, file, index, width, seen))]
    _require_right(path, wrong, _CSV_REMEDY)
    if not rows:
        raise InvalidFileError(f"{path} labels no image", remedy=_CSV_REMEDY)
    return Labels(
        files=tuple(row[file].strip() for _, row in rows),
        classes=tuple(int(row[index]) for _, row in rows),
        source=path,
    )


def _why_wrong_row(row: Sequence[str], file: int, index: int, width: int, seen: set[Any]) -> str:
    if len(row) != width:
        return f"{plural(len(row), 'column')} in place of {width}: {short(','.join(row))}"
    word, name = row[index].strip(), row[file].strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= _MOST_CLASS):
        return f"{short(word)} is no class index"
    return _why_wrong_file(name) or _why_seen(name, seen, f"file {short(name)}")
