"""What this machine can run, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from edgeopt import executors
from edgeopt.errors import EXIT_ERROR, EXIT_PASS, EdgeoptError, Note, NoteKind
from edgeopt.report.document import Document, Section, Value
from edgeopt.runtime.availability import find_device, why_absent, why_unavailable
from edgeopt.system import assets, registry
from edgeopt.system.environment import Environment, read_environment
from edgeopt.system.target import Choice, read_target, target_names
from edgeopt.system.text import plural
from edgeopt.system.threads import cpu_quota

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-webgpu")


@dataclass(frozen=True, slots=True)
class Checkup:
    """One reason a part, empty where the part runs."""

    environment: Environment
    executors: Mapping[str, str]
    targets: Mapping[str, str]
    notes: tuple[Note, ...]

    @property
    def exit_code(self) -> int:
        """1 when no engine can run a model."""
        return EXIT_PASS if not self.executors.get("onnxruntime") else EXIT_ERROR


def examine() -> Checkup:
    """Return the state of this machine."""
    environment = read_environment()
    names = [name for name in registry.names(executors) if name != "null"]
    engines = {name: registry.load(executors, name).EXECUTOR.why_unavailable() or "" for name in names}
    absent = {name: why_absent(name) for name in names if not engines[name]}
    targets = {name: _why_not(name, absent) for name in target_names()}
    return Checkup(environment, engines, targets, tuple(note for check in _CHECKS if (note := check(environment))))


def summarize(found: Checkup) -> Document:
    """Return the document that `edgeopt doctor` shows."""
    machine = found.environment
    cores = plural(machine.cores, "core")
    targets: dict[str, list[str]] = {}
    for name, reason in found.targets.items():
        targets.setdefault(reason, []).append(name)
    values = (
        Value("machine", f"{machine.cpu}, {machine.architecture}, {cores}, {machine.memory_mib} MiB"),
        Value("can do", ", ".join(machine.instructions) or "nothing that INT8 gains by"),
        Value("system", f"{machine.system}, Python {machine.python}"),
        Value("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items())),
        *(Value("executor", f"{name}: {reason or 'runs'}") for name, reason in found.executors.items()),
        *(Value("target", f"{', '.join(names)}: {reason or 'runs here'}") for reason, names in targets.items()),
    )
    return Document("doctor", machine.cpu, "This machine", asdict(found), (Section(values=values, notes=found.notes),))


def _why_not(name: str, absent: Mapping[str, str | None]) -> str:
    target = read_target(assets.folder("targets") / f"{name}.toml")
    if not isinstance(target, Choice):
        return target.why_not_here() or why_unavailable(target) or absent.get(target.executor) or ""
    try:
        find_device(name)
    except EdgeoptError:
        return f"none of its profiles fits: {', '.join(target.choose)}"
    return ""


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
