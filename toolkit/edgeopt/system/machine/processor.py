"""The processor's name and its instructions."""

from __future__ import annotations

import platform
from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgeopt.system.machine.place import current_place

ARCHITECTURES = {"amd64": "x86-64", "x86_64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
"""The word of targets for what a system calls its processors."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor as targets look at it."""

    architecture: str
    """As `architecture_of`."""
    flags: Set[str]
    """As `cpu_flags`."""

    def __repr__(self) -> str:
        """Return the same text in each process, by which an interrupted run is known again: sets have no order."""
        return f"Processor({self.architecture!r}, {sorted(self.flags)})"


def this_processor() -> Processor:
    """Return the processor of this machine, or of the one that computes for it."""
    if (place := current_place()) is not None:
        processor: Processor = place.processor
        return processor
    return Processor(cpu_architecture(), cpu_flags())


def architecture_of(machine: str) -> str:
    """Return `x86-64`, `arm64`, or the system's own word for a processor, in small letters."""
    return ARCHITECTURES.get(machine.lower(), machine.lower())


@cache
def cpu_architecture() -> str:
    """Return the architecture of this machine, as `architecture_of`."""
    return architecture_of(platform.machine())


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {key.strip().lower(): value.strip() for key, value in reversed(pairs)}


@cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's instruction flags in Linux words (`avx512_vnni`, `asimddp`, `i8mm`)."""
    info = _cpuinfo()
    if result := info.get("flags") or info.get("features"):
        return frozenset(result.split())
    if cpu_architecture() == "arm64":  # Apple silicon and Windows on Arm all have the dot product
        return frozenset({"asimd", "asimddp"})
    return _flags_of_opencv()


def _flags_of_opencv() -> frozenset[str]:
    """Return the flags that OpenCV reads by CPUID; macOS and Windows have no /proc/cpuinfo."""
    import cv2

    numbers = {"avx": 10, "avx2": 11, "avx512_vnni": 23}  # CV_CPU_AVX, CV_CPU_AVX2, CV_CPU_AVX_512VNNI of cvdef.h
    return frozenset(name for name, number in numbers.items() if cv2.checkHardwareSupport(number))


def cpu_kind() -> str:
    """Return what tells kinds of processors apart: on Arm, where Linux has no name, the numbers of its core too.

    Of the machine that computes for this one, where there is such a machine.
    """
    return cpu_name() if current_place() is not None else _cpu_kind()


@cache
def _cpu_kind() -> str:
    info = _cpuinfo()
    numbers = [info[key] for key in ("cpu implementer", "cpu part") if info.get(key)]
    return f"{_cpu_name()} {'/'.join(numbers)}" if numbers else _cpu_name()


def cpu_name() -> str:
    """Return the own name of this machine's processor, or of the one that computes for it."""
    if (place := current_place()) is not None:
        name: str = place.cpu_name
        return name
    return _cpu_name()


@cache
def _cpu_name() -> str:
    info = _cpuinfo()
    return info.get("model name") or info.get("hardware") or platform.processor() or platform.machine()
