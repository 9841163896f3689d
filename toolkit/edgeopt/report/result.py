"""The result of any command: one head in JSON, the same for all commands and kinds of workload, then its own figures.

A field that all results shall tell is added to `ResultHead`, and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from edgeopt.errors import EXIT_PASS
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
    verdict: str | None
    """PASS, FAIL, INCONCLUSIVE, NOISY or INVALID; of `compare` FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE; UPDATED
    where `check` wrote the baseline; null where nothing was judged."""
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
        """The verdict as the head tells it; empty: nothing was judged."""
        return ""

    @property
    def head(self) -> ResultHead:
        """The fields with which its JSON begins."""
        return ResultHead(
            command=self.command,
            kind=getattr(self, "kind", "") or None,
            verdict=self.verdict_word or None,
            exit_code=getattr(self, "exit_code", EXIT_PASS),
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

        Raises:
            ValueError: If two of them have one name.
        """
        values = self.head.as_json()
        for figures in (self.shared_figures(), self.own_figures()):
            if twice := sorted(values.keys() & figures.keys()):
                raise ValueError(f"{type(self).__name__} has two figures of one name: {', '.join(twice)}")
            values |= figures
        return values


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
    """
    told_before = {*HEAD, *result.shared_figures()}
    values: dict[str, Any] = asdict(result)  # type: ignore[call-overload]
    return {name: value for name, value in values.items() if name not in told_before}
