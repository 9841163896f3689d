"""The system's own counters at one moment.

Only counters that every user may read: no root, no driver. Linux has most of them, macOS and Windows some.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import psutil

from edgeopt.measurement.clock import Clock
from edgeopt.system.processes.programs import own_s

T = TypeVar("T")


class PeriodicSampler(Generic[T]):
    """Reads when entered, then every `interval_s`, and once more when left.

    A reading costs the run its own time; keep it below a thousandth of the interval.
    """

    def __init__(self, read: Callable[[], T], interval_s: float = 0.1, clock: Clock = time.perf_counter_ns) -> None:
        self._read, self._interval_s, self._clock = read, interval_s, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="edgeopt sampler", daemon=True)
        self.taken: list[tuple[int, T]] = []
        """Pairs of the clock's nanoseconds and the value, in order."""
        self.failure: str | None = None
        """Why reading ended before the run did; the values before it are kept."""

    def __enter__(self) -> PeriodicSampler[T]:
        self._take()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._take()

    def _repeat(self) -> None:
        while self.failure is None and not self._stop.wait(self._interval_s):
            self._take()

    def _take(self) -> None:
        if self.failure is not None:
            return
        try:
            value = self._read()
        except (OSError, ValueError) as error:  # a sensor that goes away, or answers nonsense
            self.failure = str(error)
            return
        self.taken.append((self._clock(), value))


_PROC, _SYS = Path("/proc"), Path("/sys")


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counters since boot or start of the process, except where it says "now"; None: no such sensor."""

    monotonic_ns: int
    wall_ns: int
    busy_s: float | None = None
    """All cores of the machine, all processes."""
    steal_s: float | None = None
    """Time the hypervisor gave to others; 0 on machines without one."""
    total_s: float | None = None
    """Busy, idle and stolen time of all cores."""
    own_s: float | None = None
    """CPU time of this process, its finished children and the programs that compute for it."""
    pressure_us: int | None = None
    """Time in which some runnable task waited for a core (PSI cpu some)."""
    switches: int | None = None
    """Involuntary context switches of the threads of this process."""
    major_faults: int | None = None
    throttled: int | None = None
    """Periods in which the container's quota stopped this group."""
    heat_throttled: int | None = None
    """Times that heat slowed a core."""
    frequency_mhz: tuple[float, ...] | None = None
    """Now, by core."""
    temperature_c: tuple[float, ...] | None = None
    """Now, by sensor."""
    heat_margin_c: float | None = None
    """Now: how far the hottest sensor is below its own limit."""
    load1: float | None = None
    """Load average of the last minute."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The sensors this machine does not offer, by their names here."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)


def take_reading(proc: Path = _PROC, system: Path = _SYS) -> CounterReading:
    """Read all sensors that are there; about one millisecond, so between frames and not inside one.

    Args:
        proc: Where Linux keeps its process files.
        system: Where Linux keeps its device files.
    """
    sensors: dict[str, Callable[[], Any]] = {
        "own_s": own_s,
        "pressure_us": lambda: _pressure_us(proc / "pressure/cpu"),
        "switches": lambda: _switches(proc / "self/task"),
        "major_faults": _major_faults,
        "throttled": lambda: _throttled(proc / "self/cgroup", system / "fs/cgroup"),
        "heat_throttled": lambda: _heat_throttled(system / "devices/system/cpu"),
        "frequency_mhz": lambda: _frequency_mhz(system / "devices/system/cpu"),
        "load1": lambda: psutil.getloadavg()[0],
    }
    values: dict[str, Any] = {name: _or_none(read) for name, read in sensors.items()}
    values |= _or_none(_cpu_times) or {}
    values |= _or_none(_temperatures) or {}
    return CounterReading(monotonic_ns=time.perf_counter_ns(), wall_ns=time.time_ns(), **values)


def _or_none(read: Callable[[], Any]) -> Any:
    """A sensor fails in the system's own way: no file, odd text, refused access, function not built in."""
    try:
        return read()
    except (OSError, ValueError, IndexError, KeyError, AttributeError, ImportError, StopIteration, psutil.Error):
        return None


def _cpu_times() -> dict[str, float]:
    times = psutil.cpu_times()._asdict()
    counted = {name: value for name, value in times.items() if not name.startswith("guest")}  # guest is in user
    idle = counted["idle"] + counted.get("iowait", 0.0)
    steal, total = counted.get("steal", 0.0), sum(counted.values())
    return {"busy_s": total - idle - steal, "steal_s": steal, "total_s": total}


def _pressure_us(path: Path) -> int:
    some = next(line for line in path.read_text("ascii").splitlines() if line.startswith("some"))
    return int(some.rsplit("total=", 1)[1])


def _switches(tasks: Path) -> int:
    """Sum over threads: /proc/self/status and psutil count the first thread alone."""
    if not tasks.is_dir():
        return int(psutil.Process().num_ctx_switches().involuntary)
    counts = []
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):  # a thread may end while we look
            counts += _numbers((task / "status").read_text("ascii", "replace"), "nonvoluntary_ctxt_switches")
    return sum(counts)


def _major_faults() -> int:
    import resource  # absent on Windows, where no counter tells major faults from others

    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _throttled(own_group: Path, root: Path) -> int:
    groups = [line.split(":", 2)[2].lstrip("/") for line in own_group.read_text("utf-8").splitlines()]
    homes = (root, root / "cpu", root / "cpu,cpuacct")
    places = [home / group / "cpu.stat" for group in groups for home in homes]
    stat = next(place for place in [*places, root / "cpu.stat"] if place.is_file())
    return _numbers(stat.read_text("ascii"), "nr_throttled")[0]


def _heat_throttled(cpus: Path) -> int:
    counts = [int(path.read_text("ascii")) for path in cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    if not counts:
        raise KeyError("no core has a counter")
    return sum(counts)


def _frequency_mhz(cpus: Path) -> tuple[float, ...]:
    """Only cpufreq tells the frequency of now; /proc/cpuinfo of a virtual machine repeats the nominal one."""
    paths = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if not paths:
        raise KeyError("no core has a frequency")
    return tuple(int(path.read_text("ascii")) / 1000 for path in paths)


def _temperatures() -> dict[str, Any]:
    sensors = [sensor for group in psutil.sensors_temperatures().values() for sensor in group]
    if not sensors:
        return {}
    limits = [sensor.high or sensor.critical for sensor in sensors]
    margins = [limit - sensor.current for sensor, limit in zip(sensors, limits, strict=True) if limit]
    return {
        "temperature_c": tuple(sensor.current for sensor in sensors),
        "heat_margin_c": min(margins) if margins else None,
    }


def _numbers(text: str, key: str) -> list[int]:
    lines: Iterable[str] = (line.replace(":", " ") for line in text.splitlines())
    return [int(words[1]) for line in lines if (words := line.split()) and words[0] == key]
