"""The machine, the software, and everything else that a figure may depend on. Reading it never raises.

A fact that cannot be read is None and says why. Two results may be compared when their machine and software agree;
the model and its session are what a comparison is about, and the rest is there to be read.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from edgeopt.system.machine.facts import Reader, machine_facts, moment_facts, provenance_facts, software_facts
from edgeopt.system.machine.place import current_place
from edgeopt.system.machine.processor import cpu_architecture, cpu_flags, cpu_name
from edgeopt.system.machine.threads import physical_cores
from edgeopt.system.text import short

PROC, SYSTEM = Path("/proc"), Path("/sys")
_PACKAGES = (
    "edgeopt",
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxslim",
    "opencv-python-headless",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-webgpu",
    "openvino",
    "ncnn",
    "ai-edge-litert",
    "mnn",
    "executorch",
    "coremltools",
)


class Use(StrEnum):
    """The use of a fact."""

    CRITICAL = "critical"
    """Machine and software: results that differ here must not be compared."""
    SUBJECT = "subject"
    """Model, session, inputs: what a comparison is about; it names them when they differ."""
    INFORMATIONAL = "informational"
    """State of a moment, provenance: read by people, never a reason to refuse."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value, or why there is none."""

    use: Use
    value: Any
    """Plain JSON; None: not known."""
    reason: str = ""


_SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "cpu.model": str,
    "cpu.architecture": str,
    "cpu.instructions": (list, tuple),
    "cpu.cores": int,
    "memory.total_mib": int,
    "gpu.nvidia": str,
    "code.arguments": (list, tuple),
    "code.packages": Mapping,
    "packages": Mapping,
}
"""Key of a value that is read by name -> its type."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine, the software and the subject that a figure depends on: all facts by key, such as `cpu.model`."""

    facts: Mapping[str, Fact]

    def __post_init__(self) -> None:
        for key, kind in _SHAPES.items():
            value = self._value(key)
            parts = value.values() if isinstance(value, Mapping) else value if kind == (list, tuple) else ()
            is_wrong = not isinstance(value, kind) or isinstance(value, bool)
            if value is not None and (is_wrong or not all(isinstance(part, str) for part in parts)):
                raise ValueError(f"fact {key} is {short(value)}")

    @property
    def hash(self) -> str:
        """Hash of the critical facts, 16 hexadecimal digits: equal ones may be compared."""
        return self._hash(Use.CRITICAL)

    @property
    def subject_hash(self) -> str | None:
        """Hash of the facts of model, session and inputs, 16 hexadecimal digits; None where none of them is known."""
        is_known = any(fact.use is Use.SUBJECT and fact.value is not None for fact in self.facts.values())
        return self._hash(Use.SUBJECT) if is_known else None

    def _hash(self, use: Use) -> str:
        chosen = {key: fact.value for key, fact in self.facts.items() if fact.use is use}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def cpu(self) -> str:
        """The processor's own name."""
        return str(self._value("cpu.model") or "unknown processor")

    @property
    def architecture(self) -> str:
        """`x86-64`, `arm64`, or the system's own word."""
        return str(self._value("cpu.architecture") or "")

    @property
    def instructions(self) -> tuple[str, ...]:
        """Those that matter for speed, in Linux words."""
        return tuple(self._value("cpu.instructions") or ())

    @property
    def address(self) -> str:
        """The address of a machine that computed for another one; empty: it was the machine itself."""
        return str(self._value("phone.address") or "")

    @property
    def cores(self) -> int:
        """Physical cores that this process may use."""
        return int(self._value("cpu.cores") or 1)

    @property
    def memory_mib(self) -> int:
        """All of the machine's."""
        return int(self._value("memory.total_mib") or 0)

    @property
    def gpu(self) -> str:
        """Name, memory and driver of NVIDIA's GPUs; empty: none answers."""
        return str(self._value("gpu.nvidia") or "")

    @property
    def system(self) -> str:
        """Its name and release."""
        return f"{self._value('system.name')} {self._value('system.kernel')}"

    @property
    def python(self) -> str:
        """Its version."""
        return str(self._value("python.version"))

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of the packages that matter."""
        return {**(self._value("code.packages") or {}), **(self._value("packages") or {})}

    @property
    def command(self) -> str:
        """The command line that made the result, as it is typed; empty where Python called the library."""
        program, *others = self._value("code.arguments") or [""]
        is_ours = Path(program).stem == "edgeopt" or Path(program).parts[-2:] == ("edgeopt", "__main__.py")
        return shlex.join(["edgeopt", *others]) if is_ours else ""

    def _value(self, key: str) -> Any:
        fact = self.facts.get(key)
        return None if fact is None else fact.value

    @property
    def missing(self) -> Mapping[str, str]:
        """Keys without a value, and why."""
        return {key: fact.reason for key, fact in self.facts.items() if fact.value is None}

    def differing(self, other: Environment, use: Use | None = None) -> tuple[str, ...]:
        """Return the keys whose values differ, sorted; a key that one side lacks differs unless it is None there.

        Args:
            other: Of another result.
            use: Only facts of this use; None: all.
        """
        result = []
        for key in sorted({*self.facts, *other.facts}):
            mine, theirs = self.facts.get(key), other.facts.get(key)
            uses = {fact.use for fact in (mine, theirs) if fact is not None}
            if (use is None or use in uses) and (mine and mine.value) != (theirs and theirs.value):
                result.append(key)
        return tuple(result)

    def why_not_comparable(self, other: Environment) -> tuple[str, ...]:
        """Return the critical keys that differ; empty: the two results may be compared."""
        return self.differing(other, Use.CRITICAL)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `Environment.from_json` reads them back."""
        facts = {
            key: {"use": str(fact.use), "value": fact.value} | ({"reason": fact.reason} if fact.reason else {})
            for key, fact in self.facts.items()
        }
        return {"hash": self.hash, "subject_hash": self.subject_hash, "facts": facts}

    @classmethod
    def from_json(cls, values: object) -> Environment:
        """Return what `to_json` gave.

        Raises:
            ValueError: If it is something else, which the message says in words.
        """
        facts = values.get("facts") if isinstance(values, Mapping) else None
        if not isinstance(facts, Mapping):
            raise ValueError("its environment has no facts" if values else "it has no environment")
        return cls({key: _fact_of(key, fact) for key, fact in facts.items()})


def _fact_of(key: str, values: Any) -> Fact:
    """Return the fact that plain values tell.

    Raises:
        ValueError: If they tell none.
    """
    if not isinstance(values, Mapping) or not {"use", "value"} <= values.keys() or values["use"] not in [*Use]:
        raise ValueError(f"fact {key} of its environment is {short(values)}")
    return Fact(Use(values["use"]), values["value"], str(values.get("reason", "")))


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that matter here and are installed."""
    from importlib.metadata import PackageNotFoundError, version  # 8 ms, which a bundle that is opened does not pay

    result = {}
    for name in _PACKAGES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


NOTABLE = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm", "sve")
"""Instructions that matter for speed, in Linux words."""
_OWN: dict[str, Reader] = {
    "cpu.architecture": cpu_architecture,
    "cpu.instructions": lambda: [flag for flag in NOTABLE if flag in cpu_flags()],
    "cpu.cores": physical_cores,
}


def processor_hash() -> str:
    """Return a hash of what the speed of arithmetic depends on, 12 hexadecimal digits: processor and packages."""
    facts = (cpu_name(), sorted(cpu_flags()), physical_cores(), package_versions())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def read_environment(
    subject: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
    *,
    proc: Path = PROC,
    system: Path = SYSTEM,
) -> Environment:
    """Read every fact that this system offers; about 40 ms, after the session is open and not during a run.

    Where another machine computes for this process the facts are that machine's.

    Facts about the engine's build are only told once the engine is loaded.

    Args:
        subject: Facts only the caller knows: model hash, session entries, threads, placement, inputs. Plain JSON; None
            stands for "not known".
        info: More of the same that refuses no comparison: seeds, notes.
        proc: Where Linux keeps its process files.
        system: Where Linux keeps its device files.
    """
    if (place := current_place()) is not None:
        environment: Environment = place.environment(subject or {}, info or {})
        return environment
    facts: dict[str, Fact] = {}
    for use, readers in (
        (Use.CRITICAL, machine_facts(proc, system) | _OWN | software_facts()),
        (Use.INFORMATIONAL, moment_facts(proc, system) | provenance_facts()),
    ):
        facts |= {key: _read(use, reader) for key, reader in readers.items()}
    for use, given in ((Use.SUBJECT, subject), (Use.INFORMATIONAL, info)):
        facts |= {
            key: Fact(use, value, "" if value is not None else "not told") for key, value in (given or {}).items()
        }
    return Environment(facts)


def _read(use: Use, reader: Reader) -> Fact:
    try:
        value = reader()
    except Exception as error:  # a fingerprint of a strange machine must not end the run
        return Fact(use, None, f"{type(error).__name__}: {error}"[:200])
    return Fact(use, value, "" if value is not None else "this system does not tell")
