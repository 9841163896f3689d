"""`on=` of the functions for Python: a verb on another device, and its result here."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_ERROR, EXIT_INTERRUPTED, EdgeoptError
from edgeopt.system.declared.options import FileUse
from edgeopt.system.disk.caches import cache_folder
from edgeopt.system.text import printable
from edgeopt.verbs._perform import prepare
from edgeopt.verbs.android import is_phone, require_verb
from edgeopt.verbs.remote import OF_THIS_TERMINAL, RESULT_FLAG, SEARCHING
from edgeopt.verbs.remote.command import CommandWord, RemoteCommand
from edgeopt.verbs.remote.device import Tell
from edgeopt.verbs.remote.perform import Hearer, run_remotely
from edgeopt.verbs.remote.results import read_result, require_readable
from edgeopt.verbs.remote.search import SearchHere
from edgeopt.verbs.remote.words import WrittenOption, line_of, written_options

_ERROR, _REMEDY = "error: ", "  -> "
_KEPT_LINES = 1000
"""Lines of a command elsewhere that are kept, the last ones: its error is among them."""


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A verb as Python asked for it."""

    verb: str
    sources: tuple[str, ...]
    options: object
    """Dataclass of the kind; None: its defaults."""
    values: Mapping[str, Any]
    """Fields that differ, by name."""
    address: str
    """The device, as `--on` takes it."""
    searches_there: bool = False
    """Whether candidates are made on the device too."""
    sample: str | None = None
    """Sample that `run` answers; None: an option names it, or the verb is another."""


def result_on(
    call: RemoteCall, tell: Tell | None = None, listener: Any = None, say: Callable[[str], None] | None = None
) -> Any:
    """Do a verb on another device, and return its result.

    Args:
        call: The verb, on what, how, and where.
        tell: Hears progress.
        listener: Hears progress and lines, in place of `tell` and `say`; a `Listener` of `optimize`.
        say: Hears lines of the command there.

    Raises:
        EdgeoptError: If the device cannot do it, or the verb failed there.
    """
    verb, sources, address = call.verb, call.sources, call.address
    tell = listener.progress if listener else tell or _ignore
    say = listener.say if listener else say or _ignore
    if is_phone(address):
        require_verb(verb, address)
        if call.searches_there:
            raise EdgeoptError("search_there= needs Python there, and a phone has none", remedy="leave it out")
    kind, options = prepare(verb, sources, call.options, call.values)
    values = {each.name: getattr(options, each.name) for each in fields(options)}
    if is_phone(address):
        from edgeopt.verbs.android.perform import perform_on_phone

        passed = {name: value for name, value in values.items() if name in call.values or call.options is not None}
        return perform_on_phone(verb, sources, passed, address, tell, listener).result
    if name := next((name for name in OF_THIS_TERMINAL if values.get(name)), ""):
        raise EdgeoptError(f"{name}= is for the machine that you sit at", remedy=f"leave on= out, or {name}=")
    if call.sample == "-":
        raise EdgeoptError(
            "the standard input is that of the machine that you sit at", remedy="leave on= out, or name a file"
        )
    hint = require_readable(kind, verb, options, address)
    written = written_options(options)
    if values.get("resume") and values.get("out") is None and (verb not in SEARCHING or call.searches_there):
        raise EdgeoptError("resume= with on= does not know which folder to take along", remedy="name it: out=FOLDER")
    # a name of its own for each command, and the same for the same one: what goes on there is taken up
    arguments = sources if call.sample is None else (*sources, call.sample)
    facts = repr((verb, written, arguments, address, Path.cwd()))
    file = cache_folder() / "results" / f"{hashlib.sha256(facts.encode()).hexdigest()[:24]}.npz"
    file.unlink(missing_ok=True)
    line = line_of([*written, WrittenOption(RESULT_FLAG, (str(file),), FileUse.WRITE)], arguments)
    command = RemoteCommand((CommandWord(verb), *line), str(values.get("target") or ""), {}, "the same call")
    search = None
    if verb in SEARCHING and not call.searches_there:
        search = SearchHere(verb, sources[0], values, lambda: nullcontext(listener))
    heard = _Heard(say)
    tell(f"{verb} on {address}", 0, 1)
    try:
        end = run_remotely(address, command, Hearer(tell, heard.say, heard.write), search)
        if end.exit_code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if end.exit_code == EXIT_ERROR or not file.is_file():
            raise heard.error(address)
        result = read_result(file, hint, options, address, end.places)
    finally:
        file.unlink(missing_ok=True)
    tell(f"{verb} on {address}", 1, 1)
    return result


def _ignore(*_: object) -> None:
    """Hear nothing."""


class _Heard:
    """Lines of a command elsewhere: they are handed on, and its error is kept."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def write(self, stream: str, text: bytes) -> None:
        """Take what it prints; on its standard output it shows the result, which comes as a file."""
        if stream == "out":
            return
        lines = [printable(line) for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
        self._lines += lines
        for line in lines:
            if not line.startswith((_ERROR, _REMEDY)):
                self.say(line)

    def error(self, address: str) -> EdgeoptError:
        """Return the error with which it ended."""
        lines = [*self._lines]
        begins = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
        if not begins:
            last = lines[-1] if lines else "it says nothing"
            return EdgeoptError(f"{address} gave no result: {last}", remedy="try the command line: it shows all lines")
        problem, *after = lines[begins[-1] :]
        remedy = next((line.removeprefix(_REMEDY) for line in after if line.startswith(_REMEDY)), "")
        return EdgeoptError(f"{address}: {problem.removeprefix(_ERROR)}", remedy=remedy or "try the command line")
