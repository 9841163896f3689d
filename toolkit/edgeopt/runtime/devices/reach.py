"""Which targets run on this machine, and what the others lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from edgeopt.errors import Missing
from edgeopt.runtime.devices.availability import is_by_rule, why_absent, why_unavailable
from edgeopt.system.declared.target import Target, TargetChoice, read_target, target_names
from edgeopt.system.disk import assets


class Where(StrEnum):
    """Where a target runs."""

    HERE = "here"
    SIMULATED = "simulated here"
    MISSING = "missing here"
    """Its package or its driver is."""
    ELSEWHERE = "on another machine"


@dataclass(frozen=True, slots=True)
class Reach:
    """One target, and what keeps it from running here."""

    target: Target | TargetChoice
    where: Where
    reason: str = ""
    """Empty where it runs here."""
    remedy: str = ""
    """Way to get what is missing; empty: no way is known."""
    executor: str = ""
    """The engine that it runs on here; empty where it does not."""
    takes_models: bool = False
    """Whether `edgeopt optimize` makes models for it here, though there may be no times of them."""

    @property
    def name(self) -> str:
        """The name of the target."""
        return self.target.name

    @property
    def why_not(self) -> str:
        """Reason and remedy as one text; empty where it runs here."""
        return str(Missing(self.reason, self.remedy))


def find_reach() -> tuple[Reach, ...]:
    """Return every shipped target by name; one that chooses is where the first is that it may choose."""
    read = [read_target(assets.folder("targets") / f"{name}.toml") for name in target_names()]
    known = {one.name: _reach(one) for one in read if isinstance(one, Target)}
    return tuple(known[one.name] if isinstance(one, Target) else _of_choice(one, known.values()) for one in read)


def _reach(target: Target) -> Reach:
    takes_models = why_unavailable(target) is None or is_by_rule(target)
    return replace(_place(target), takes_models=takes_models)


def _place(target: Target) -> Reach:
    if reason := target.why_not_here():
        return Reach(target, Where.ELSEWHERE, reason)
    if missing := why_unavailable(target):
        parts = missing if isinstance(missing, Missing) else Missing(missing)
        where = Where.ELSEWHERE if parts.is_elsewhere else Where.MISSING
        return Reach(target, where, parts.reason, parts.remedy or target.package)
    if reason := why_absent(target):
        return Reach(target, Where.SIMULATED, reason, executor=target.executor)
    return Reach(target, Where.HERE, executor=target.executor)


def _of_choice(choice: TargetChoice, known: Iterable[Reach]) -> Reach:
    may = [reach for reach in known if reach.name in choice.choose]
    for where in (Where.HERE, Where.SIMULATED):
        if reaches := [reach for reach in may if reach.where is where]:
            return replace(reaches[0], target=choice)
    return Reach(choice, Where.MISSING, "none of its profiles fits")


def family(names: Sequence[str]) -> str:
    """Return the names as one: three and more of one family are told by what they share."""
    head = names[0].rpartition("-")[0]
    is_one = len(names) > 2 and head and all(name.startswith(f"{head}-") for name in names)
    return f"{head}-* ({len(names)})" if is_one else ", ".join(names)
