"""Boxes with classes, and what else COCO knows of a thing, its keypoints and its outline: COCO JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right, why_seen, why_wrong_file
from edgeopt.recipes.labels._places import check_places
from edgeopt.system.text import plural, short
from edgeopt.system.toml import read_json

if TYPE_CHECKING:
    from edgeopt.recipes.inputs.frames import Frames

_MOST_BYTES = 1 << 30
"""All of COCO's training labels have 448 MiB."""
_MOST_NAME_BYTES = 255
"""Most name bytes of a category's name, which reports print."""
_ROBOFLOW = "_annotations.coco.json"
"""File of labels among the pictures of a split."""
_NAMED = 5
"""Categories in a warning."""
_MOST_WRONG = 0.5
"""Share of the annotations that may be left out."""
_MOST_PIXELS = 2**24
"""Most pixels of a place in a picture: up to here float32, in which boxes are matched, tells pixels apart."""
_REMEDY = (
    "needed: images (id, file_name), annotations (image_id, category_id, bbox [left, top, width, height] in pixels), "
    "categories (id, name)"
)


@dataclass(frozen=True, slots=True)
class BoxLabels(Labels):
    """Boxes on pictures."""

    coco: Mapping[str, Any] = field(default_factory=dict)
    """Images, annotations and categories in COCO's words, checked, with what scoring of boxes reads and no more."""
    beside: Sequence[Mapping[str, Any]] = ()
    """For each annotation what the file tells beside its box: `keypoints`, `segmentation`, `area`.

    Unchecked: a task that reads them does it, as a detector's labels may hold there what they like.
    """

    def check(self, pictures: Frames) -> tuple[Note, ...]:
        """Return what is odd about the places of the boxes.

        Raises:
            InvalidFileError: If no box is on these pictures, or most of them leave their picture.
        """
        return check_places(self.source, self.files, self.coco, pictures)

    def renamed(self, files: Sequence[str]) -> Self:
        """Return the labels of the same pictures by other names, in their order."""
        names = dict(zip(self.files, files, strict=True))
        images = [{**value, "file_name": names[value["file_name"]]} for value in self.coco["images"]]
        return replace(self, files=tuple(files), coco={**self.coco, "images": images})

    def categories_of(self, class_names: Sequence[str]) -> dict[int, int]:
        """Return the category id of each class index: by name, or by order where no name is known."""
        by_name = {str(value["name"]).lower(): int(value["id"]) for value in self.coco["categories"]}
        if not class_names:
            return dict(enumerate(sorted(by_name.values())))
        return {i: by_name[name.lower()] for i, name in enumerate(class_names) if name.lower() in by_name}

    def check_classes(self, class_names: Sequence[str]) -> tuple[Note, ...]:
        """Return a warning of categories that are no class of the model, and of the boxes that are left out so.

        Without names the note tells which category each class is taken for.
        """
        if not class_names:
            return (self._by_order(),)
        known = set(self.categories_of(class_names).values())
        others = {
            int(value["id"]): str(value["name"]) for value in self.coco["categories"] if int(value["id"]) not in known
        }
        left = [value for value in self.coco["annotations"] if int(value["category_id"]) in others]
        if not known or not left:
            return ()
        names = [others[number] for number in sorted({int(value["category_id"]) for value in left})]
        text = f"{', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}"
        which = "is no class" if len(names) == 1 else "are no classes"
        count = f"{len(left)} of {plural(len(self.coco['annotations']), 'label')} left out"
        remedy = "give labels and recipe the same class names"
        return (Note(NoteKind.WARNING, f"{text} {which} of the recipe: {count}", remedy),)

    def _by_order(self) -> Note:
        names = {int(value["id"]): str(value["name"]) for value in self.coco["categories"]}
        parts = [f"{i} {names[number]}" for i, number in self.categories_of(()).items()]
        labelled = {int(value["category_id"]) for value in self.coco["annotations"]}
        empty = [name for number, name in sorted(names.items()) if number not in labelled]
        detail = f"the recipe names no classes, so they are the categories in their order: {', '.join(parts[:_NAMED])}"
        detail += ", ..." if len(parts) > _NAMED else ""
        detail += f"; {empty[0]} has no label" if empty else ""
        kind = NoteKind.WARNING if empty else NoteKind.INFO
        return Note(kind, detail, 'write labels = "labels.txt", one name a line, into the recipe')


def read_boxes(path: Path) -> BoxLabels:
    """Read a COCO JSON.

    Raises:
        InvalidFileError: If it is none; the first wrong entry is named, and how many there are.
    """
    return boxes_of(read_json(path, remedy=_REMEDY, most_bytes=_MOST_BYTES), path)


def boxes_of(values: Any, path: Path) -> BoxLabels:
    """Return the labels in a table in COCO's words.

    Args:
        values: As it was read: images, annotations and categories.
        path: From where, for messages.

    Raises:
        InvalidFileError: If it is none; the first wrong entry is named, and how many there are.
    """
    if missing := [
        check for check in _CHECKS if not isinstance(values, dict) or not isinstance(values.get(check), list)
    ]:
        raise InvalidFileError(
            f"{path} is not COCO detection JSON: no list {', no list '.join(missing)}", remedy=_REMEDY
        )
    if empty := [check for check in _CHECKS if not values[check]]:
        raise InvalidFileError(
            f"{path} labels nothing: {' and '.join(empty)} are empty",
            remedy="pass the labels of your evaluation images",
        )
    parents = _parents(values)
    known: dict[str, set[Any]] = {check: set() for check in _CHECKS}
    wrong: dict[str, dict[int, str]] = {}
    for kind, why_wrong in _CHECKS.items():
        skipped = parents if kind == "categories" else {}
        reasons = ((i, why_wrong(value, known)) for i, value in enumerate(values[kind]) if i not in skipped)
        wrong[kind] = {i: reason for i, reason in reasons if reason}
    if any(wrong[one] for one in ("images", "categories")) or _are_most(wrong["annotations"], values["annotations"]):
        require_right(path, [f"{kind}[{i}]: {why}" for kind in _CHECKS for i, why in wrong[kind].items()], _REMEDY)
    left_out = wrong["annotations"]
    kept = [value for i, value in enumerate(values["annotations"]) if i not in left_out]
    notes = [_left_out(path, left_out, len(values["annotations"]))] if left_out else []
    if parents:
        detail = f"{path}: category {', '.join(parents.values())} is the parent of others and labels nothing: left out"
        notes.append(Note(NoteKind.INFO, detail))
    return BoxLabels(
        files=tuple(image["file_name"] for image in values["images"]),
        coco={
            "images": [_only(image, "id", "file_name", "width", "height") for image in values["images"]],
            "annotations": [_annotation(i, entry) for i, entry in enumerate(kept)],
            "categories": [
                _only(value, "id", "name") for i, value in enumerate(values["categories"]) if i not in parents
            ],
        },
        beside=[_only(entry, "keypoints", "segmentation", "area") for entry in kept],
        source=path,
        notes=tuple(notes),
    )


def _are_most(wrong: Mapping[int, str], entries: Sequence[Any]) -> bool:
    """Return whether so many entries are wrong that the file means something else by them."""
    return len(wrong) > _MOST_WRONG * len(entries)


def _left_out(path: Path, left_out: Mapping[int, str], count: int) -> Note:
    first = min(left_out)
    detail = f"{path}: {len(left_out)} of {plural(count, 'annotation')} left out, the first annotations[{first}]: "
    return Note(NoteKind.WARNING, detail + left_out[first], "mend them, or judge without them")


def _parents(values: Mapping[str, Any]) -> dict[int, str]:
    """Return place and name of each category that no annotation uses and that only stands above others.

    Roboflow writes one in front of the classes, sometimes with the name of one of them.
    """
    entries = {i: value for i, value in enumerate(values["categories"]) if isinstance(value, dict)}
    used = {value.get("category_id") for value in values["annotations"] if _has_category(value)}
    result = dict[int, str]()
    for i, entry in entries.items():
        name, above = entry.get("name"), entry.get("supercategory")
        is_root = above in (None, "", "none", name)
        is_unused = isinstance(name, str) and _is_whole(entry.get("id")) and entry["id"] not in used
        is_above = any(j != i and other.get("supercategory") == name for j, other in entries.items())
        if is_root and is_unused and is_above:
            result[i] = str(name)
    return result if len(result) < len(entries) else {}


def _has_category(entry: Any) -> bool:
    return isinstance(entry, dict) and _is_whole(entry.get("category_id"))


def _box_of(entry: Mapping[str, Any]) -> Any:
    """Return an annotation's box; where it has none and outlines of polygons, the one around them."""
    box, outlines = entry.get("bbox"), entry.get("segmentation")
    if box not in (None, []) or not isinstance(outlines, list) or not outlines:
        return box
    if not all(
        isinstance(outline, list) and len(outline) >= 6 and all(map(_is_place, outline)) for outline in outlines
    ):
        return box
    across, down = ([value for outline in outlines for value in outline[axis::2]] for axis in (0, 1))
    return [min(across), min(down), max(across) - min(across), max(down) - min(down)]


def _only(entry: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: entry[key] for key in keys if key in entry}


def _annotation(position: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what scoring reads.

    Boxes are numbered here: COCOeval takes number 0 for "matched nothing" and one of two equal numbers for both, and
    no number means anything outside. The area is the box's own, which selects nothing among the figures that we tell.
    """
    box = [float(value) for value in _box_of(entry)]
    numbers = {"id": position + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": int(entry.get("iscrowd", 0))}
    return {**_only(entry, "image_id", "category_id"), **numbers}


def _why_wrong_image(entry: Any, known: Mapping[str, set[Any]]) -> str:
    if reason := _why_wrong_id(entry, known["images"]):
        return reason
    if reason := why_wrong_file(entry.get("file_name")):
        return reason
    for key in ("width", "height"):
        if key in entry and not (_is_whole(entry[key]) and entry[key] > 0):
            return f"{key} is {short(entry[key])}, no number of pixels"
    return why_seen(("file", entry["file_name"]), known["images"], f"file_name {short(entry['file_name'])}")


def _why_wrong_category(entry: Any, known: Mapping[str, set[Any]]) -> str:
    if reason := _why_wrong_id(entry, known["categories"]):
        return reason
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > _MOST_NAME_BYTES:
        return f"name is {short(name)}, no text of 1 to {_MOST_NAME_BYTES} characters"
    return why_seen(("name", name.lower()), known["categories"], f"name {short(name)}")


def _why_wrong_annotation(entry: Any, known: Mapping[str, set[Any]]) -> str:
    if not isinstance(entry, dict):
        return f"{short(entry)} is no object"
    for key, kind in (("image_id", "images"), ("category_id", "categories")):
        if not _is_whole(entry.get(key)) or entry[key] not in known[kind]:
            return f"{key} is {short(entry.get(key))}, the id of none of the {kind}"
    box = _box_of(entry)
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
    return why_seen(number, seen, f"id {number}") if _is_whole(number) else f"id is {short(number)}, no whole number"


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_place(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _MOST_PIXELS


def _file_of(path: Path) -> Path:
    """Return the file of a folder that Roboflow wrote; of another path itself."""
    return path / _ROBOFLOW if isfile(path / _ROBOFLOW) else path


FORMAT = LabelFormat(
    "a COCO JSON (.json)",
    lambda path: is_file_like(_file_of(path), ".json"),
    lambda path: read_boxes(_file_of(path)),
)
