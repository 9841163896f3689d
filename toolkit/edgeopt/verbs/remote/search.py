"""The part of a command on a device that runs here: the search for candidates, which the device then measures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.system.declared.options import flags_of
from edgeopt.system.disk.locks import hold
from edgeopt.verbs._perform import prepare
from edgeopt.verbs.remote.command import CommandWord, RemoteCommand
from edgeopt.verbs.remote.device import Device

MACHINE_LOCK = "EDGEOPT_MACHINE_LOCK"
"""Variable that names the file which those hold that use the machine."""
_OUT, _RESUME, _LIMIT = "out", "resume", "time_limit_s"
_OF_SOURCE = ("inputs", "task")
"""Options of what is exported first: the device gets what was exported."""
_LEAST_LEFT = 0.25
"""Share of a time limit that the device has at least, however long the search took."""


@dataclass(frozen=True, slots=True)
class SearchHere:
    """A search as it was asked for here."""

    verb: str
    source: str
    """The workload."""
    values: Mapping[str, Any]
    """Options, by the fields of its kind's."""
    listening: Callable[[], AbstractContextManager[Any]]
    """Makes what hears its progress."""

    def made_here(self, command: RemoteCommand, device: Device, say: Callable[[str], None]) -> RemoteCommand:
        """Make the candidates, and return the command that takes them up on the device.

        Where that is not possible the command stays as it is, and the reason is said.

        Args:
            command: As it was typed.
            device: On which it will run.
            say: Hears one line.

        Raises:
            EdgeoptError: If the search fails, or cannot go on from what an earlier command left.
        """
        began_s = monotonic()
        kind, options = prepare(self.verb, (self.source,), None, self.values)
        work, processor = getattr(kind.module(self.verb), "make_elsewhere", None), device.processor
        if work is None:
            made: Any = f"{kind.noun} is searched for where it runs"
        elif processor is None:
            made = "it does not tell its processor's instructions"
        else:
            with _alone(), self.listening() as listener:
                made = work(self.source, options, str(device.connection.address), processor, listener)
        if isinstance(made, str):
            if self.values.get(_RESUME) and not self.values.get(_OUT):
                problem = "--resume does not know which folder to take along to the device"
                raise EdgeoptError(problem, remedy="name it: --out FOLDER")
            say(f"candidates are made on {device.connection.address.host} too: {made}")
            return command
        flags, limit_s = flags_of(type(options)), self.values.get(_LIMIT)
        replaced = {flags[name] for name in (_OUT, _RESUME, _LIMIT, *_OF_SOURCE) if name in flags}
        words = _without(command.words, replaced, flags[_RESUME])
        more = [CommandWord(flags[_RESUME]), CommandWord(flags[_OUT])]
        more.append(CommandWord(str(made.folder), is_read=True, is_written=True))
        if limit_s:
            left_s = max(limit_s - (monotonic() - began_s), _LEAST_LEFT * limit_s)
            more += [CommandWord(flags[_LIMIT]), CommandWord(f"{ceil(left_s)}s")]
        verb, *typed, source = words
        words = [verb, *more, *typed, replace(source, text=made.model)]
        return replace(command, words=tuple(words), again=f"the same command with {flags[_RESUME]}")


@contextmanager
def _alone() -> Iterator[None]:
    """Share this machine with other searches, and with nothing that measures on it, where a fleet says so."""
    if not (file := os.environ.get(MACHINE_LOCK)):
        yield
        return
    with hold(Path(file), is_shared=True):
        yield


def _without(words: Iterable[CommandWord], flags: set[str], alone: str) -> list[CommandWord]:
    """Return a command line without some options and their values; one of them stands alone."""
    result, skips = list[CommandWord](), False
    for word in words:
        if skips:
            skips = False
        elif word.text in flags:
            skips = word.text != alone
        else:
            result.append(word)
    return result
