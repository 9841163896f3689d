"""The result of `bench` for a model that answers frames: raw samples, and the figures derived from them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.bench.result import BenchResult, JudgedLimit
from edgeopt.measurement.frames.attribution import StageShare, share_stages
from edgeopt.measurement.frames.diagnosis import again, explain, find_all
from edgeopt.measurement.frames.figures import Figures, make_figures
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.passes import Passes
from edgeopt.measurement.frames.setup import Setup
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.result import LoadResult
from edgeopt.measurement.load.run import LoadPlan, Observed
from edgeopt.measurement.resources.energy import Energy, NotMeasured
from edgeopt.measurement.resources.memory import Growth, MemoryTrace
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import BudgetResult
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.measurement.statistics.trend import Warmup
from edgeopt.system.order_statistic import DEFINITION
from edgeopt.system.text import typed_duration

_WISHES = {
    "--source": "source",
    "--threads": "threads",
    "--load": "load",
    "--streams": "streams",
    "--phases": "phases",
    "--queue": "queue",
    "--workers": "workers",
    "--jitter": "jitter_ms",
}
METHOD = (
    f"quantiles are {DEFINITION}; intervals are 95 %, binomial on the effective number of frames "
    "(n_effective); null where n is too small"
)


@dataclass(frozen=True, kw_only=True)
class FrameBenchResult(BenchResult):
    """Raw samples and what they say."""

    kind: ClassVar[str] = "frames"
    setup: Setup
    observed: Observed
    load: LoadResult
    warmup: Warmup
    passes: Passes
    trust: Trust

    @property
    def options(self) -> BenchOptions:
        """The options of the run."""
        return self.setup.options

    @property
    def plan(self) -> LoadPlan:
        """The load."""
        return self.setup.plan

    @property
    def name(self) -> str:
        """The name of the model or bundle."""
        return self.setup.subject.name

    @property
    def memory(self) -> MemoryTrace:
        """Memory over the run, with the arena where a profile told it."""
        profile, trace = self.passes.profile, self.observed.memory
        if profile is None or profile.arena_held_bytes is None:
            return trace
        missing = tuple(name for name in trace.missing if not name.startswith("arena"))
        return replace(trace, arena_bytes=profile.arena_held_bytes, missing=missing)

    @property
    def samples(self) -> Samples:
        """Every frame of the run."""
        return self.observed.samples

    @property
    def budget(self) -> BudgetResult:
        """The verdict against the budget; it counts from the intended arrival."""
        return self.load.budget

    @property
    def is_gate(self) -> bool:
        """Whether somebody asked for the budget; the target's own is no gate."""
        return self.options.budget_ms is not None

    @property
    def judged(self) -> tuple[JudgedLimit, ...]:
        """The budget."""
        return (JudgedLimit("budget", self.budget.verdict, self.budget.detail),)

    @cached_property
    def summary(self) -> dict[str, Summary]:
        """Head, centre and tail of the frame, each stage and the overhead."""
        return self.samples.summary()

    @cached_property
    def waits(self) -> dict[str, Summary]:
        """The same of waiting and of the whole response, where frames arrive; empty while a queue grows."""
        load = self.load
        if self.plan.rate_per_s is None or load.response is None or load.queue_wait is None:
            return {}
        return {"queue wait": load.queue_wait, "response": load.response}

    @cached_property
    def shares(self) -> Mapping[str, StageShare]:
        """Each stage's share of all frames and of the slow ones."""
        return share_stages(self.samples)

    @cached_property
    def growth(self) -> Growth | None:
        """How resident memory changes after warm-up."""
        rows, observed = self.samples.steady(), self.observed
        after = int(rows.started_ns[0]) if rows.started_ns is not None and len(rows) else 0
        after_ns = self.samples.epoch_ns + after - observed.wall_minus_clock_ns
        return self.memory.growth(frames=len(rows.served()), after_ns=after_ns)

    @cached_property
    def figures(self) -> Figures:
        """The figures that the diagnosis may use."""
        return make_figures(
            self.samples,
            workers=self.plan.workers,
            model=shlex.quote(self.setup.asked),
            target=self.setup.asked_target,
            is_bundle=self.setup.subject.brings_target,
            on=self.setup.elsewhere.address if self.setup.elsewhere else "",
            load=self.plan.load,
            streams=self.plan.streams,
            offered_per_s=self.plan.rate_per_s,
            queue="" if self.plan.rate_per_s is None else str(self.plan.queue),
            provider=next(iter(self.setup.subject.options.providers), ""),
            is_opening_told=self.passes.opening is not None,
            nodes_by_provider=self._nodes_by_provider(),
            threads=self.setup.subject.threads * self.plan.workers,
            cores=float(self.environment.cores),
            attribution=self.passes.attribution,
            trust=self.trust,
            warmup=self.warmup,
            budget=self.budget if self.is_gate else None,
            **self._figures_of_growth(),
            **_figures_of(self.passes),
        )

    def _nodes_by_provider(self) -> Mapping[str, float]:
        if self.passes.profile is not None:
            return self.passes.profile.share_by_provider()
        placed = self.setup.subject.session.placement()
        return {name: count / len(placed) for name, count in Counter(node.provider for node in placed).items()}

    def _figures_of_growth(self) -> dict[str, Any]:
        growth = self.growth
        return {} if growth is None else {"memory_growth": growth.per_hour_mib, "memory_grown_mib": growth.grown_mib}

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the diagnosis, the most urgent first; their commands repeat the user's options."""
        return tuple(
            replace(finding, command=self._repeat_wishes(finding.command)) for finding in find_all(self.figures)
        )

    @property
    def why(self) -> str:
        """The findings as a paragraph: where the time goes, and why."""
        return explain(self.figures, self.findings)

    def repeat(self, *options: str) -> str:
        """Return the command that measures the same as was asked for, with other options."""
        return self._repeat_wishes(again(self.figures, *options))

    def _repeat_wishes(self, command: str) -> str:
        """Put into a command what the user asked for, unless it asks for something else itself."""
        name = f"edgeopt bench {shlex.quote(self.setup.asked)}"
        wishes = {flag: value for flag, value in self._wishes().items() if f"{flag} " not in command}
        said = "".join(f" {flag} {shlex.quote(value)}" for flag, value in wishes.items())
        return command.replace(name, name + said, 1)

    def _wishes(self) -> dict[str, str]:
        """The options that decide what is measured, where they differ from the defaults."""
        bench_options, default = self.options, BenchOptions()
        wishes = {"--on": self.setup.elsewhere.address} if self.setup.elsewhere else {}
        wishes |= {"--recipe": self.setup.asked_recipe} if self.setup.asked_recipe else {}
        for flag, name in _WISHES.items():
            if (value := getattr(bench_options, name)) != getattr(default, name):
                wishes[flag] = str(value)
        if bench_options.spin is not None:
            wishes["--spin"] = "on" if bench_options.spin else "off"
        if bench_options.budget_ms is not None:
            wishes["--budget"] = typed_duration(bench_options.budget_ms)
        if bench_options.max_miss_ratio != default.max_miss_ratio:
            wishes["--max-miss"] = f"{bench_options.max_miss_ratio:.4g}"
        return wishes

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return the raw samples, by file name."""
        files = {"samples.npz": self.samples}
        if self.passes.rounds is not None:
            files["rounds.npz"] = self.passes.rounds.samples
        return files | {f"batch-{point.size}.npz": point.samples for point in self.passes.batches}

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        subject = self.setup.subject
        return {
            "recipe": subject.recipe.name,
            "target": subject.target.name,
            "executor": subject.executor,
            "threads": subject.threads,
            "source": str(self.setup.pictures.source),
            "options": self.options.to_json(),
            "load": str(self.plan),
            "method": METHOD,
            "samples": self.samples.to_json(),
            "waits": {name: asdict(summary) for name, summary in self.waits.items()},
            "shares": {name: asdict(share) for name, share in self.shares.items()},
            "attribution": asdict(self.passes.attribution),
            "warmup": self.warmup.as_json(),
            "under_load": asdict(self.load),
            "budget": asdict(self.budget),
            "memory": _memory(self.memory, self.growth),
            **_passes(self.passes),
        }


def _figures_of(passes: Passes) -> dict[str, Any]:
    """Return what the passes tell a diagnosis."""
    figures: dict[str, Any] = {}
    if passes.capacity is not None:
        figures["capacity_per_s"] = passes.capacity.rate_per_s
    if passes.sustained is not None:
        figures |= {"sustained_low": passes.sustained.ratio_low, "sustained_ratio": passes.sustained.ratio}
    if passes.cold is not None and passes.cold.runs:
        way = passes.cold.ways[0]
        points = {"cold_first_ms": "to_first", "cold_session_ms": "session"}
        figures |= {key: float(np.median(passes.cold.times_ns(way, name))) / 1e6 for key, name in points.items()}
    return figures


def notes_of_costs(options: BenchOptions, passes: Passes) -> tuple[Note, ...]:
    """Return why a figure that was asked for is not there."""
    priced = options.device_price is not None or options.cloud_price is not None
    notes = []
    if priced and passes.cost is None:
        notes.append(Note(NoteKind.SKIPPED, "no cost of an inference: no rate was proven to keep the budget"))
    knows_watts = options.watts is not None or isinstance(passes.energy, Energy)
    owned = options.device_price is not None
    if passes.cost is not None and owned and not (knows_watts and options.kwh_price is not None):
        notes.append(Note(NoteKind.WARNING, "the cost leaves energy out", "give --watts and --kwh-price"))
    return (*notes, *(passes.cold.notes if passes.cold else ()))


def _memory(trace: MemoryTrace, growth: Growth | None) -> dict[str, Any]:
    return {
        "peak_bytes": trace.peak_bytes,
        "peak_since": trace.peak_since,
        "now_bytes": trace.now_bytes,
        "headroom_bytes": trace.headroom_bytes,
        "arena_bytes": trace.arena_bytes,
        "growth": None if growth is None else asdict(growth) | {"is_growing": growth.is_growing},
        "missing": trace.missing,
    }


def _passes(passes: Passes) -> dict[str, Any]:
    """Return what was asked for, as plain values."""
    result: dict[str, Any] = {
        "cpu": asdict(passes.cpu) | {"per_inference_ms": passes.cpu.per_inference_ms, "cores": passes.cpu.cores}
    }
    if passes.opening is not None:
        result["opening_ms"] = dict(passes.opening.parts_ms)
    if passes.energy is not None:
        result["energy"] = _energy(passes.energy)
    if passes.rounds is not None:
        result["rounds"] = {name: asdict(quantile) for name, quantile in passes.rounds.quantiles.items()}
    if passes.sustained is not None:
        result["sustained"] = passes.sustained.to_json()
    if passes.capacity is not None:
        result["capacity"] = asdict(passes.capacity)
    if passes.cost is not None:
        result["cost"] = asdict(passes.cost) | {"per_thousand": passes.cost.per_thousand}
    if passes.batches:
        result["batches"] = [_batch(point) for point in passes.batches]
    if passes.beside is not None:
        result["beside"] = passes.beside.to_json()
    if passes.cold is not None:
        result["cold"] = passes.cold.to_json()
    if passes.profile is not None:
        result["profile"] = passes.profile.to_json()
    return result


def _energy(found: Energy | NotMeasured) -> dict[str, Any]:
    if isinstance(found, NotMeasured):
        return {"measured": False, "reason": found.reason}
    gross, net = found.gross_j, found.net_j
    return asdict(found) | {"measured": True, "gross_j": gross, "net_j": net, "edp_js": found.edp_js}


def _batch(point: BatchPoint) -> dict[str, Any]:
    return {"size": point.size, "throughput_per_s": point.throughput_per_s, "latency": asdict(point.latency)}
