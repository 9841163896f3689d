"""The processor's name and its instructions."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from edgeopt.system.machine.place import current_place

ARCHITECTURES = {"amd64": "x86-64", "x86_64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
"""The word of targets for what a system calls its processors."""
_APPLE = {
    "asimddp": "FEAT_DotProd",
    "asimdhp": "FEAT_FP16",
    "fphp": "FEAT_FP16",
    "atomics": "FEAT_LSE",
    "bf16": "FEAT_BF16",
    "i8mm": "FEAT_I8MM",
}
"""Linux's words for what macOS tells below `hw.optional.arm`. Source: Apple, Determining instruction set
characteristics."""
_SYSCTL_S = 5.0


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor as targets look at it."""

    architecture: str
    """As `architecture_of`."""
    flags: Set[str]
    """As `cpu_flags`."""
    listed: Set[str] | None = field(default=None, compare=False)
    """Those that its system tells of, present or not; None: all."""

    def why_without(self, flags: tuple[str, ...]) -> str | None:
        """Return None if it has one of some flags, otherwise that it has none, or that nobody knows."""
        if set(flags) & self.flags:
            return None
        if self.listed is not None and set(flags) - self.listed:
            return f"whether this processor has {' or '.join(flags)} is not known on this system"
        return f"this processor has none of {', '.join(flags)}"

    def __repr__(self) -> str:
        """Return the same text in each process, by which an interrupted run is known again: sets have no order."""
        return f"Processor({self.architecture!r}, {sorted(self.flags)})"


def this_processor() -> Processor:
    """Return the processor of this machine, or of the one that computes for it."""
    if (place := current_place()) is not None:
        processor: Processor = place.processor
        return processor
    return Processor(cpu_architecture(), *_flags())


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
    return _flags()[0]


@cache
def _flags() -> tuple[frozenset[str], frozenset[str] | None]:
    """Return the flags, and those that this system tells of; None: all."""
    info = _cpuinfo()
    if result := info.get("flags") or info.get("features"):
        return frozenset(result.split()), None
    if cpu_architecture() == "arm64":  # Apple silicon and Windows on Arm all have the dot product
        has, listed = flags_of_apple(_sysctl())
        always = frozenset({"asimd", "asimddp"})
        return always | has, always | listed
    return _flags_of_opencv()


def flags_of_apple(features: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the flags that an Apple processor has, and those that its system tells of.

    Args:
        features: What `sysctl hw.optional.arm` prints, a line for each feature: `hw.optional.arm.FEAT_FP16: 1`.
    """
    lines = dict(line.rsplit(": ", 1) for line in features.splitlines() if ": " in line)
    known = {flag: lines.get(f"hw.optional.arm.{feature}", "").strip() for flag, feature in _APPLE.items()}
    has = frozenset(flag for flag, value in known.items() if value == "1")
    return has, frozenset(flag for flag, value in known.items() if value)


def _sysctl() -> str:
    if sys.platform != "darwin":
        return ""
    try:
        command = ["/usr/sbin/sysctl", "hw.optional.arm"]
        return subprocess.run(command, capture_output=True, text=True, timeout=_SYSCTL_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _flags_of_opencv() -> tuple[frozenset[str], frozenset[str]]:
    """Return the flags that OpenCV reads by CPUID, and all that it could; macOS and Windows have no /proc/cpuinfo."""
    import cv2

    numbers = {"avx": 10, "avx2": 11, "avx512_vnni": 23}  # CV_CPU_AVX, CV_CPU_AVX2, CV_CPU_AVX_512VNNI of cvdef.h
    return frozenset(name for name, number in numbers.items() if cv2.checkHardwareSupport(number)), frozenset(numbers)


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
