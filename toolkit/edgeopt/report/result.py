"""The result of any command: one head in JSON, the same for all commands and kinds of workload, then its own figures.

A field that all results shall tell is added to `ResultHead`, and nowhere else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from edgeopt.errors import DONE, EXIT_INTERRUPTED, EXIT_OF, EXIT_PASS, WORD_OF
from edgeopt.system.machine.environment import Environment

SCHEMA = 5
"""Schema of the JSON of all results: what `--format json` prints, `bench.json`, `compare.json`, `report.json`, and the
baseline of `check`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHead:
    """The fields with which the JSON of every result begins, in their order."""

    schema: int = SCHEMA
    """Number of this form of JSON."""
    command: str
    """The command that made the result: `bench`."""
    kind: str | None
    """Kind of workload: `frames`, `generation`, `pipeline`, `endpoint`; null where the command is about none."""
    verdict: str
    """PASS, FAIL, INCONCLUSIVE, NOISY or INVALID; of `compare` FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE; DONE where
    nothing was judged, or an interrupt cut the judging short. Beside an exit code of 2, 3 or 4 it is the word of that
    code. A terminal's last lines begin with it, where INCONCLUSIVE is "NOT DECIDED", and INVALID "NOISY"."""
    exit_code: int
    """Exit code of the command with this result."""
    environment: Environment | None
    """The machine, its software and the workload; null where no figure depends on them, or where there are several
    machines. A server tells nothing of its own: it is the machine that asked."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values in the order of the fields."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"environment": None if self.environment is None else self.environment.to_json()}


HEAD = tuple(each.name for each in fields(ResultHead))
"""Names of the fields of every head; no result has figures with these names."""


class Result(ABC):
    """The result of a command.

    Attributes that it may have are told in its head: `kind`, `environment` and `exit_code`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def command(self) -> str:
        """The command that made it."""

    @property
    def verdict_word(self) -> str:
        """The verdict by what was judged, which the head tells as far as the exit code bears it out; empty: DONE.

        Of a result that does not say otherwise it is the word of an exit code of 2, 3 or 4.
        """
        word = WORD_OF.get(self._exit_code, "")
        return "" if word == "PASS" else word

    @property
    def _exit_code(self) -> int:
        code: int = getattr(self, "exit_code", EXIT_PASS)
        return code

    @property
    def head(self) -> ResultHead:
        """The fields with which its JSON begins."""
        return ResultHead(
            command=self.command,
            kind=getattr(self, "kind", "") or None,
            verdict=_verdict_beside(self._exit_code, self.verdict_word),
            exit_code=self._exit_code,
            environment=getattr(self, "environment", None),
        )

    def shared_figures(self) -> Mapping[str, Any]:
        """Return what the command tells of every kind of workload, as plain values."""
        return {}

    @abstractmethod
    def own_figures(self) -> Mapping[str, Any]:
        """Return all other figures as plain values, those of its kind of workload where it has one."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values, those of `--format json`: the head, what all kinds tell, then its own figures.

        Numbers that JSON does not know (NaN, infinity) are None.

        Raises:
            ValueError: If two of them have one name.
        """
        values = self.head.as_json()
        for figures in (self.shared_figures(), self.own_figures()):
            if twice := sorted(values.keys() & figures.keys()):
                raise ValueError(f"{type(self).__name__} has two figures of one name: {', '.join(twice)}")
            values |= figures
        return {name: _strict(value) for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResult(Result):
    """A result that is no more than its figures, of a command that is written once for all."""

    command: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    environment: Environment | None = None

    def own_figures(self) -> Mapping[str, Any]:
        """Return the figures as they are."""
        return self.figures


def fields_as_json(result: Result) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values, without what the head and the command tell of every kind.

    It is for results whose fields are all their figures.

    Raises:
        ValueError: If a field has a name of these and another value: it would be told nowhere.
    """
    values: dict[str, Any] = asdict(result)  # type: ignore[call-overload]
    head, shared = result.head, result.shared_figures()

    def is_told(name: str) -> bool:
        if name in HEAD:
            return (getattr(result, name) or None) == (getattr(head, name) or None)
        return bool(_strict(values[name]) == _strict(shared[name]))

    twice = {name for name in values if name in HEAD or name in shared}
    if lost := sorted(name for name in twice if not is_told(name)):
        names = ", ".join(lost)
        raise ValueError(f"{type(result).__name__} has fields whose names mean something else in every result: {names}")
    return {name: value for name, value in values.items() if name not in twice}


def _verdict_beside(exit_code: int, word: str) -> str:
    """Return the verdict of a head: the exit code's where the word says another, and DONE of what was cut short."""
    if exit_code == EXIT_INTERRUPTED:
        return DONE
    return (word if exit_code in (EXIT_PASS, EXIT_OF.get(word)) else WORD_OF.get(exit_code, word)) or DONE


def _strict(value: Any) -> Any:
    """Return the value with None for numbers that JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
