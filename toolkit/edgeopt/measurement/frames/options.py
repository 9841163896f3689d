"""Options of `bench` for a model that answers frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from edgeopt.measurement.common_options import EXAMPLES, seed_option, shapes_option, source_option, threads_option
from edgeopt.measurement.resources.cpu_time import spin_entries
from edgeopt.measurement.resources.prices import COST, Prices
from edgeopt.system.declared.options import FileUse, Syntax, option
from edgeopt.system.machine.threads import DEFAULT_THREADS
from edgeopt.system.toml import DURATION_MS, DURATION_S, SEEDS, THREADS, Within

SECONDS = 5.0
PROBE_SECONDS = 30.0
COLD_REPEATS = 10

MODEL, LENGTH, BUDGET = "Model and device", "How long", "The budget, a gate"
ARRIVALS, BESIDES = "How frames arrive", "Measured besides"
"""Headings of the help."""
_OF_KINDS = ("target", "recipe", "out", "code")


@dataclass(frozen=True)
class MeasureOptions:
    """How long whole frames are measured, with what they are fed, and which budget they have."""

    source: str | Path | None = source_option(MODEL)
    """Pictures; None: the recipe's own, or synthetic ones."""
    seconds: Annotated[float, DURATION_S] | None = option(
        None,
        "Measure at least so long.",
        group=LENGTH,
        syntax=Syntax.SECONDS,
        shown=f"{SECONDS:g}s; {PROBE_SECONDS:g}s a run of --find-capacity",
    )
    """Least time to measure after warm-up; None: 5, and 30 for each run of the search for the capacity."""
    min_frames: Annotated[int, Within(1, 10**8)] = option(
        400, "Measure at least so many frames.", "--frames", group=LENGTH, syntax=Syntax.WHOLE, least=1
    )
    """Least frames to measure after warm-up."""
    minutes: Annotated[float, Within(0, DURATION_S.most / 60, above=True)] | None = option(
        None,
        "Measure so long instead, and show the curve of times.",
        group=LENGTH,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
        metavar="MINUTES",
    )
    """Measure so long instead, for the curve over time."""
    budget_ms: Annotated[float, DURATION_MS] | None = option(
        None,
        "Time a frame may take, such as 33ms: a gate.",
        "--budget",
        group=BUDGET,
        syntax=Syntax.FRAME_BUDGET,
        shown="the target's, no gate",
    )
    """What a frame may take; None: the target's, and no gate."""
    max_miss_ratio: Annotated[float, Within(0, 1)] = option(
        0.01, "Share of the frames that may miss the budget.", "--max-miss", group=BUDGET, syntax=Syntax.SHARE
    )
    """Share of the frames that may miss the budget."""
    threads: Annotated[int, THREADS] = threads_option(MODEL, f"{DEFAULT_THREADS}, shared by the sessions")
    """0: the target's, or the fast cores, shared by the workers."""

    @property
    def measure_s(self) -> float:
        """Least time to measure after warm-up."""
        return self.minutes * 60 if self.minutes else self.seconds or SECONDS

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without those that a kind adds: target, recipe, folders."""
        values = {name: value for name, value in asdict(self).items() if name not in _OF_KINDS}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@dataclass(frozen=True)
class BenchOptions(MeasureOptions, Prices):
    """Wishes, in the words of the command line."""

    load: str = option(
        "closed", "How frames arrive: {}.", group=ARRIVALS, help_from=EXAMPLES, file_use=FileUse.READ_WITHIN
    )
    """Like `closed:4` or `fps:30`, one of `measurement/load/models/`; a rate is per stream."""
    streams: Annotated[int, Within(1, 1000)] = option(
        1, "Cameras, each at the rate of --load.", group=ARRIVALS, syntax=Syntax.WHOLE, least=1
    )
    """Cameras, each at the rate of `load`."""
    phases: str = option(
        "uniform",
        "How far apart cameras begin.",
        group=ARRIVALS,
        syntax=Syntax.CHOICE,
        choices=("uniform", "random"),
    )
    """`uniform` or `random`."""
    queue: str = option("fifo", "Which frames wait: fifo, bounded:K or latest.", group=ARRIVALS)
    """`fifo`, `bounded:8` or `latest`."""
    workers: int = option(1, "Sessions that serve the frames.", group=ARRIVALS, syntax=Syntax.WHOLE, least=1)
    """Sessions that serve an open load."""
    jitter_ms: Annotated[float, Within(0, DURATION_MS.most)] = option(
        0.0,
        "Standard deviation of the times at which a camera takes pictures.",
        "--jitter",
        group=ARRIVALS,
        syntax=Syntax.MILLISECONDS,
        shown="none",
    )
    """Standard deviation of a fixed rate's capture times."""
    seed: Annotated[int, SEEDS] = seed_option(ARRIVALS, "arrivals, phases and orders")
    """Decides arrivals, phases and orders."""
    spin: bool | None = option(
        None,
        "Whether idle threads of ONNX Runtime spin.",
        group=BESIDES,
        syntax=Syntax.SWITCH,
        shown="as the target says",
    )
    """Whether idle threads of ONNX Runtime spin; None: as the target says."""
    rounds: Annotated[int, Within(0, 1000)] = option(
        0,
        "Fresh processes that run beside, for the p99 over processes.",
        group=BESIDES,
        syntax=Syntax.WHOLE,
        least=2,
        shown="none",
    )
    """Fresh processes for the headline quantiles; 0: none."""
    find_capacity: bool = option(
        False,
        "Search for the highest rate that keeps the budget.",
        group=BUDGET,
        syntax=Syntax.FLAG,
    )
    """Whether the highest rate that keeps the budget is searched."""
    batches: tuple[Annotated[int, Within(1, 4096)], ...] = option(
        (), "Also measure these batch sizes, such as 1,2,4,8.", "--batch", group=BESIDES, syntax=Syntax.COUNTS
    )
    """Batch sizes to measure too."""
    beside: str | None = option(
        None,
        "Also run another model here: side by side, then in turns.",
        group=BESIDES,
        metavar="B[@15fps]",
        file_use=FileUse.READ,
    )
    """Another model on the same cores, such as `other.onnx@15fps`; without a rate one frame after the other."""
    cold: bool = option(
        False,
        "Also time starts of fresh processes, with a warm and a cold page cache.",
        group=BESIDES,
        syntax=Syntax.FLAG,
    )
    """Whether starts of fresh processes are timed, with a warm and a cold page cache."""
    repeats: Annotated[int, Within(1, 1000)] | None = option(
        None,
        "Starts of each kind for --cold.",
        group=BESIDES,
        syntax=Syntax.WHOLE,
        least=1,
        shown=str(COLD_REPEATS),
    )
    """Starts of each way of a cold start; None: `COLD_REPEATS`."""
    profile: bool = option(
        False,
        "Also show which operators take the time, in a run of its own.",
        group=BESIDES,
        syntax=Syntax.FLAG,
    )
    """Whether a run of its own says which operators take the time."""
    trace: Path | None = option(
        None,
        "Write a timeline, for Perfetto or chrome://tracing.",
        group=BESIDES,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )
    """File for a timeline, for Perfetto or chrome://tracing; None: none is written."""
    energy: bool = option(
        False,
        "Also read the machine's power meters; takes 30s or more.",
        group=COST,
        syntax=Syntax.FLAG,
    )
    """Whether the machine's power meters are read."""
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    """Whole shapes of inputs by name, for what a model leaves free; a bundle has its own."""

    @property
    def entries(self) -> dict[str, str]:
        """Session entries that the wishes stand for."""
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
