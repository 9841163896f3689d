"""Boxes as Pascal VOC has them: an XML for each picture, as LabelImg and CVAT write it.

Source: Everingham et al., "The PASCAL VOC Challenge 2012 Development Kit": pixels count from 1, `difficult` things are
neither to be found nor wrong.
"""

from __future__ import annotations

from os.path import isdir
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.labels import LabelFormat, require_right
from edgeopt.recipes.labels._files_of_boxes import FiledBoxes, annotation
from edgeopt.system.disk.files import list_folder, read_text
from edgeopt.system.text import plural, short

_MOST_BYTES = 1 << 24
_MOST_PIXELS = 2**24
_MOST_NAME = 255
_MOST_WRONG = 0.5
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_REMEDY = "write <annotation> with an <object> for each thing: <name> and <bndbox> of xmin, ymin, xmax, ymax in pixels"


def read_voc(path: Path) -> FiledBoxes:
    """Read a folder of XML files.

    Raises:
        InvalidFileError: If one is no annotation, or most objects are wrong: the first is named.
    """
    things, wrong = dict[str, list[tuple[str, list[float], bool]]](), list[str]()
    for name in _files(path):
        things[Path(name).stem] = kept = list[tuple[str, list[float], bool]]()
        for i, one in enumerate(_root(path / name).iter("object")):
            if isinstance(thing := _thing(one), str):
                wrong.append(f"{name} object {i + 1}: {thing}")
            else:
                kept.append(thing)
    count = len(wrong) + sum(map(len, things.values()))
    if not count:
        raise InvalidFileError(f"{path} labels nothing", remedy=_REMEDY)
    if len(wrong) > _MOST_WRONG * count:
        require_right(path, wrong, _REMEDY)
    notes = []
    if wrong:
        text = f"{path}: {len(wrong)} of {plural(count, 'object')} left out, the first {wrong[0]}"
        notes.append(Note(NoteKind.WARNING, text, "mend them, or judge without them"))
    names = sorted({name for kept in things.values() for name, _, _ in kept})
    numbers = {name: i for i, name in enumerate(names, 1)}
    held = {
        stem: [annotation(numbers[name], box, is_crowd=is_difficult) for name, box, is_difficult in kept]
        for stem, kept in things.items()
    }
    coco: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": i, "name": name} for name, i in numbers.items()],
    }
    return FiledBoxes(files=tuple(held), source=path, coco=coco, held=held, notes=tuple(notes)).of_pictures([*held])


def _files(path: Path) -> list[str]:
    return [name for name in list_folder(path, remedy=_REMEDY) if name.lower().endswith(".xml")]


def _root(file: Path) -> ElementTree.Element:
    text = read_text(file, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    if "<!ENTITY" in text:
        raise InvalidFileError(f"{file} declares entities, which no annotation needs", remedy=_REMEDY)
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InvalidFileError(f"{file} is no XML: {error}", remedy=_REMEDY) from error


def _thing(entry: ElementTree.Element) -> tuple[str, list[float], bool] | str:
    """Return class, box (left, top, width, height) and whether it is difficult; or why it is none."""
    name = (entry.findtext("name") or "").strip()
    if not name or len(name) > _MOST_NAME:
        return f"name is {short(name)}"
    texts = [entry.findtext(f"bndbox/{corner}") for corner in _CORNERS]
    try:
        left, top, right, bottom = (float(text or "") for text in texts)
    except ValueError:
        return f"bndbox is {short(str(texts))}, not four numbers"
    if not all(abs(number) <= _MOST_PIXELS for number in (left, top, right, bottom)):
        return f"bndbox is {short(str(texts))}, no pixels"
    if right < left or bottom < top or right < 0 or bottom < 0:
        return f"bndbox is {short(str(texts))}: xmin, ymin, xmax, ymax that lie outside every picture"
    left, top = max(left - 1, 0.0), max(top - 1, 0.0)
    return name, [left, top, right - left, bottom - top], (entry.findtext("difficult") or "").strip() == "1"


def holds_voc(path: Path) -> bool:
    """Return whether a folder holds XML files, or the annotations of a data set do."""
    return isdir(path) and bool(_files(_annotations(path)))


def _annotations(path: Path) -> Path:
    inner = path / "Annotations"
    return inner if isdir(inner) and not _files(path) else path


FORMAT = LabelFormat("a folder of Pascal VOC (.xml)", holds_voc, lambda path: read_voc(_annotations(path)))
