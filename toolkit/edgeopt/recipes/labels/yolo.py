"""Boxes as YOLO's trainings take them: a text for each picture, a class and four fractions of it on each line.

Source: Ultralytics, "Object Detection Datasets Overview": class, centre x, centre y, width, height; an outline is a
class and x, y of its points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, Self

from edgeopt.errors import Note, NoteKind
from edgeopt.recipes.inputs.pictures import read_picture
from edgeopt.recipes.labels import SPLITS, LabelFormat, require_right
from edgeopt.recipes.labels._files_of_boxes import FiledBoxes, annotation
from edgeopt.system.disk.files import list_folder, read_text
from edgeopt.system.text import plural, short

_NAMES = ("classes.txt", "obj.names", "labels.txt", "_darknet.labels")
"""Files of class names, one a line, as LabelImg, Darknet and Roboflow write them; they are no labels."""
_MOST_BYTES = 1 << 24
_MOST_CLASS = 1 << 20
_LOOKED = 20
"""Files of a folder that tell whether it holds such labels."""
_SLACK = 0.01
"""How far over the border a fraction may be: trainings round."""
_MOST_WRONG = 0.5
_LEAST_OUTLINE = 7
"""Numbers of a line: a class and three points."""
_REMEDY = "write class, centre x, centre y, width and height on a line, the last four as fractions of the picture"


@dataclass(frozen=True, slots=True)
class YoloLabels(FiledBoxes):
    """Boxes in fractions of pictures, until `sized_in` knows the pictures."""

    def sized_in(self, folder: Path) -> Self:
        """Return the labels in pixels of their pictures.

        Raises:
            InvalidFileError: If a picture does not decode.
        """
        images = [value for value in self.coco["images"] if value["file_name"] in set(self.files)]
        sizes = {image["id"]: read_picture(folder / image["file_name"]).shape[1::-1] for image in images}
        pairs = list(zip(self.coco["annotations"], self.beside, strict=True))
        pairs = [(box, more) for box, more in pairs if box["image_id"] in sizes]
        boxes = [_in_pixels(box, *sizes[box["image_id"]]) for box, _ in pairs]
        beside = [_outline_in_pixels(more, *sizes[box["image_id"]]) for box, more in pairs]
        images = [{**image, "width": sizes[image["id"]][0], "height": sizes[image["id"]][1]} for image in images]
        return replace(self, coco={**self.coco, "images": images, "annotations": boxes}, beside=beside)

    def categories_of(self, class_names: Sequence[str]) -> dict[int, int]:
        """Return the category id of each class index: by name where the folder has names, else the class itself."""
        numbers = [int(value["id"]) for value in self.coco["categories"]]
        if self.coco["categories"] and not str(self.coco["categories"][0]["name"]).isdigit() and class_names:
            return super(YoloLabels, self).categories_of(class_names)
        return {number: number for number in numbers if not class_names or number < len(class_names)}

    def check_classes(self, class_names: Sequence[str]) -> tuple[Note, ...]:
        """Return a warning of classes that the model does not have."""
        if not class_names:
            return ()
        return super(YoloLabels, self).check_classes(class_names)


def _in_pixels(box: dict[str, Any], width: int, height: int) -> dict[str, Any]:
    left, top, across, down = box["bbox"]
    size = [left * width, top * height, across * width, down * height]
    return {**box, "bbox": size, "area": size[2] * size[3]}


def _outline_in_pixels(more: Mapping[str, Any], width: int, height: int) -> Mapping[str, Any]:
    outlines = more.get("segmentation")
    if not outlines:
        return more
    return {"segmentation": [[value * (height if i % 2 else width) for i, value in enumerate(outlines[0])]]}


def read_yolo(path: Path) -> YoloLabels:
    """Read a folder of texts.

    Raises:
        InvalidFileError: If most of their lines are no boxes; the first one is named, and how many there are.
    """
    held, wrong, count = dict[str, list[dict[str, Any]]](), list[str](), 0
    for name in _texts(path):
        lines = read_text(path / name, remedy=_REMEDY, most_bytes=_MOST_BYTES).splitlines()
        held[Path(name).stem] = boxes = list[dict[str, Any]]()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            count += 1
            if isinstance(found := _box(line.split()), str):
                wrong.append(f"{name} line {number}: {found}")
            else:
                boxes.append(found)
    if len(wrong) > _MOST_WRONG * count:
        require_right(path, wrong, _REMEDY)
    used = {int(box["category_id"]) for boxes in held.values() for box in boxes}
    names = _class_names(path)
    names = [*names, *map(str, range(len(names), max(used, default=-1) + 1))]
    notes = []
    if wrong:
        text = f"{path}: {len(wrong)} of {plural(count, 'line')} left out, the first {wrong[0]}"
        notes.append(Note(NoteKind.WARNING, text, "mend them, or judge without them"))
    categories = [{"id": i, "name": name} for i, name in enumerate(names)]
    coco = {"images": [], "annotations": [], "categories": categories}
    return YoloLabels(files=tuple(held), source=path, coco=coco, held=held, notes=tuple(notes)).of_pictures([*held])


def _texts(path: Path) -> list[str]:
    names = list_folder(path, remedy=_REMEDY)
    return [name for name in names if name.lower().endswith(".txt") and name not in _NAMES and isfile(path / name)]


def _class_names(path: Path) -> list[str]:
    for file in (folder / name for folder in (path, path.parent) for name in _NAMES):
        if isfile(file):
            text = read_text(file, remedy="one class name a line, UTF-8", most_bytes=_MOST_BYTES)
            return [line.strip() for line in text.splitlines() if line.strip()]
    return []


def _box(words: Sequence[str]) -> dict[str, Any] | str:
    """Return the box of a line in fractions, or why it is none."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        return f"{short(' '.join(words))} are no numbers"
    if len(values) < 5 or values[0] != int(values[0]) or not 0 <= values[0] <= _MOST_CLASS:
        return f"{short(' '.join(words))} is no class and box"
    category, outline = int(values[0]), []
    if len(values) >= _LEAST_OUTLINE and len(values) % 2:
        outline = values[1:]
        across, down = outline[::2], outline[1::2]
        box = [min(across), min(down), max(across) - min(across), max(down) - min(down)]
    else:  # behind the box a score, or points of a pose
        x, y, width, height = values[1:5]
        box = [x - width / 2, y - height / 2, width, height]
    if min(box[2:]) < 0 or not all(-_SLACK - 0.5 <= number <= 1 + _SLACK + 0.5 for number in box):
        return f"{short(' '.join(words))} lies outside of the picture, or is no fraction of it"
    return annotation(category, box) | ({"segmentation": [outline]} if outline else {})


def holds_yolo(path: Path) -> bool:
    """Return whether a folder holds such texts, or the labels of a data set do."""
    return isdir(path) and _labels(path) is not None


def _labels(path: Path) -> Path | None:
    """Return the folder of the texts: this one, its `labels/`, or those of the split that judges."""
    inner = [path / "labels" / split for split in SPLITS] + [path / split / "labels" for split in SPLITS]
    return next((other for other in (path, path / "labels", *inner) if isdir(other) and _is_of_boxes(other)), None)


def _is_of_boxes(path: Path) -> bool:
    """Return whether the texts of a folder hold lines of a class and fractions."""
    for name in _texts(path)[:_LOOKED]:
        words = next((line.split() for line in _first_lines(path / name) if line.strip()), [])
        if words:
            return len(words) >= 5 and words[0].isdigit()
    return False


def _first_lines(file: Path) -> list[str]:
    with file.open("rb") as opened:
        return opened.read(4096).decode("utf-8-sig", "replace").splitlines()


FORMAT = LabelFormat("a folder of YOLO's boxes (.txt)", holds_yolo, lambda path: read_yolo(_labels(path) or path))
