"""Memory of this process and of programs that compute for it, beside a run: peak, now, and whether it grows.

The arena that ONNX Runtime holds is only told by its operator profile (`profile.Profile.arena_held_bytes`): the Python
package offers no reading of its allocators.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from edgeopt.measurement.resources.readings import PeriodicSampler
from edgeopt.measurement.statistics.trend import Slope, theil_sen
from edgeopt.system.processes.programs import program_bytes

_SELF = Path("/proc/self")
_RESET_PEAK = "5"  # of /proc/PID/clear_refs, proc(5)


@dataclass(frozen=True, slots=True)
class Growth:
    """How resident memory changes over a run."""

    per_s: Slope
    """Bytes a second."""
    per_frame: Slope | None
    """Bytes a frame; None when no frames were counted."""
    seconds: float
    """Length of the watch; from a few seconds, the growth of an hour is a guess."""

    @property
    def is_growing(self) -> bool:
        """Whether the whole 95 % interval is above zero: a leak, or a cache that still fills."""
        return self.per_s.is_rising

    @property
    def per_hour_mib(self) -> Slope:
        """MiB an hour at the pace of the run."""
        return self.per_s.scaled(3600 / 2**20)

    @property
    def grown_mib(self) -> float:
        """MiB over the time that was watched."""
        return self.per_s.value * self.seconds / 2**20


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTrace:
    """Resident memory over a run, raw."""

    at_ns: NDArray[np.int64]
    """(n,) instants of the clock that took them."""
    rss_bytes: NDArray[np.int64]
    """(n,)"""
    available_bytes: NDArray[np.int64]
    """(n,) what the system could still give without swapping."""
    peak_bytes: int | None = None
    peak_since: str = "the start of the process"
    arena_bytes: int | None = None
    """Bytes that the engine's arena held; None: no profile measured it."""
    missing: tuple[str, ...] = ()
    """Readings that this system does not give, each with the reason."""

    @property
    def now_bytes(self) -> int | None:
        """Resident memory at the last sample."""
        return int(self.rss_bytes[-1]) if len(self.rss_bytes) else None

    @property
    def headroom_bytes(self) -> int | None:
        """The least the system had left."""
        return int(self.available_bytes.min()) if len(self.available_bytes) else None

    def growth(self, *, frames: int = 0, after_ns: int = 0) -> Growth | None:
        """Return the slope of resident memory; None for fewer than 8 samples.

        Args:
            frames: How many frames ran in the time that is judged; 0: unknown.
            after_ns: Samples before this instant belong to warm-up: an arena grows there once.
        """
        kept = self.at_ns >= after_ns
        at_s, rss = self.at_ns[kept] / 1e9, self.rss_bytes[kept].astype(np.float64)
        slope = theil_sen(at_s, rss)
        if slope is None:
            return None
        seconds = float(at_s[-1] - at_s[0])
        return Growth(slope, slope.scaled(seconds / frames) if frames and seconds > 0 else None, seconds)


def read_memory() -> tuple[int, int]:
    """Return resident bytes of this process with its programs, and available bytes of the system, now."""
    return psutil.Process().memory_info().rss + program_bytes(), psutil.virtual_memory().available


def peak_rss_bytes(proc: Path = _SELF) -> int | None:
    """Return the most this process ever held and what its programs hold now; None where the system does not say.

    Source: VmHWM of /proc/self/status; ru_maxrss (bytes on macOS); the peak working set on Windows.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (proc / "status").read_text("ascii", "replace").splitlines()
        peak_bytes = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
        return None if peak_bytes is None else peak_bytes + program_bytes()
    with contextlib.suppress(ImportError, OSError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit + program_bytes()
    peak = getattr(psutil.Process().memory_info(), "peak_wset", None)
    return None if peak is None else int(peak) + program_bytes()


def reset_peak(proc: Path = _SELF) -> bool:
    """Let the peak count from now; return whether the system did so (Linux only)."""
    try:
        (proc / "clear_refs").write_text(_RESET_PEAK, "ascii")
    except OSError:
        return False
    return True


def make_trace(
    taken: Sequence[tuple[int, tuple[int, int]]],
    *,
    peak_bytes: int | None = None,
    was_reset: bool = False,
) -> MemoryTrace:
    """Return the trace of readings: (instant in ns, (resident, available) in bytes), in order."""
    at, values = [one[0] for one in taken], [one[1] for one in taken]
    missing = [] if peak_bytes is not None else ["peak memory: this system keeps no peak"]
    return MemoryTrace(
        at_ns=np.array(at, np.int64),
        rss_bytes=np.array([rss for rss, _ in values], np.int64),
        available_bytes=np.array([available for _, available in values], np.int64),
        peak_bytes=peak_bytes,
        peak_since="the start of the run" if was_reset else "the start of the process",
        missing=(*missing, "arena: only an operator profile tells it"),
    )


class MemoryWatch:
    """The handle of `watch_memory`: call `trace()` after the block."""

    def __init__(self, sampler: PeriodicSampler[tuple[int, int]], *, was_reset: bool) -> None:
        self._sampler, self._was_reset = sampler, was_reset

    def trace(self) -> MemoryTrace:
        """Return what was read so far."""
        return make_trace(list(self._sampler.taken), peak_bytes=peak_rss_bytes(), was_reset=self._was_reset)


@contextlib.contextmanager
def watch_memory(interval_s: float = 0.25) -> Iterator[MemoryWatch]:
    """Read memory beside a run with a light thread (about 60 us a reading).

    Args:
        interval_s: Time between readings.
    """
    was_reset = reset_peak()
    sampler = PeriodicSampler(read_memory, interval_s)
    with sampler:
        yield MemoryWatch(sampler, was_reset=was_reset)
