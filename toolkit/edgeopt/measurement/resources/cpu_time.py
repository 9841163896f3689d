"""CPU time of an inference at the real frame rate, all threads of the process.

An engine that spins burns cores between frames: the wall clock does not show it, CPU time does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeopt.measurement.clock import Clock
from edgeopt.system.processes.programs import own_ns


@dataclass(frozen=True, slots=True)
class CpuCost:
    """The processor time of the whole process while it ran paced frames."""

    cpu_ns: int
    """User and system time of all threads."""
    wall_ns: int
    frames: int
    fps: float
    """The pace that was asked for."""
    late: int
    """Frames that began more than a tenth of a period late: the pace was not held."""

    @property
    def per_inference_ms(self) -> float | None:
        """CPU milliseconds a frame; None without frames."""
        return self.cpu_ns / self.frames / 1e6 if self.frames else None

    @property
    def cores(self) -> float:
        """Cores kept busy on average."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else 0.0


def spin_entries(*, on: bool) -> dict[str, str]:
    """Return the session entries of ONNX Runtime that let idle threads spin, or sleep.

    Source: session.intra_op.allow_spinning and session.inter_op.allow_spinning, both "1" by default.
    """
    value = "1" if on else "0"
    return {"session.intra_op.allow_spinning": value, "session.inter_op.allow_spinning": value}


def _sleep_ns(duration_ns: int) -> None:
    time.sleep(duration_ns / 1e9)


def run_paced(
    run: Callable[[int], object],
    *,
    fps: float,
    seconds: float,
    clock: Clock = time.perf_counter_ns,
    cpu_clock: Clock = own_ns,
    wait_ns: Callable[[int], None] = _sleep_ns,
) -> CpuCost:
    """Run at a fixed pace for a time and return what it cost the process.

    Between frames this thread sleeps: a generator that spins would be counted as the engine's work.

    Args:
        run: One inference; the argument counts them.
        fps: Frames a second, above 0.
        seconds: How long; a frame that is not begun by then is not run.
        clock: Nanoseconds that never go back.
        cpu_clock: Nanoseconds of CPU time of the whole process and of programs that compute for it.
        wait_ns: Lets so many nanoseconds pass.
    """
    period_ns, start_ns, cpu_before = 1e9 / fps, clock(), cpu_clock()
    frames = late = 0
    while (due := start_ns + round(frames * period_ns)) < start_ns + seconds * 1e9:
        now = clock()
        if now >= start_ns + seconds * 1e9:
            break
        if due > now:
            wait_ns(due - now)
        elif now - due > period_ns / 10:
            late += 1
        run(frames)
        frames += 1
    rest = start_ns + round(seconds * 1e9) - clock()
    if rest > 0:  # what the engine burns after the last frame belongs to it
        wait_ns(rest)
    return CpuCost(cpu_clock() - cpu_before, clock() - start_ns, frames, fps, late)
