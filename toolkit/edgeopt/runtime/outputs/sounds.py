"""Drawn answers to sounds that are heard window by window: one picture a sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.report.contact_sheet import write_sheet
from edgeopt.runtime.outputs import Shown
from edgeopt.system.disk.files import require_writable
from edgeopt.system.text import plural

DrawAll = Callable[[Sequence[Any], Sequence[Any]], Frame]
"""(windows, answers) -> a picture of the sound."""


class SoundFolder:
    """Writes each sound as a PNG when its last window was heard."""

    def __init__(self, folder: Path, frames: Frames, draw: DrawAll) -> None:
        """Find out whether pictures can be written.

        Args:
            folder: Made when it is not there.
            frames: Windows of sounds.
            draw: Draws a sound by its windows.

        Raises:
            EdgeoptError: If the folder is not writable.
        """
        require_writable(folder / "drawing.png")
        self._folder, self._draw = folder, draw
        self._sounds = {name: part.place for name, part in zip(frames.names, frames.parts, strict=True)}
        self._heard: list[tuple[Any, Any]] = []
        self._name, self._count = "", 0

    def put(self, shown: Shown) -> None:
        """Take a window.

        Raises:
            InvalidFileError: If the disk is full; the pictures before it stay.
        """
        name = shown.result.name
        if self._heard and self._sounds[name] != self._sounds[self._name]:
            self._write()
        self._name = name
        self._heard.append((shown.result.frame, shown.result.answer))

    def _write(self) -> None:
        stem = Path(self._name.rpartition("@")[0]).with_suffix("").as_posix().replace("/", "-")
        windows, answers = zip(*self._heard, strict=True)
        self._heard = []
        write_sheet(self._folder / f"{stem}.png", {stem: [self._draw(windows, answers)]})
        self._count += 1

    def close(self) -> str:
        """Write the last sound; return what there is."""
        if self._heard:
            self._write()
        return f"{plural(self._count, 'picture')} in {self._folder}"
