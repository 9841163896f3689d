"""Fast and slow cores of one processor, as Linux tells them: Arm's big.LITTLE, Intel's P and E cores.

A parallel section waits for its slowest thread, so a thread on a slow core makes the others wait: an engine that gets
as many threads as there are fast cores is left to them by the scheduler, which gives busy threads the fast ones first.

Sources: Linux, `Documentation/ABI/testing/sysfs-devices-system-cpu` (cpu_capacity, cpufreq, topology); Intel's
`/sys/devices/cpu_core` beside `cpu_atom`, which the kernel makes for hybrid processors alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

DEVICES = Path("/sys/devices")
_LEAST_CAPACITY = 0.6
"""Share of the fastest core's capacity (instructions count there): a Cortex-A55 beside an A76 has 0.4, an A78 beside
an X1 0.75 to 0.85."""
_LEAST_FREQUENCY = 0.8
"""The same of the highest clock, where no capacity is told: an A55 beside an A76 has 0.75, a favoured core of a
desktop 0.95."""


def fast_cores(usable: Collection[int], devices: Path = DEVICES) -> int:
    """Return how many physical cores of the fastest kind there are among some logical ones.

    All physical cores count where the system tells no kinds, as on macOS and Windows.

    Args:
        usable: Numbers of logical cores.
        devices: The folder that Linux shows devices in.

    Returns:
        At least 1 where any core is usable and its siblings are known; 0: nothing is known.
    """
    cores = _folders(usable, devices)
    siblings = [_text(cores[number] / "topology" / "thread_siblings_list") for number in _fast(cores, devices)]
    return len({*siblings}) if all(siblings) else 0


def fastest_first(usable: Collection[int], devices: Path = DEVICES) -> tuple[int, ...]:
    """Return logical cores by their numbers, those of the fastest kind before the others.

    Args:
        usable: Their numbers.
        devices: The folder that Linux shows devices in.
    """
    fast = _fast(_folders(usable, devices), devices)
    return tuple(sorted(usable, key=lambda number: (number not in fast, number)))


def fast_processors(usable: Collection[int], devices: Path = DEVICES) -> tuple[int, ...]:
    """Return the logical cores of the fastest kind by their numbers; none where all are of one kind.

    Args:
        usable: Numbers of logical cores.
        devices: The folder that Linux shows devices in.
    """
    fast = _fast(_folders(usable, devices), devices)
    return tuple(sorted(fast)) if fast < {*usable} else ()


def _folders(usable: Collection[int], devices: Path) -> dict[int, Path]:
    folders = {number: devices / "system" / "cpu" / f"cpu{number}" for number in usable}
    return {number: folder for number, folder in folders.items() if folder.is_dir()}


def _fast(cores: Mapping[int, Path], devices: Path) -> set[int]:
    """Return the cores of the fastest kind; all where the system tells no kinds."""
    by_kind = _fast_by_kind(cores, devices) or _fast_by(cores, "cpu_capacity", _LEAST_CAPACITY)
    return by_kind or _fast_by(cores, "cpufreq/cpuinfo_max_freq", _LEAST_FREQUENCY) or {*cores}


def _fast_by_kind(cores: Mapping[int, Path], devices: Path) -> set[int]:
    """Return Intel's P cores of a hybrid processor; empty: it is none, or all that are usable are E cores."""
    if not (devices / "cpu_atom").is_dir():
        return set()
    return numbers_of(_text(devices / "cpu_core" / "cpus")) & {*cores}


def _fast_by(cores: Mapping[int, Path], file: str, least: float) -> set[int]:
    """Return the cores with at least a share of the largest number in a file; empty: not all tell theirs."""
    numbers = {number: _text(folder / file) for number, folder in cores.items()}
    if not numbers or not all(text.isdecimal() and int(text) for text in numbers.values()):
        return set()
    most = max(map(int, numbers.values()))
    return {number for number, text in numbers.items() if int(text) >= least * most}


def numbers_of(text: str) -> set[int]:
    """Return the numbers of a list as Linux writes it, such as `0-3,8`; empty where it is none."""
    numbers = set[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return set()
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
