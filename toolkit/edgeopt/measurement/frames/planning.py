"""Which wishes of `bench` go together, and the load that they describe."""

from __future__ import annotations

from collections.abc import Iterator

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.load.arrivals import Phases
from edgeopt.measurement.load.beside import parse_beside
from edgeopt.measurement.load.models import Load, OpenLoad, examples, parse_load
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.run import LoadPlan
from edgeopt.measurement.statistics.budget import unprovable
from edgeopt.runtime.schedule.queueing import parse_queue
from edgeopt.system.machine.threads import logical_cores
from edgeopt.system.text import plural
from edgeopt.system.toml import require_ranges

_WORKERS_A_CORE = 16


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
    yield from options.contradictions()
    yield (
        (options.device_price is not None or options.cloud_price is not None) and not options.find_capacity,
        "the cost of an inference needs the rate that keeps the budget",
        "add --find-capacity",
    )
