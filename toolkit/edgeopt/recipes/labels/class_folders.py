"""One class a file: a folder for each class, such as those of Speech Commands and ImageNet."""

from __future__ import annotations

from os.path import isdir, isfile
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import LabelFormat
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.system.files import list_folder

_SUFFIXES = frozenset({".wav", ".wave"})
_REMEDY = "put the files of each class into a folder named as the class"


def _folders(path: Path) -> list[str]:
    return [
        name
        for name in list_folder(path, remedy=_REMEDY)
        if isdir(path / name) and not name.startswith((".", "_")) and _files(path / name)
    ]


def _files(folder: Path) -> list[str]:
    names = list_folder(folder, remedy=_REMEDY)
    return [name for name in names if Path(name).suffix.lower() in _SUFFIXES and isfile(folder / name)]


def read_class_folders(path: Path) -> ClassLabels:
    """Return the class of each sound by its folder; classes count from 0 in the order of their names.

    Raises:
        InvalidFileError: If there are fewer than two.
    """
    names = sorted(_folders(path))
    if len(names) < 2:
        raise InvalidFileError(f"{path} has one folder with sounds", remedy=_REMEDY)
    files = [(f"{name}/{file}", place) for place, name in enumerate(names) for file in sorted(_files(path / name))]
    return ClassLabels(
        files=tuple(file for file, _ in files),
        source=path,
        classes=tuple(place for _, place in files),
        names=tuple(names),
    )


def _holds_classes(path: Path) -> bool:
    return isdir(path) and bool(_folders(path))


FORMAT = LabelFormat("a folder with a folder of sounds for each class", _holds_classes, read_class_folders)
