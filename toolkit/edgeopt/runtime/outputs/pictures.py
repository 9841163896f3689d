"""Drawn answers as a folder of pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.report.contact_sheet import write_sheet
from edgeopt.runtime.outputs import Shown
from edgeopt.system.disk.files import require_writable
from edgeopt.system.text import plural


class PictureFolder:
    """Writes each result as a PNG: named like its picture, or by the number of its frame."""

    def __init__(self, folder: Path, names: Sequence[str] = (), source: Path | None = None) -> None:
        """Find out whether pictures can be written.

        Args:
            folder: Made when it is not there.
            names: Of the frames, where they are known: each gets a file of its own.
            source: Where pictures come from, which are never written over.

        Raises:
            EdgeoptError: If the folder holds the pictures themselves, or is not writable.
        """
        if source is not None and folder.resolve() in (source.resolve(), source.resolve().parent):
            raise EdgeoptError(f"{folder} holds the pictures themselves", remedy="choose another folder with --save")
        require_writable(folder / "drawing.png")
        self._folder, self._count = folder, 0
        stems = Counter(Path(name).stem for name in names)
        self._stems = {
            name: Path(name).stem if stems[Path(name).stem] == 1 else name.replace("/", "-") for name in names
        }

    def put(self, shown: Shown) -> None:
        """Write one picture.

        Raises:
            InvalidFileError: If the disk is full; the pictures before it stay.
        """
        stem = self._stems.get(shown.result.name, f"{shown.result.index:06d}")
        write_sheet(self._folder / f"{stem}.png", {stem: [shown.drawn]})
        self._count += 1

    def close(self) -> str:
        """Return what there is."""
        return f"{plural(self._count, 'picture')} in {self._folder}"
