"""The error tree, and the notes a result carries.

EdgeoptError(problem, remedy=)      exit 1   "what happened", newline, "-> what to do"
  NotFoundError(kind, name, known)           did you mean / choose from
  InvalidFileError                           path, key or node, and what is allowed
  UnsupportedError                           op, shape or precision that cannot run, with node names
  MissingDependencyError                     pip install 'edgeopt[extra]'
  UnavailableError                           provider or device absent, or the engine fell back silently
  StepError                                  which step, after which; cause chained; earlier candidates kept
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

_LONGEST = 1000
"""Characters of a problem: names and values out of files may have any length."""
_MOST_KNOWN = 12
"""Names that are told beside the nearest one."""
_MOST_CHOICES = 40
"""Names that are told where none is near: more than there are targets, fewer than layers of a model."""
EXIT_PASS, EXIT_ERROR, EXIT_MISSED, EXIT_INCONCLUSIVE, EXIT_NOISY = 0, 1, 2, 3, 4
EXIT_INTERRUPTED = 130
"""As shells have it: 128 and the signal's number."""
EXIT_OF: Mapping[str, int] = {
    "PASS": EXIT_PASS,
    "FAIL": EXIT_MISSED,
    "INCONCLUSIVE": EXIT_INCONCLUSIVE,
    "NOISY": EXIT_NOISY,
    "INVALID": EXIT_NOISY,
}
"""The exit code of each verdict, of every command."""
ELSEWHERE = "another engine may run it: --target cpu tries each that is installed"
"""Remedy where an engine, or what writes its files, does not take a model; true for who named that target too."""
DONE = "DONE"
"""The verdict of a command that judged nothing."""
WORD_OF: Mapping[int, str] = {code: word for word, code in reversed(tuple(EXIT_OF.items()))}
"""The verdict that an exit code tells; of 4 NOISY."""


class EdgeoptError(Exception):
    """A failure that the user can mend: it has the problem and the remedy."""

    exit_code = EXIT_ERROR

    def __init__(self, problem: str, *, remedy: str) -> None:
        if len(problem) > _LONGEST:
            problem = f"{problem[: _LONGEST // 2]} ... {problem[-_LONGEST // 4 :]}"
        super().__init__(f"{problem}\n  -> {remedy}")
        self.problem, self.remedy = problem, remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is rebuilt by a call with its `args`, the text alone, and each class here takes other arguments.
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[EdgeoptError], args: tuple[object, ...]) -> EdgeoptError:
    """Return an error that came from another process, whose attributes follow."""
    return kind.__new__(kind, *args)


def out_of_memory(error: MemoryError, what: str = "this") -> EdgeoptError:
    """Return the error that a user reads where memory does not suffice.

    Args:
        error: NumPy's names the array; Python's own is empty.
        what: What was to be held, if that is known.
    """
    cause = f": {error}" if str(error) else ""
    return EdgeoptError(
        f"{what} takes more memory than there is{cause}",
        remedy="take smaller inputs (--shape fixes a size that the model leaves free) or fewer samples, or a machine "
        "with more memory",
    )


class NotFoundError(EdgeoptError):
    """A target, recipe, pass, executor or shipped model has no such name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        close = get_close_matches(name, known, n=1)
        more = f" and {len(known) - _MOST_CHOICES} more" if len(known) > _MOST_CHOICES else ""
        choice = f"choose from: {', '.join(known[:_MOST_CHOICES])}{more}" if known else f"no {kind} is installed"
        others = f" known: {', '.join(known)}" if len(known) <= _MOST_KNOWN else ""
        remedy = f"did you mean {close[0]!r}?{others}" if close else choice
        super().__init__(f"no {kind} named {name!r}", remedy=remedy)


class InvalidFileError(EdgeoptError):
    """A file cannot be read, or holds what it must not."""


class UnknownEntryError(InvalidFileError):
    """A file has a key, or a word in place of one of several, that this version does not know."""


class UnsupportedError(EdgeoptError):
    """The model asks for an op, a shape or a precision that the target cannot run."""


class MissingDependencyError(EdgeoptError):
    """A package of an optional extra is not installed."""


class UnavailableError(EdgeoptError):
    """A provider or a device is absent, or the engine fell back silently."""


class StepError(EdgeoptError):
    """A step failed; the candidates made before it are on disk."""


class Missing(str):
    """Why something cannot run here, as one text; also its parts."""

    reason: str
    remedy: str
    """How to get the missing part; empty: no way is known."""
    is_elsewhere: bool
    """Whether only another machine can have it."""

    def __new__(cls, reason: str, remedy: str = "", *, is_elsewhere: bool = False) -> Missing:
        """Join the parts to one text."""
        made = super().__new__(cls, f"{reason} ({remedy})" if remedy else reason)
        made.reason, made.remedy, made.is_elsewhere = reason, remedy, is_elsewhere
        return made


class NoteKind(StrEnum):
    """The subject of a note; reports group by it."""

    INFO = "info"
    CHOICE = "choice"
    WARNING = "warning"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know that is not an error."""

    kind: NoteKind
    detail: str
    """One clause, which a terminal has room for."""
    hint: str = ""
    """A remedy, or one more clause."""
    names: tuple[str, ...] = ()
    """All that it is about, where the text names a few."""
    more: str = ""
    """Further facts, for a page."""

    def __str__(self) -> str:
        return f"{self.detail} ({self.hint})" if self.hint else self.detail
