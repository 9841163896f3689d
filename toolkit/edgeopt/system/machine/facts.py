"""Readers of what a figure may depend on: each returns plain JSON, or raises where this system does not tell."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_RUNNING = re.compile(
    r"^(numpy|onnxruntime.*|openvino.*|ncnn|ai-edge-litert|mnn|executorch|opencv-python.*|tensorrt.*)$", re.IGNORECASE
)
"""Packages whose code runs inside a frame."""
_OTHERS = re.compile(r"^(edgeopt|psutil|onnx|onnx-ir|onnx_ir|onnxslim)$", re.IGNORECASE)
_NAME = re.compile(r"^Name: *(\S+)", re.MULTILINE)
_VARIABLES = re.compile(
    r"^(OMP|KMP|GOMP|ORT|CUDA|NVIDIA|TRT|MKL|OPENBLAS(?!_THREAD_TIMEOUT)|OPENCV|OV|MALLOC|GLIBC|LD_PRELOAD|PYTHONHASHSEED)"
)


Reader = Callable[[], Any]


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace").replace("\0", "").strip()


def _texts(root: Path, pattern: str) -> list[str]:
    """Return the distinct texts of all files that match, sorted."""
    texts = sorted({_text(path) for path in root.glob(pattern)})
    if not texts:
        raise FileNotFoundError(f"no {pattern} below {root}")
    return texts


def _by_core(cpus: Path, name: str) -> list[int]:
    """Return one number a core, in order of the cores."""
    paths = sorted(cpus.glob(f"cpu[0-9]*/{name}"), key=lambda path: int(path.relative_to(cpus).parts[0][3:]))
    if not paths:
        raise FileNotFoundError(f"no core has {name}")
    return [int(_text(path)) for path in paths]


def machine_facts(proc: Path, system: Path) -> dict[str, Reader]:
    """Return readers of the machine, of Linux files below `proc` and `system`."""
    cpus = system / "devices/system/cpu"
    return {
        "cpu.model": lambda: _cpuinfo(proc, "model name", "Hardware", "Model") or platform.processor() or None,
        "cpu.stepping": lambda: "/".join(_cpuinfo(proc, key) or "?" for key in ("cpu family", "model", "stepping")),
        "cpu.flags": lambda: " ".join(sorted(set((_cpuinfo(proc, "flags", "Features") or "").split()))) or None,
        "cpu.online": lambda: _text(cpus / "online"),
        "cpu.logical": os.cpu_count,
        "cpu.siblings": lambda: _texts(cpus, "cpu[0-9]*/topology/thread_siblings_list"),
        "cpu.core_max_khz": lambda: _by_core(cpus, "cpufreq/cpuinfo_max_freq"),
        "cpu.core_capacity": lambda: _by_core(cpus, "cpu_capacity"),
        "cpu.limit_khz": lambda: {key: _by_core(cpus, f"cpufreq/scaling_{key}_freq") for key in ("min", "max")},
        "cpu.governor": lambda: _texts(cpus, "cpu[0-9]*/cpufreq/scaling_governor"),
        "cpu.energy_preference": lambda: _texts(cpus, "cpu[0-9]*/cpufreq/energy_performance_preference"),
        "cpu.turbo": lambda: _turbo(cpus),
        "cpu.affinity": lambda: sorted(getattr(os, "sched_getaffinity")(0)),  # noqa: B009  (Linux only)
        "cpu.quota": lambda: _own_group(proc, system, "cpu.max", "cpu.cfs_quota_us"),
        "memory.limit": lambda: _own_group(proc, system, "memory.max", "memory.limit_in_bytes"),
        "memory.total_gib": lambda: round(_meminfo(proc, "MemTotal") / 2**18) / 4,
        "memory.swap_gib": lambda: round(_meminfo(proc, "SwapTotal") / 2**18) / 4,
        "memory.zram": lambda: any((system / "block").glob("zram*")),
        "memory.huge_pages": lambda: _text(system / "kernel/mm/transparent_hugepage/enabled"),
        "memory.layout_randomized": lambda: _text(proc / "sys/kernel/randomize_va_space"),
        "system.name": platform.system,
        "system.platform": platform.platform,
        "system.kernel": platform.release,
        "system.hypervisor": lambda: "hypervisor" in (_cpuinfo(proc, "flags") or "").split() or _vendor(system),
        "system.tells_steal": lambda: len(_text(proc / "stat").splitlines()[0].split()) > 8,
        "system.container": lambda: _container(proc),
        "system.board": lambda: _text(proc / "device-tree/model"),
        "power.source": lambda: _power_source(system),
        "power.jetson_mode": lambda: _command("nvpmodel", "-q"),
        "gpu.nvidia": lambda: _command(
            "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
        ),
    }


def _cpuinfo(proc: Path, *keys: str) -> str | None:
    try:
        pairs = [line.split(":", 1) for line in _text(proc / "cpuinfo").splitlines() if ":" in line]
    except OSError:
        return None
    first = {key.strip(): value.strip() for key, value in reversed(pairs)}
    return next((first[key] for key in keys if first.get(key)), None)


def _meminfo(proc: Path, key: str) -> int:
    line = next(line for line in _text(proc / "meminfo").splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])


def _turbo(cpus: Path) -> str:
    for path, on in ((cpus / "intel_pstate/no_turbo", "0"), (cpus / "cpufreq/boost", "1")):
        if path.is_file():
            return "on" if _text(path) == on else "off"
    raise FileNotFoundError("neither intel_pstate nor cpufreq tells it")


def _own_group(proc: Path, system: Path, *names: str) -> str:
    """Return this process's own limit (cgroup version 2, then 1), else the root's."""
    root = system / "fs/cgroup"
    groups = [line.split(":", 2)[2].lstrip("/") for line in _text(proc / "self/cgroup").splitlines()]
    homes = (root, root / "cpu", root / "memory")
    places = [home / group / name for group in groups for home in homes for name in names]
    place = next(
        (path for path in [*places, *(home / name for home in homes for name in names)] if path.is_file()), None
    )
    return _text(place) if place else "no limit"


def _vendor(system: Path) -> str | bool:
    kind = system / "hypervisor/type"
    return _text(kind) if kind.is_file() else False


def _container(proc: Path) -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    words = re.search(r"kubepods|docker|lxc|containerd", _text(proc / "1/cgroup"))
    return words[0] if words else "none"


def _power_source(system: Path) -> str:
    supplies = [path for path in sorted((system / "class/power_supply").iterdir()) if (path / "type").is_file()]
    mains = [_text(supply / "online") for supply in supplies if _text(supply / "type") in ("Mains", "USB")]
    states = [_text(supply / "status") for supply in supplies if _text(supply / "type") == "Battery"]
    if "1" in mains:
        return "mains"
    return "battery" if "Discharging" in states else "mains" if not states else states[0].lower()


def _command(*words: str) -> str:
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(f"no command {words[0]}")
    done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
    return " ".join(done.stdout.split())


def software_facts() -> dict[str, Reader]:
    """Return readers of the software that runs inside a frame."""
    return {
        "python.version": platform.python_version,
        "python.implementation": platform.python_implementation,
        "python.threads_free": lambda: not getattr(sys, "_is_gil_enabled", lambda: True)(),
        "packages": lambda: _packages(_RUNNING),
        "onnxruntime.build": lambda: _loaded("onnxruntime").get_build_info(),
        "onnxruntime.providers": lambda: list(_loaded("onnxruntime").get_available_providers()),
        "opencv.threads": lambda: _loaded("cv2").getNumThreads(),
        "variables": lambda: {key: os.environ[key] for key in sorted(os.environ) if _VARIABLES.match(key)},
    }


def _packages(wanted: re.Pattern[str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, distributions, version  # 8 ms, as in `environment.py`

    packages = {}
    for name in sorted({name for distribution in distributions() if wanted.match(name := _name_of(distribution))}):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return packages


def _name_of(distribution: Distribution) -> str:
    """Return the name of an installed package, or nothing where it tells none.

    The parser of `distribution.metadata` reads the description too: 33 ms for 116 packages, against 5 ms.
    """
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
    text = text or distribution.read_text("") or ""  # an `.egg-info` that is a file, as Debian's packages have
    named = _NAME.search(text.partition("\n\n")[0])
    return named[1] if named else ""


def _loaded(module: str) -> Any:
    """Never import an engine for its version: that would cost a cold start its meaning."""
    if module not in sys.modules:
        raise LookupError(f"{module} is not loaded")
    return sys.modules[module]


def moment_facts(proc: Path, system: Path) -> dict[str, Reader]:
    """Return readers of the state of this moment."""
    cpus = system / "devices/system/cpu"
    zones = system / "class/thermal"
    return {
        "cpu.now_khz": lambda: _by_core(cpus, "cpufreq/scaling_cur_freq"),
        "cpu.throttle_counts": lambda: _by_core(cpus, "thermal_throttle/core_throttle_count"),
        "heat.zones": lambda: (
            {
                path.name: {"type": _text(path / "type"), "millicelsius": int(_text(path / "temp"))}
                for path in sorted(zones.glob("thermal_zone*"))
            }
            or None
        ),
        "heat.raspberry_pi": lambda: _command("vcgencmd", "get_throttled"),
        "heat.nvidia": lambda: _command(
            "nvidia-smi", "--query-gpu=clocks_event_reasons.active", "--format=csv,noheader"
        ),
        "load.average": lambda: [round(number, 2) for number in os.getloadavg()],
        "memory.total_mib": _memory_mib,
        "memory.available_mib": lambda: _meminfo(proc, "MemAvailable") // 1024,
        "disk": lambda: {
            path.name: {"rotates": _text(path / "queue/rotational") == "1"}
            for path in sorted((system / "block").iterdir())
            if not path.name.startswith(("loop", "ram", "zram"))
        },
    }


def _memory_mib() -> int:
    import psutil  # no model is opened with it, and it is imported with the time of opening

    return int(psutil.virtual_memory().total) // 2**20


def provenance_facts() -> dict[str, Reader]:
    """Return readers of where a result comes from."""
    return {
        "code.packages": lambda: _packages(_OTHERS),
        "code.commit": lambda: commit_of(Path(__file__).parents[4]),
        "code.arguments": lambda: sys.argv,
    }


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, from its files: git need not be installed."""
    folder = root / ".git"
    head = _text(folder / "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    if (folder / name).is_file():
        return _text(folder / name)
    packed = _text(folder / "packed-refs").splitlines()
    return next(line.split()[0] for line in packed if line.endswith(f" {name}"))
