"""What this machine can run, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeopt import executors
from edgeopt.errors import EXIT_ERROR, EXIT_PASS, EdgeoptError, Note, NoteKind
from edgeopt.runtime.availability import find_device, why_absent, why_unavailable
from edgeopt.system import assets, registry
from edgeopt.system.environment import Environment, cpu_quota, read_environment
from edgeopt.system.target import Choice, read_target, target_names

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
    return Checkup(environment, engines, targets, _notes(environment))


def _why_not(name: str, absent: Mapping[str, str | None]) -> str:
    target = read_target(assets.folder("targets") / f"{name}.toml")
    if not isinstance(target, Choice):
        return target.why_not_here() or why_unavailable(target) or absent.get(target.executor) or ""
    try:
        find_device(name)
    except EdgeoptError:
        return f"none of its profiles fits: {', '.join(target.choose)}"
    return ""


def _notes(environment: Environment) -> tuple[Note, ...]:
    notes = []
    builds = [name for name in _RUNTIMES if name in environment.packages]
    if not builds:
        notes.append(Note(NoteKind.WARNING, "no ONNX Runtime", "pip install 'edgeopt[cpu]' (or [gpu], [directml])"))
    if len(builds) > 1:
        notes.append(
            Note(
                NoteKind.WARNING,
                f"{' and '.join(builds)} overwrite each other's files",
                "uninstall both, then install one",
            )
        )
    if (quota := cpu_quota()) and quota < environment.cores:
        notes.append(Note(NoteKind.WARNING, f"the container may use {quota:.2g} cores only"))
    return tuple(notes)
