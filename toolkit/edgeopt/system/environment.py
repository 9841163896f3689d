"""What machine and software this is."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import plural

_ARCHITECTURES = {"amd64": "x86-64", "x86_64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
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
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the tool versions that a figure depends on."""

    cpu: str
    architecture: str
    instructions: tuple[str, ...]
    cores: int
    cpu_quota: float
    memory_mib: int
    system: str
    python: str
    packages: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """Hash of everything above, 12 hexadecimal digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


@cache
def cpu_architecture() -> str:
    """Return `x86-64`, `arm64`, or the system's own word."""
    return _ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())


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
    if found := info.get("flags") or info.get("features"):
        return frozenset(found.split())
    if cpu_architecture() == "arm64":  # Apple silicon and Windows on Arm all have the dot product
        return frozenset({"asimd", "asimddp"})
    return _flags_of_opencv()


def _flags_of_opencv() -> frozenset[str]:
    """Return the flags that OpenCV reads by CPUID; macOS and Windows have no /proc/cpuinfo."""
    import cv2

    numbers = {"avx": 10, "avx2": 11, "avx512_vnni": 23}  # CV_CPU_AVX, CV_CPU_AVX2, CV_CPU_AVX_512VNNI of cvdef.h
    return frozenset(name for name, number in numbers.items() if cv2.checkHardwareSupport(number))


@cache
def cpu_name() -> str:
    """Return the processor's own name."""
    info = _cpuinfo()
    return info.get("model name") or info.get("hardware") or platform.processor() or platform.machine()


def physical_cores() -> int:
    """Return how many cores this process may use: physical, within affinity and quota, at least one."""
    logical = logical_cores()
    physical = min(psutil.cpu_count(logical=False) or logical, logical)
    quota = cpu_quota()
    return max(1, min(physical, int(quota)) if quota else physical)


def logical_cores() -> int:
    """Return how many threads this process may run at once: what its affinity leaves of the logical cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_threads(asked: int, preferred: int = 0, workers: int = 1) -> int:
    """Return how many threads an engine gets.

    Args:
        asked: What a person or a file asks for; 0: nothing.
        preferred: What the profile of a device says, of which this machine gives what it has; 0: nothing.
        workers: How many such engines share the physical cores, where neither says.

    Raises:
        EdgeoptError: If more is asked for than there are logical cores: threads that spin for each other's cores hang
            a machine.
    """
    most = logical_cores()
    if not 0 <= asked <= most:
        raise EdgeoptError(
            f"{asked} threads on a machine of {plural(most, 'logical core')}",
            remedy=f"ask for --threads 1 to {most}, or leave it out",
        )
    return asked or min(preferred, most) or max(1, physical_cores() // workers)


def cpu_quota() -> float:
    """Return the container's limit in cores; 0.0 when there is none."""
    try:
        allowed, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return 0.0 if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        return 0.0


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that matter here and are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read_environment() -> Environment:
    """Return this machine and software."""
    notable = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm", "sve")
    return Environment(
        cpu=cpu_name(),
        architecture=cpu_architecture(),
        instructions=tuple(flag for flag in notable if flag in cpu_flags()),
        cores=physical_cores(),
        cpu_quota=cpu_quota(),
        memory_mib=psutil.virtual_memory().total // 2**20,
        system=f"{platform.system()} {platform.release()}",
        python=sys.version.split()[0],
        packages=package_versions(),
    )
