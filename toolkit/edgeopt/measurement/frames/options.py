"""Options of `bench` for a model that answers frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from edgeopt.measurement.common_options import (
    ARRIVALS,
    BESIDES,
    BUDGET,
    COLD_STARTS,
    EXAMPLES,
    LENGTH,
    MAX_MISS_RATIO,
    MODEL,
    QUEUES,
    SECONDS,
    seed_option,
    shapes_option,
    source_option,
    threads_option,
)
from edgeopt.measurement.resources.cpu_time import spin_entries
from edgeopt.measurement.resources.prices import COST, Prices
from edgeopt.system.declared.options import FileUse, Syntax, option
from edgeopt.system.machine.threads import DEFAULT_THREADS
from edgeopt.system.toml import DURATION_MS, DURATION_S, SEEDS, THREADS, Within

PROBE_SECONDS = 30.0

_OF_KINDS = ("target", "recipe", "out", "code")


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement of whole frames: its length, its pictures and its budget."""

    source: str | Path | None = source_option(MODEL)
    """Pictures; None: the recipe's own, or synthetic ones."""
    seconds: Annotated[float, DURATION_S] | None = option(
        None,
        "Measure at least this long.",
        group=LENGTH,
        common=True,
        syntax=Syntax.SECONDS,
        shown=f"{SECONDS:g}s; {PROBE_SECONDS:g}s for each run of --find-capacity",
    )
    """Least time to measure after warm-up; None: 5, and 30 for each run of the search for the capacity."""
    min_frames: Annotated[int, Within(1, 10**8)] = option(
        400, "Measure at least this many frames.", "--frames", group=LENGTH, syntax=Syntax.WHOLE, least=1
    )
    """Least frames to measure after warm-up."""
    minutes: Annotated[float, Within(0, DURATION_S.most / 60, above=True)] | None = option(
        None,
        "Measure this many minutes instead, and show how the times change.",
        group=LENGTH,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
        metavar="MINUTES",
    )
    """Measure this many minutes instead, and show how the times change."""
    budget_ms: Annotated[float, DURATION_MS] | None = option(
        None,
        "Time that a frame may take, such as 33ms; exit code 2 if it is missed.",
        "--budget",
        group=BUDGET,
        common=True,
        syntax=Syntax.FRAME_BUDGET,
        shown="the target's, without an effect on the exit code",
    )
    """Time that a frame may take; None: the target's, which does not change the exit code."""
    max_miss_ratio: Annotated[float, Within(0, 1)] = option(
        MAX_MISS_RATIO,
        "Share of the frames that may miss the budget.",
        "--max-miss",
        group=BUDGET,
        syntax=Syntax.SHARE,
    )
    """Share of the frames that may miss the budget."""
    threads: Annotated[int, THREADS] = threads_option(MODEL, f"{DEFAULT_THREADS}, shared by the sessions")
    """Threads of the engine; 0: the target's, or the fast cores, shared by the workers."""

    @property
    def measure_s(self) -> float:
        """Least time to measure after warm-up."""
        return self.minutes * 60 if self.minutes else self.seconds or SECONDS

    def to_json(self) -> dict[str, Any]:
        """Return the options as plain values, without target, recipe and folders."""
        values = {name: value for name, value in asdict(self).items() if name not in _OF_KINDS}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@dataclass(frozen=True)
class BenchOptions(MeasureOptions, Prices):
    """Options of `edgeopt bench` for a model that answers frames."""

    load: str = option(
        "closed",
        "How frames arrive: {}.",
        group=ARRIVALS,
        common=True,
        help_from=EXAMPLES,
        file_use=FileUse.READ_WITHIN,
    )
    """How frames arrive, such as `closed:4` or `fps:30`; a rate is that of each stream."""
    streams: Annotated[int, Within(1, 1000)] = option(
        1, "Number of cameras, each at the rate of --load.", group=ARRIVALS, syntax=Syntax.WHOLE, least=1
    )
    """Cameras, each at the rate of `load`."""
    phases: str = option(
        "uniform",
        "When the cameras begin: spread evenly (uniform), or at random.",
        group=ARRIVALS,
        syntax=Syntax.CHOICE,
        choices=("uniform", "random"),
    )
    """When the cameras begin: `uniform` (evenly spread) or `random`."""
    queue: str = option("fifo", f"{QUEUES}.", group=ARRIVALS)
    """Which frames wait: `fifo`, `bounded:8` or `latest`."""
    workers: int = option(
        1, "Sessions that answer frames at the same time.", group=ARRIVALS, syntax=Syntax.WHOLE, least=1
    )
    """Sessions that answer frames at the same time."""
    jitter_ms: Annotated[float, Within(0, DURATION_MS.most)] = option(
        0.0,
        "Standard deviation of the times at which a camera takes its pictures.",
        "--jitter",
        group=ARRIVALS,
        syntax=Syntax.MILLISECONDS,
        shown="none",
    )
    """Standard deviation of the times at which a camera takes its pictures."""
    seed: Annotated[int, SEEDS] = seed_option(ARRIVALS, "arrivals, phases and orders")
    """Decides arrivals, phases and orders."""
    spin: bool | None = option(
        None,
        "Whether idle threads of ONNX Runtime spin (wait busily).",
        group=BESIDES,
        syntax=Syntax.SWITCH,
        shown="as the target says",
    )
    """Whether idle threads of ONNX Runtime spin; None: as the target says."""
    rounds: Annotated[int, Within(0, 1000)] = option(
        0,
        "Also measure in this many fresh processes, for the p99 over all of them.",
        group=BESIDES,
        syntax=Syntax.WHOLE,
        least=2,
        shown="none",
    )
    """Fresh processes that are also measured, for the p99 over processes; 0: none."""
    find_capacity: bool = option(
        False,
        "Search for the highest rate that keeps the budget.",
        group=BUDGET,
        syntax=Syntax.FLAG,
    )
    """Whether to search for the highest rate that keeps the budget."""
    batches: tuple[Annotated[int, Within(1, 4096)], ...] = option(
        (), "Also measure these batch sizes, such as 1,2,4,8.", "--batch", group=BESIDES, syntax=Syntax.COUNTS
    )
    """Batch sizes to measure too."""
    beside: str | None = option(
        None,
        "Also run model B on this machine: both at the same time, then in turns.",
        group=BESIDES,
        metavar="B[@15fps]",
        file_use=FileUse.READ,
    )
    """Another model on the same cores, such as `other.onnx@15fps`; without a rate it computes one frame after the
    other."""
    cold: bool = option(
        False,
        "Also time the start of fresh processes, with a warm and with a cold page cache.",
        group=BESIDES,
        syntax=Syntax.FLAG,
    )
    """Whether the start of fresh processes is timed, with a warm and with a cold page cache."""
    repeats: Annotated[int, Within(1, 1000)] | None = option(
        None,
        "With --cold: number of starts with each state of the cache.",
        group=BESIDES,
        syntax=Syntax.WHOLE,
        least=1,
        shown=str(COLD_STARTS),
    )
    """Starts with each state of the page cache for `cold`; None: `COLD_STARTS`."""
    profile: bool = option(
        False,
        "Also show which operators take the time, measured in a separate run.",
        group=BESIDES,
        syntax=Syntax.FLAG,
    )
    """Whether a separate run measures which operators take the time."""
    trace: Path | None = option(
        None,
        "Write a timeline into this file, for Perfetto or chrome://tracing.",
        group=BESIDES,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )
    """File for a timeline, for Perfetto or chrome://tracing; None: none is written."""
    energy: bool = option(
        False,
        "Also read the machine's power meters, which takes 30s or more.",
        group=COST,
        syntax=Syntax.FLAG,
    )
    """Whether the machine's power meters are read."""
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    """Whole shapes of inputs by name, for inputs whose shape the model leaves free; a bundle has its own."""

    @property
    def entries(self) -> dict[str, str]:
        """Entries of ONNX Runtime's session that these options set."""
        return {} if self.spin is None else spin_entries(on=self.spin)


class FrameBenchWishes(TypedDict, total=False):
    """Keyword options of `bench`; `BenchOptions` says what each means, and its default."""

    source: str | Path | None
    load: str
    streams: int
    phases: str
    queue: str
    workers: int
    jitter_ms: float
    seed: int
    seconds: float | None
    min_frames: int
    minutes: float | None
    budget_ms: float | None
    max_miss_ratio: float
    threads: int
    spin: bool | None
    rounds: int
    find_capacity: bool
    batches: tuple[int, ...]
    beside: str | None
    cold: bool
    repeats: int | None
    profile: bool
    trace: Path | None
    energy: bool
    device_price: float | None
    life_years: float | None
    watts: float | None
    kwh_price: float | None
    cloud_price: float | None
    shapes: Mapping[str, tuple[int, ...]]
