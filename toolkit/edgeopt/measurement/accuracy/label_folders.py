"""Where the pictures or sounds of labels lie: beside the labels, in folders named after them, or as the names say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from os.path import isdir, isfile  # unlike Path's, they are also True or False where nobody may look
from pathlib import Path, PurePosixPath

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.inputs.frames import find_kind
from edgeopt.recipes.inputs.pictures import PICTURES
from edgeopt.recipes.labels import Labels
from edgeopt.system.disk.files import list_folder
from edgeopt.system.text import short

_LOOKED = 200
"""Names that are looked for in each place, spread over all: where most of them lie, all are."""


def beside_pictures(path: Path, labels: Labels) -> tuple[Path, Labels]:
    """Return the folder of the pictures, and the labels with their names in it.

    Args:
        path: Of the labels.
        labels: As they were read.

    Raises:
        InvalidFileError: If nothing of what they name is anywhere.
    """
    if labels.own_folder is not None:
        return labels.own_folder, labels
    places = list(_places(path, labels))
    for shown in (labels, *_shortened(labels)):
        result = [(place, shown.named_in(place)) for place in places]
        counts = [_count(place, named.files) for place, named in result]
        if any(counts):
            return result[counts.index(max(counts))]
    for place in places:
        named = _by_stem(place, labels)
        if _count(place, named.files):
            return place, named
    folders = list(dict.fromkeys(places))
    for folder in folders:
        list_folder(folder, remedy="correct its permissions")
    looked = ", ".join(map(str, folders))
    what = "sound" if Path(labels.files[0]).suffix.lower() in find_kind("sound").suffixes else "picture"
    raise InvalidFileError(
        f"the labels in {path} match no {what} (looked for {short(labels.files[0])} in {looked})",
        remedy=f"put the label file beside its {what}s, or beside a folder named images",
    )


def _places(path: Path, labels: Labels) -> Iterator[Path]:
    """Yield the folders in which pictures of labels may lie, the likeliest first.

    `instances_val.json` has them in `val/` or `images/val/`, `annotations/val.json` beside `annotations/`, `masks/val/`
    and `labels/val/` in `images/val/`, `val/labels/` in `val/images/`, and `SegmentationClass/` in `JPEGImages/`.
    """
    words = [path.stem, *path.stem.replace("-", "_").split("_")]
    places = [path] if labels.lies_among_pictures else []
    for base in (path.parent, path.parent.parent):
        places += [base, base / "images", *(base / word for word in words), base / "JPEGImages"]
        places += [base / "images" / word for word in words]
    yield from (
        other for other in dict.fromkeys(places) if isdir(other) and (other != path or labels.lies_among_pictures)
    )


def _count(place: Path, files: Sequence[str]) -> int:
    """Return how many of these names are files there: of many names a part, and all where nothing of it is."""
    step = max(len(files) // _LOOKED, 1)
    count = sum(isfile(place / file) for file in files[::step])
    return count or (sum(isfile(place / file) for file in files) if step > 1 else 0)


def _by_stem(place: Path, labels: Labels) -> Labels:
    """Return the labels by the names of a folder that are theirs but for the suffix, where no two have the same."""
    names = {Path(name).stem: name for name in list_folder(place, remedy="correct its permissions") if _is_sample(name)}
    stems = [Path(file).stem if _is_sample(file) else file for file in labels.files]
    files = tuple(names.get(stem, file) for stem, file in zip(stems, labels.files, strict=True))
    changed = [(new, file) for new, file in zip(files, labels.files, strict=True) if new != file]
    if not changed or len(set(files)) < len(files):
        return labels
    text = f"{labels.source}: suffixes are left aside: {short(changed[0][0])} for {short(changed[0][1])}"
    return replace(labels.renamed(files), notes=(*labels.notes, Note(NoteKind.INFO, text)))


def _is_sample(name: str) -> bool:
    return Path(name).suffix.lower() in PICTURES | find_kind("sound").suffixes


def _shortened(labels: Labels) -> Iterator[Labels]:
    """Yield the labels with one folder less before each name, then two, as of another machine's paths."""
    parts = [PurePosixPath(file.replace("\\", "/")).parts for file in labels.files]
    for dropped in range(max(map(len, parts), default=0)):
        files = tuple("/".join(part[min(dropped, len(part) - 1) :]) for part in parts)
        if len(set(files)) == len(files) and files != labels.files:
            text = f"{labels.source}: pictures are looked for as {short(files[0])}, not {short(labels.files[0])}"
            yield replace(labels.renamed(files), notes=(*labels.notes, Note(NoteKind.INFO, text)))
