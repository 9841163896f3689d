"""The truth of pictures, one file each kind of labels, read from the files that `--eval` takes.

Each ends in `FORMAT`, a `LabelFormat`. A task asks for its own kind, by its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from os.path import isdir  # unlike Path's, it is also False where nobody may look
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from edgeopt.errors import InvalidFileError, Note
from edgeopt.recipes import labels
from edgeopt.system.declared import registry
from edgeopt.system.disk.files import list_folder, require_no_pointer, require_there
from edgeopt.system.text import short

if TYPE_CHECKING:
    from edgeopt.recipes.inputs.frames import FramePart, Frames

_LOOKED = 20
"""Files of a folder that is of no kind: they may be pointers of Git LFS."""
SPLITS = ("val", "valid", "validation", "test", "eval", "dev")
"""Folders of a data set that judge; the first that is there is read."""
_MOST_NAME_BYTES = 255
"""Most name bytes of a file name on the systems that we know."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The truth of a set of pictures, in the order in which they are read; each kind adds its own."""

    files: tuple[str, ...]
    """Names of the pictures as the label file writes them."""
    source: Path = Path()
    notes: tuple[Note, ...] = field(default=(), kw_only=True)
    """Entries of the file that are left out, or read otherwise than they stand there."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold them: the source, or those in it that are named as the pictures."""
        return tuple(self.source / file for file in self.files) if isdir(self.source) else (self.source,)

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the pictures at these positions only."""
        return replace(self, files=tuple(self.files[i] for i in kept))

    def of_parts(self, parts: Sequence[FramePart]) -> Self:
        """Return the labels of windows of what is labelled, such as those of a sound.

        Args:
            parts: What each window is of.
        """
        return self.select([part.place for part in parts])

    @property
    def own_folder(self) -> Path | None:
        """The folder that the names are relative to, where the labels are found by their place in it; else None."""
        return None

    @property
    def lies_among_pictures(self) -> bool:
        """Whether a folder of labels may be that of the pictures too: masks are pictures themselves."""
        return False

    def renamed(self, files: Sequence[str]) -> Self:
        """Return the labels of the same pictures by other names, in their order."""
        return replace(self, files=tuple(files))

    def sized_in(self, folder: Path) -> Self:
        """Return the labels in pixels of the pictures in their folder: some kinds know fractions of them only.

        Raises:
            InvalidFileError: If a picture does not decode.
        """
        del folder
        return self

    def named_in(self, folder: Path) -> Self:
        """Return the labels with the pictures' names as this folder has them: some kinds know no more than a stem."""
        del folder
        return self

    @property
    def groups(self) -> tuple[int, ...]:
        """Which pictures are alike because they follow each other, by a number each; empty: none are."""
        return ()

    @property
    def texts(self) -> tuple[str, ...] | None:
        """The texts themselves, where the file of labels holds what is asked; None: it names files."""
        return None

    def check(self, pictures: Frames) -> tuple[Note, ...]:
        """Return what is odd about these labels on their pictures.

        Args:
            pictures: One for each of `files`, in the same order.

        Raises:
            InvalidFileError: If they cannot be labels of these pictures.
        """
        del pictures
        return ()

    def check_classes(self, class_names: Sequence[str]) -> tuple[Note, ...]:
        """Return what of these labels a model of these classes cannot be judged by."""
        del class_names
        return ()


@dataclass(frozen=True, slots=True)
class LabelFormat:
    """One kind of label file, or folder."""

    told: str
    """Like `a CSV of labels (.csv)`."""
    reads: Callable[[Path], bool]
    """Whether a path is of this kind, by its name or as a folder."""
    read: Callable[[Path], Labels]
    """Raises InvalidFileError where it holds something else; the first wrong entry is named, and their number."""


def read_labels(path: Path) -> Labels:
    """Read a label file of any kind.

    Raises:
        InvalidFileError: If it is of no kind, or holds no labels.
    """
    formats: list[LabelFormat] = [registry.load(labels, name).FORMAT for name in registry.names(labels)]
    remedy = f"with --eval pass {', '.join(format_.told for format_ in formats[:-1])} or {formats[-1].told}"
    for label_format in formats:
        if label_format.reads(path):
            require_there(path, remedy=remedy)
            return label_format.read(path)
    for file in [path] if not isdir(path) else [path / name for name in list_folder(path, remedy=remedy)[:_LOOKED]]:
        require_no_pointer(file)
    raise InvalidFileError(f"{path} {'holds no labels' if isdir(path) else 'is no label file'}", remedy=remedy)


def is_file_like(path: Path, suffix: str) -> bool:
    """Return whether a path is no folder and ends in this suffix, however it is written."""
    return path.suffix.lower() == suffix and not isdir(path)


def why_wrong_file(name: Any) -> str:
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


def why_seen(value: Any, seen: set[Any], text: str) -> str:
    """Return that a value is there twice, or empty; it is seen from now on."""
    if value in seen:
        return f"{text} is there twice"
    seen.add(value)
    return ""


def require_right(path: Path, wrong: Sequence[str], remedy: str) -> None:
    """Raise where entries are wrong: the first is named, and how many there are.

    Raises:
        InvalidFileError: If so.
    """
    if wrong:
        count = f"; {len(wrong)} entries are wrong, this is the first" if len(wrong) > 1 else ""
        raise InvalidFileError(f"{path}: {wrong[0]}{count}", remedy=remedy)
