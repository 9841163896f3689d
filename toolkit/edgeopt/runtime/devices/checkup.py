"""The parts that this machine can run, and what is missing for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from edgeopt import executors
from edgeopt.errors import EXIT_ERROR, EXIT_PASS, Note, NoteKind
from edgeopt.report.document import Document, Section, Table, Value
from edgeopt.report.result import Result
from edgeopt.runtime.devices.reach import Reach, Where, family, find_reach
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import Environment, read_environment
from edgeopt.system.machine.threads import cpu_quota
from edgeopt.system.text import plural

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-webgpu")


@dataclass(frozen=True, slots=True)
class Checkup(Result):
    """The parts that run here; one reason for each that does not."""

    command: ClassVar[str] = "doctor"

    environment: Environment
    executors: Mapping[str, str]
    targets: tuple[Reach, ...]
    notes: tuple[Note, ...]

    @property
    def exit_code(self) -> int:
        """1 when no engine can run a model."""
        return EXIT_PASS if not self.executors.get("onnxruntime") else EXIT_ERROR

    @property
    def verdict_word(self) -> str:
        """`FAIL` where no engine can run a model."""
        return "FAIL" if self.exit_code else ""

    def own_figures(self) -> dict[str, Any]:
        """Return plain values: a text a part, empty where it runs."""
        return {
            "executors": dict(self.executors),
            "targets": {target.name: target.why_not for target in self.targets},
            "notes": [asdict(note) for note in self.notes],
        }


def examine() -> Checkup:
    """Return the state of this machine."""
    environment = read_environment()
    names = [name for name in registry.names(executors) if name != "null"]
    engines = {name: registry.load(executors, name).EXECUTOR.why_unavailable() or "" for name in names}
    return Checkup(environment, engines, find_reach(), tuple(note for check in _CHECKS if (note := check(environment))))


def summarize(checkup: Checkup) -> Document:
    """Return the document that `edgeopt doctor` shows."""
    machine = checkup.environment
    cores = plural(machine.cores, "core")
    values = (
        Value("machine", f"{machine.cpu}, {machine.architecture}, {cores}, {machine.memory_mib} MiB"),
        Value("can do", ", ".join(machine.instructions) or "nothing that INT8 gains by"),
        *([Value("GPU", machine.gpu)] if machine.gpu else []),
        Value("system", f"{machine.system}, Python {machine.python}"),
        Value("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items())),
    )
    sections = (
        Section(values=values, notes=checkup.notes),
        Section(table=_runs(checkup)),
        *(Section(table=table) for table in (_missing(checkup), _elsewhere(checkup)) if table.rows),
        Section(text="edgeopt targets NAME shows one of them."),
    )
    return Document(checkup, machine.cpu, "This machine", sections)


def _runs(checkup: Checkup) -> Table:
    """Return what runs here, engine by engine."""
    engines = {name: list[str]() for name, reason in checkup.executors.items() if not reason}
    for target in checkup.targets:
        if target.executor:
            engines.setdefault(target.executor, []).append(target.name)
    rows = tuple((name, ", ".join(names) or _without_target(name)) for name, names in engines.items())
    return Table(("runs here", "targets"), rows, frozenset({"targets"}))


def _without_target(name: str) -> str:
    """Return what an engine that no target names is for."""
    known = name in registry.names(executors)
    foreign = registry.load(executors, name).EXECUTOR.foreign_runtime if known else ""
    return f"no target: --emit {name} writes files for {foreign}" if foreign else "no target: it checks other engines"


def _missing(checkup: Checkup) -> Table:
    """Return what could run here, by what brings it."""
    brings: dict[str, list[str]] = {}
    for target in checkup.targets:
        if target.where is Where.MISSING and isinstance(target.target, Target):
            brings.setdefault(target.remedy or target.reason, []).append(target.name)
    rows = tuple((family(names), remedy) for remedy, names in brings.items())
    return Table(("missing here", "what brings it"), rows, frozenset({"what brings it"}))


def _elsewhere(checkup: Checkup) -> Table:
    """Return what this machine will never run, by the reason."""
    reasons: dict[str, list[str]] = {}
    for target in checkup.targets:
        if target.where is Where.ELSEWHERE:
            reasons.setdefault(target.reason, []).append(target.name)
    rows = tuple((reason, ", ".join(names)) for reason, names in reasons.items())
    return Table(("on another machine", "targets"), rows, frozenset({"targets"}))


def _no_runtime(environment: Environment) -> Note | None:
    if _builds(environment):
        return None
    return Note(NoteKind.WARNING, "no ONNX Runtime", "pip install 'edgeopt[cpu]' (or [gpu], [directml])")


def _several_runtimes(environment: Environment) -> Note | None:
    builds = _builds(environment)
    if len(builds) < 2:
        return None
    problem = f"{' and '.join(builds)} overwrite each other's files"
    return Note(NoteKind.WARNING, problem, "uninstall both, then install one")


def _few_cores(environment: Environment) -> Note | None:
    quota = cpu_quota()
    if not quota or quota >= environment.cores:
        return None
    return Note(NoteKind.WARNING, f"the container may use {quota:.2g} cores only")


def _builds(environment: Environment) -> list[str]:
    return [name for name in _RUNTIMES if name in environment.packages]


_CHECKS: Final[tuple[Callable[[Environment], Note | None], ...]] = (_no_runtime, _several_runtimes, _few_cores)
"""Each returns what is wrong, and what to do."""
