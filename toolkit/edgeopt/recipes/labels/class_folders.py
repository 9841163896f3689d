"""One class a file: a folder for each class, as ImageNet has them and Speech Commands, or those of a split."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.inputs.pictures import is_picture, pictures_of
from edgeopt.recipes.labels import SPLITS, LabelFormat
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.system.disk.files import list_folder

_SUFFIXES = frozenset({".wav", ".wave"})
_REMEDY = "put the files of each class into a folder named as the class"
_TRAINED = frozenset({"train", "training"})
_NO_CLASSES = frozenset({"images", "masks", "labels", "annotations", "jpegimages", "segmentationclass", "imgs"})
"""Folders that hold parts of a data set, not a class each."""


@dataclass(frozen=True, slots=True)
class FolderLabels(ClassLabels):
    """The class of each file, by its folder."""

    @property
    def own_folder(self) -> Path | None:
        """The folder of the classes."""
        return self.source


def _folders(path: Path) -> dict[str, list[str]]:
    """Return the files of each class by its folder's name."""
    held = {}
    for name in list_folder(path, remedy=_REMEDY):
        is_class = isdir(path / name) and not name.startswith((".", "_")) and name.lower() not in _NO_CLASSES
        if is_class and (files := _files(path / name)):
            held[name] = files
    return held


def _files(folder: Path) -> list[str]:
    """Return the sounds of a folder, else its pictures."""
    names = list_folder(folder, remedy=_REMEDY)
    sounds = [name for name in names if Path(name).suffix.lower() in _SUFFIXES and isfile(folder / name)]
    return sounds or [name for name in names if isfile(folder / name) and is_picture(folder / name)]


def _split(path: Path) -> Path | None:
    """Return the folder of a split that judges, where class folders lie in it and none in the folder itself."""
    names = {name.lower(): name for name in list_folder(path, remedy=_REMEDY) if isdir(path / name)}
    splits = (path / names[split] for split in SPLITS if split in names)
    return next((split for split in splits if _folders(split)), None)


def read_class_folders(path: Path) -> FolderLabels:
    """Return the class of each file by its folder; classes count from 0 in the order of their names.

    Raises:
        InvalidFileError: If there are fewer than two.
    """
    notes = list[Note]()
    folder, held = path, _folders(path)
    if not held and (split := _split(path)) is not None:
        folder, held = split, _folders(split)
        notes.append(Note(NoteKind.INFO, f"{path} holds several sets: {split.name} is read"))
    if len(held) < 2:
        raise InvalidFileError(f"{folder} has one folder with files of a class", remedy=_REMEDY)
    for name in held:
        notes += pictures_of(folder / name, list_folder(folder / name, remedy=_REMEDY))[1]
    names = sorted(held)
    files = [(f"{name}/{file}", place) for place, name in enumerate(names) for file in sorted(held[name])]
    return FolderLabels(
        files=tuple(file for file, _ in files),
        source=folder,
        classes=tuple(place for _, place in files),
        names=tuple(names),
        notes=tuple(notes),
    )


def _holds_classes(path: Path) -> bool:
    if not isdir(path):
        return False
    held = _folders(path)
    is_data_set = bool(held) and {name.lower() for name in held} <= _TRAINED | {*SPLITS}
    return not is_data_set and (bool(held) or _split(path) is not None)


FORMAT = LabelFormat("class folders", _holds_classes, read_class_folders)
