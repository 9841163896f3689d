"""A command line as it was typed here, and as it means the same on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.measurement.check.baseline import raw_beside
from edgeopt.verbs.remote.mirror import is_sendable, mirrored, whole_path

FILES = "@FILES@"
"""As the device's side has it: stands in an argument for the folder that mirrors this machine."""
_DEFAULT_OUT = Path("out")
"""Folder below this one in which commands write where no place was named."""


@dataclass(frozen=True, slots=True)
class CommandWord:
    """One word of a command line."""

    text: str
    is_read: bool = False
    """Whether it may name a file or folder here that the command reads."""
    is_written: bool = False
    """Whether it names a place here into which the command writes."""
    within: str = ""
    """The part that names it, as in `trace:FILE@2x`; empty: all of it."""

    @property
    def path(self) -> str:
        """The text that names a file or folder, if it does."""
        return self.within or self.text

    @property
    def is_path(self) -> bool:
        """Whether it stands for the place of the same name on the device."""
        return self.is_written or (self.is_read and is_sendable(self.path))

    @property
    def there(self) -> str:
        """The word on the device: a relative name below this folder is the same there."""
        path = Path(self.path)
        if not self.is_path or not (path.is_absolute() or ".." in path.parts):
            return self.text
        return self.text.replace(self.path, f"{FILES}/{mirrored(path)}")


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """A command as it was typed here."""

    words: tuple[CommandWord, ...]
    """Words behind `edgeopt`, without the option that names the device."""
    target: str
    """Name or file of the target; empty: none was named."""
    variables: Mapping[str, str]
    """Variables of its environment, such as the width of the terminal."""
    again: str = "the same command"
    """The command that takes up what goes on there without this one."""

    @property
    def typed(self) -> dict[str, str]:
        """Places whose words are other ones on the device, as they were typed here, by their names in the mirror."""
        moved = [word for word in self.words if word.there != word.text]
        return {mirrored(Path(word.path)): word.path for word in moved}

    @property
    def reads(self) -> list[Path]:
        """Files and folders here that it reads."""
        return [Path(word.path) for word in self.words if word.is_read and is_sendable(word.path)]

    @property
    def writes(self) -> dict[str, Path]:
        """Places here into which it writes, by their names in the mirror; raw samples lie beside a file of figures."""
        places = [_DEFAULT_OUT]
        for word in self.words:
            if word.is_written:
                path = Path(word.text)
                places += [path, raw_beside(path)] if path.suffix == ".json" else [path]
        return {mirrored(place): whole_path(place) for place in places}
