"""What `bench` is asked for, and which wishes go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.arrivals import Phases
from edgeopt.measurement.load.beside import parse_beside
from edgeopt.measurement.load.models import Load, OpenLoad, examples, parse_load
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.run import LoadPlan
from edgeopt.measurement.resources.cost import cloud_per_s, device_per_s
from edgeopt.measurement.resources.cpu_time import spin_entries
from edgeopt.measurement.statistics.budget import unprovable
from edgeopt.runtime.queueing import parse_queue
from edgeopt.system.text import plural
from edgeopt.system.threads import logical_cores
from edgeopt.system.toml import DURATION_MS, DURATION_S, SEEDS, THREADS, Within, require_ranges

SECONDS = 5.0
PROBE_SECONDS = 30.0
COLD_REPEATS = 10
_HOURS_A_YEAR = 8766.0
_WORKERS_A_CORE = 16
_PRICE = Within(0, 1e12)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Wishes, in the words of the command line."""

    source: str | Path | None = None
    """Pictures; None: the recipe's own, or synthetic ones."""
    load: str = "closed"
    """Like `closed:4` or `fps:30`, one of `measurement/load/models/`; a rate is per stream."""
    streams: Annotated[int, Within(1, 1000)] = 1
    """Cameras, each at the rate of `load`."""
    phases: str = "uniform"
    """`uniform` or `random`."""
    queue: str = "fifo"
    """`fifo`, `bounded:8` or `latest`."""
    workers: int = 1
    """Sessions that serve an open load."""
    jitter_ms: Annotated[float, Within(0, DURATION_MS.most)] = 0.0
    """Standard deviation of a fixed rate's capture times."""
    seed: Annotated[int, SEEDS] = 0
    """Decides arrivals, phases and orders."""
    seconds: Annotated[float, DURATION_S] | None = None
    """Least time to measure after warm-up; None: 5, and 30 for each run of the search for the capacity."""
    min_frames: Annotated[int, Within(1, 10**8)] = 400
    """Least frames to measure after warm-up."""
    minutes: Annotated[float, Within(0, DURATION_S.most / 60, above=True)] | None = None
    """Measure so long instead, for the curve over time."""
    budget_ms: Annotated[float, DURATION_MS] | None = None
    """What a frame may take; None: the target's, and no gate."""
    max_miss_ratio: Annotated[float, Within(0, 1)] = 0.01
    """Share of the frames that may miss the budget."""
    threads: Annotated[int, THREADS] = 0
    """0: the target's, or the physical cores, shared by the workers."""
    spin: bool | None = None
    """Whether idle threads of ONNX Runtime spin; None: as the target says."""
    rounds: Annotated[int, Within(0, 1000)] = 0
    """Fresh processes for the headline quantiles; 0: none."""
    find_capacity: bool = False
    """Whether the highest rate that keeps the budget is searched."""
    batches: tuple[Annotated[int, Within(1, 4096)], ...] = ()
    """Batch sizes to measure too."""
    beside: str | None = None
    """Another model on the same cores, such as `other.onnx@15fps`; without a rate one frame after the other."""
    cold: bool = False
    """Whether starts of fresh processes are timed, with a warm and a cold page cache."""
    repeats: Annotated[int, Within(1, 1000)] | None = None
    """Starts of each way of a cold start; None: 10."""
    profile: bool = False
    """Whether a run of its own says which operators take the time."""
    trace: Path | None = None
    """File for a timeline, for Perfetto or chrome://tracing; None: none is written."""
    energy: bool = False
    """Whether the machine's power meters are read."""
    device_price: Annotated[float, _PRICE] | None = None
    """Price of the device, in any currency, for the cost of an inference."""
    life_years: Annotated[float, _PRICE] | None = None
    """How long the device works; None: 5 years."""
    watts: Annotated[float, _PRICE] | None = None
    """Power of the device; None: as measured."""
    kwh_price: Annotated[float, _PRICE] | None = None
    """Price of a kWh."""
    cloud_price: Annotated[float, _PRICE] | None = None
    """Of one hour of a rented machine."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Whole shapes of inputs by name, for what a model leaves free; a bundle has its own."""

    @property
    def measure_s(self) -> float:
        """Least time to measure after warm-up."""
        return self.minutes * 60 if self.minutes else self.seconds or SECONDS

    @property
    def entries(self) -> dict[str, str]:
        """Session entries that the wishes stand for."""
        return {} if self.spin is None else spin_entries(on=self.spin)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(self)
        return values | {name: str(values[name]) for name in ("source", "trace") if values[name] is not None}


class BenchWishes(TypedDict, total=False):
    """What `bench` takes by name; `BenchOptions` says what each means, and its default."""

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


def plan_load(options: BenchOptions) -> LoadPlan:
    """Return the load that the wishes describe.

    Raises:
        EdgeoptError: If it cannot be, or wishes contradict each other.
    """
    for is_wrong, problem, remedy in _contradictions(options):
        if is_wrong:
            raise EdgeoptError(problem, remedy=remedy)
    require_ranges(options)
    load = parse_load(options.load)
    return LoadPlan(
        load=load,
        streams=options.streams,
        phases=Phases(options.phases),
        queue=parse_queue(options.queue),
        workers=load.workers if isinstance(load, Closed) else options.workers,
        jitter_ms=options.jitter_ms,
        seed=options.seed,
    )


def _contradictions(options: BenchOptions) -> Iterator[tuple[bool, str, str]]:
    """Yield what would be wrong, whether it is, and what to write instead."""
    load = parse_load(options.load)
    yield from _wrong_load(options, load)
    yield from _wrong_length(options)
    yield from _wrong_cost(options)
    if options.beside is not None:
        parse_beside(options.beside)
        needs = "write --load fps:30 with it, the rate that has to be kept"
        yield not isinstance(load, OpenLoad), f"--beside has no meaning {_where(load)}", needs
        several = f"--beside measures one worker of each model, not {options.workers}"
        yield options.workers > 1, several, "leave --workers out"


def _where(load: Load) -> str:
    return "in a closed loop" if isinstance(load, Closed) else f"for {load}"


def _wrong_load(options: BenchOptions, load: Load) -> Iterator[tuple[bool, str, str]]:
    where = _where(load)
    if isinstance(load, Closed):
        parse_queue(options.queue)
        arriving = f"write --load {examples(lambda kind: issubclass(kind, OpenLoad))} with it: frames arrive there"
        yield options.streams > 1, f"--streams {options.streams} has no meaning {where}", arriving
        yield options.queue.strip() != "fifo", f"--queue {options.queue} has no meaning {where}", arriving
    if not load.takes_jitter:
        taking = f"write --load {examples(lambda kind: kind.takes_jitter)} with it"
        yield options.jitter_ms > 0, f"--jitter has no meaning {where}", taking
    if not load.takes_phases:
        taking = f"write --load {examples(lambda kind: kind.takes_phases)} with it"
        yield options.phases != "uniform", f"--phases has no meaning {where}", taking
    if isinstance(load, Closed):
        wanted = f"write --load closed:{options.workers} for workers that never wait"
        yield options.workers > 1, f"--workers {options.workers} serve a load that arrives", wanted
    served, most = load.workers if isinstance(load, Closed) else options.workers, _WORKERS_A_CORE * logical_cores()
    many = f"{served} workers on a machine of {plural(logical_cores(), 'logical core')}"
    yield served > most, many, f"ask for {most} or fewer: each opens the model"
    yield options.phases not in list(Phases), f"{options.phases!r} are no phases", "write uniform or random"
    least = min(options.streams, options.workers)
    yield least < 1, f"{least} streams or workers do nothing", "write 1 or more"


def _wrong_length(options: BenchOptions) -> Iterator[tuple[bool, str, str]]:
    both = options.seconds is not None and options.minutes is not None
    yield both, "--seconds and --minutes both say how long", "give one of them"
    yield options.min_frames < 1, f"--frames {options.min_frames} measures nothing", "write 1 or more"
    yield unprovable(options.max_miss_ratio, "frames")
    yield options.rounds == 1, "one process round has no interval", "write --rounds 5 or more, or leave it out"
    lonely = options.repeats is not None and not options.cold
    yield lonely, "--repeats counts the starts of --cold", "add --cold, or leave it out"
    odd = options.batches and (min(options.batches) < 1 or len(set(options.batches)) < len(options.batches))
    yield bool(odd), f"batches {','.join(map(str, options.batches))} cannot be swept", "write --batch 1,2,4,8"


def _wrong_cost(options: BenchOptions) -> Iterator[tuple[bool, str, str]]:
    yield from _wrong_prices(options)
    yield (
        (options.device_price is not None or options.cloud_price is not None) and not options.find_capacity,
        "the cost of an inference needs the rate that keeps the budget",
        "add --find-capacity",
    )


def _wrong_prices(options: BenchOptions) -> Iterator[tuple[bool, str, str]]:
    device, cloud = options.device_price is not None, options.cloud_price is not None
    owned = {
        "--life-years": options.life_years,
        "--watts": options.watts,
        "--kwh-price": options.kwh_price,
    }
    given = [name for name, value in owned.items() if value is not None]
    yield device and cloud, "--device-price and --cloud-price are two machines", "give one of them"
    yield bool(given) and not device, f"{', '.join(given)} belong to a device's price", "add --device-price"
    negative = [one for one in (*owned.values(), options.device_price, options.cloud_price) if one and one < 0]
    yield bool(negative) or options.life_years == 0, "prices, watts and years are above zero", "correct them"


def price_second(**prices: float | None) -> float | None:
    """Return what a second of the machine costs where tokens are priced; None when no price was given.

    Raises:
        EdgeoptError: If prices contradict each other.
    """
    options = BenchOptions(**prices)  # type: ignore[arg-type]
    for is_wrong, problem, remedy in _wrong_prices(options):
        if is_wrong:
            raise EdgeoptError(problem, remedy=remedy)
    return price_machine(options, None)


def price_machine(options: BenchOptions, measured_watts: float | None) -> float | None:
    """Return what a second of the machine costs; None when no price was given.

    Args:
        options: With the prices.
        measured_watts: Mean power of the run, where a meter told it; used unless watts were given.
    """
    if options.cloud_price is not None:
        return cloud_per_s(options.cloud_price)
    if options.device_price is None:
        return None
    return device_per_s(
        options.device_price,
        (options.life_years or 5.0) * _HOURS_A_YEAR,
        options.watts if options.watts is not None else measured_watts or 0.0,
        options.kwh_price or 0.0,
    )
