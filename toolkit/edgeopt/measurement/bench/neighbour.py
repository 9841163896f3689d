"""What a session costs other programs on the machine: the same work beside it and without it, in turns.

The figure is work done per second and not the median time of one piece: a neighbour that is pushed off its core
for a while does less, and its median piece is as fast as ever.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.blocks import round_order
from edgeopt.measurement.fresh_process.start import child_environment
from edgeopt.measurement.resources.cpu_time import CpuCost, run_paced
from edgeopt.measurement.statistics.ratio import Ratio, judge_ratio
from edgeopt.system.environment import physical_cores

QUIET = "quiet"
_SETTLE_S = 0.6
"""Spinning goes on for up to half a second after a run (ONNX Runtime pull request 27916)."""


@dataclass(frozen=True, slots=True)
class NeighbourCost:
    """How much slower a neighbour works beside one session, and what the session's process used."""

    slowdown: Ratio
    """Time per piece of work beside the session over the time without it."""
    cpu: tuple[CpuCost, ...]
    """One a block."""

    @property
    def cores(self) -> float:
        """Cores the session's process kept busy, over all blocks."""
        return sum(one.cpu_ns for one in self.cpu) / max(1, sum(one.wall_ns for one in self.cpu))

    @property
    def per_inference_ms(self) -> float | None:
        """CPU milliseconds a frame, over all blocks."""
        frames = sum(one.frames for one in self.cpu)
        return sum(one.cpu_ns for one in self.cpu) / frames / 1e6 if frames else None


Neighbour = Callable[[float, Callable[[], None]], float]
"""Works for so many seconds while the call runs; returns nanoseconds per piece of work."""


@contextlib.contextmanager
def start_neighbours(processes: int) -> Iterator[Neighbour]:
    """Start processes that each do fixed work on one core when asked; they end with the block.

    Args:
        processes: At least 1.
    """
    command = [sys.executable, "-m", "edgeopt.measurement.bench.neighbour_child"]
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_child(command)) for _ in range(processes)]

        def work(seconds: float, beside: Callable[[], None]) -> float:
            for child in children:
                _tell(child, f"{seconds}\n")
            beside()
            return _time_per_piece([_hear(child).split() for child in children])

        yield work


@contextlib.contextmanager
def _child(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=child_environment())
    try:
        _hear(child)
        yield child
    finally:
        with contextlib.suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]  # the end of its input ends it
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]


def _tell(child: subprocess.Popen[str], line: str) -> None:
    if child.stdin is not None:
        child.stdin.write(line)
        child.stdin.flush()


def _hear(child: subprocess.Popen[str]) -> str:
    line = child.stdout.readline() if child.stdout is not None else ""
    if not line:
        raise EdgeoptError(
            f"a neighbour process ended with code {child.wait()}", remedy="free memory or lower the number of threads"
        )
    return line


def _time_per_piece(answers: Sequence[Sequence[str]]) -> float:
    pieces = sum(int(count) for count, _ in answers)
    return sum(int(took) for _, took in answers) / max(1, pieces)


def measure_neighbour(
    loads: Mapping[str, Callable[[int], object]],
    *,
    fps: float = 30.0,
    rounds: int = 5,
    block_s: float = 1.0,
    processes: int = 0,
    settle_s: float = _SETTLE_S,
    seed: int = 0,
) -> Mapping[str, NeighbourCost]:
    """Return what each load costs a neighbour, against a quiet machine; all take turns, A B C C B A.

    Args:
        loads: One inference each, e.g. of a session that spins and of one that does not.
        fps: The pace of the inferences.
        rounds: At least 2; 5 and more give a useful interval.
        block_s: Length of each block.
        processes: Neighbours at once; 0: one per core, so that any core the session takes is felt.
        settle_s: Pause before each block, so that threads of the block before have stopped spinning.
        seed: Of the order.

    Raises:
        EdgeoptError: If a neighbour process dies.
        ValueError: If a load is called `quiet`, or there are fewer than 2 rounds.
    """
    if QUIET in loads or rounds < 2:
        raise ValueError(f"need 2 rounds and no load named {QUIET!r}, got {rounds} and {', '.join(loads)}")
    times: dict[str, list[float]] = {name: [] for name in (QUIET, *loads)}
    costs: dict[str, list[CpuCost]] = {name: [] for name in loads}
    rng = np.random.default_rng(seed)
    with start_neighbours(processes or physical_cores()) as work:
        for _ in range(rounds):
            for name in round_order((QUIET, *loads), rng):
                time.sleep(settle_s)
                times[name].append(work(block_s, _beside(loads.get(name), fps, block_s, costs.get(name))))
    per_round = {name: np.array(found).reshape(rounds, 2) for name, found in times.items()}
    return {
        name: NeighbourCost(judge_slowdown(per_round[name], per_round[QUIET]), tuple(costs[name])) for name in loads
    }


def _beside(
    run: Callable[[int], object] | None, fps: float, seconds: float, costs: list[CpuCost] | None
) -> Callable[[], None]:
    def beside() -> None:
        if run is None or costs is None:
            time.sleep(seconds)
        else:
            costs.append(run_paced(run, fps=fps, seconds=seconds))

    return beside


def judge_slowdown(beside: NDArray[np.float64], quiet: NDArray[np.float64]) -> Ratio:
    """Return time per piece beside a load over time without it.

    Args:
        beside: (rounds, 2) times per piece of work, above zero; at least 2 rounds.
        quiet: (rounds, 2)
    """
    return judge_ratio((np.log(beside) - np.log(quiet)).mean(axis=1), pairs=quiet.size)
