"""Boxes in a file for each picture: what a folder of YOLO's texts and one of VOC's XML have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from edgeopt.errors import Note, NoteKind
from edgeopt.recipes.inputs.pictures import PICTURES
from edgeopt.recipes.labels.boxes import BoxLabels
from edgeopt.system.disk.files import list_folder
from edgeopt.system.text import plural

_SUFFIXES = frozenset({".txt", ".xml"})


@dataclass(frozen=True, slots=True)
class FiledBoxes(BoxLabels):
    """Boxes of pictures that are named as the files which hold them."""

    held: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """The annotations of each file, by its stem, in COCO's words without `image_id`."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of boxes."""
        names = list_folder(self.source, remedy="correct its permissions")
        return tuple(self.source / name for name in names if Path(name).suffix.lower() in _SUFFIXES)

    @property
    def lies_among_pictures(self) -> bool:
        """Whether labels may lie beside their pictures."""
        return True

    def named_in(self, folder: Path) -> Self:
        """Return the labels with the pictures of a folder whose stems are known, and those that have no file of boxes.

        On those nothing is to be found, as for the training.
        """
        pictures: dict[str, str] = {}
        for name in list_folder(folder, remedy="correct its permissions"):
            if Path(name).suffix.lower() in PICTURES:
                pictures.setdefault(Path(name).stem, name)
        if not pictures.keys() & self.held.keys():
            return self
        empty = len(pictures.keys() - self.held.keys())
        files = (*pictures.values(), *(stem for stem in self.held if stem not in pictures))
        text = f"{plural(empty, 'picture')} in {folder} without a file in {self.source}: nothing is to be found there"
        note = Note(NoteKind.WARNING, text)
        return replace(self.of_pictures(files), notes=(*self.notes, *((note,) if empty else ())))

    def of_pictures(self, files: Sequence[str]) -> Self:
        """Return the labels of these pictures, numbered in their order."""
        images = [{"id": i, "file_name": file} for i, file in enumerate(files, 1)]
        stems = [Path(file).stem for file in files]
        boxes = [{**one, "image_id": i} for i, stem in enumerate(stems, 1) for one in self.held.get(stem, ())]
        boxes = [{**box, "id": i} for i, box in enumerate(boxes, 1)]
        beside = [{key: box[key] for key in ("segmentation",) if key in box} for box in boxes]
        annotations = [{key: value for key, value in box.items() if key != "segmentation"} for box in boxes]
        coco = {**self.coco, "images": images, "annotations": annotations}
        return replace(self, files=tuple(files), coco=coco, beside=beside)


def annotation(category: int, box: Sequence[float], *, is_crowd: bool = False) -> dict[str, Any]:
    """Return one box in COCO's words, which belongs to no picture yet.

    Args:
        category: Its id.
        box: Left, top, width, height.
        is_crowd: Whether it is neither to be found nor wrong.
    """
    left, top, width, height = map(float, box)
    numbers = {"bbox": [left, top, width, height], "area": width * height, "iscrowd": int(is_crowd)}
    return {"category_id": category, **numbers}
