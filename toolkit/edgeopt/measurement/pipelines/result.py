"""The result of `bench` for a pipeline: raw samples, the cost of each stage, and the exit code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EXIT_PASS, Note
from edgeopt.measurement.bench.diagnosis import (
    find_distrust,
    find_first_run,
    find_tail_stage,
    find_undecided,
    find_unsteady,
)
from edgeopt.measurement.bench.figures import Figures, make_figures
from edgeopt.measurement.bench.options import BenchOptions
from edgeopt.measurement.bench.result import METHOD
from edgeopt.measurement.finding import Finding
from edgeopt.measurement.pipelines.diagnosis import find_stage_to_mend
from edgeopt.measurement.pipelines.figures import StageCost, stage_costs
from edgeopt.measurement.pipelines.given import OpenedPipeline
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import BudgetResult
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.measurement.statistics.trend import Warmup
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.machine.environment import Environment

SCHEMA = 1
_RULES = (find_distrust, find_unsteady)
_LATER_RULES = (find_tail_stage, find_first_run, find_undecided)


@dataclass(frozen=True)
class PipelineResult:
    """Raw samples and what they say."""

    given: OpenedPipeline
    pictures: Frames
    options: BenchOptions
    samples: Samples
    runs: Mapping[str, NDArray[np.int64]]
    """(n,) how often each model ran for a frame, by stage."""
    budget_ms: float
    budget: BudgetResult
    warmup: Warmup
    trust: Trust
    environment: Environment
    notes: tuple[Note, ...]

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.given.description.name

    @property
    def budget_asked(self) -> bool:
        """Whether the command or the file asked for the budget; the target's own is no gate."""
        return self.options.budget_ms is not None or self.given.description.budget_ms is not None

    @cached_property
    def summary(self) -> dict[str, Summary]:
        """Head, centre and tail of the frame, each stage and the overhead."""
        return self.samples.summary()

    @property
    def between_ms(self) -> float:
        """Mean of what a frame takes beside its stages."""
        return float(self.samples.steady().served().overhead_ns.mean()) / 1e6

    @cached_property
    def costs(self) -> tuple[StageCost, ...]:
        """The cost of each stage of the file in a frame."""
        return stage_costs(self.given.description, self.samples, self.runs, self.budget_ms)

    @property
    def frame_ms(self) -> float:
        """Mean of a frame."""
        return float(self.samples.steady().served().frame_ns.mean()) / 1e6

    @property
    def exit_code(self) -> int:
        """0, 2, 3, or 4 where a noisy machine blocks the gate; a budget that nobody asked for fails nothing."""
        return self.trust.gate(self.budget.verdict.exit_code) if self.budget_asked else EXIT_PASS

    @cached_property
    def figures(self) -> Figures:
        """The figures that the diagnosis may use."""
        return make_figures(
            self.samples,
            model=self._asked,
            target=self.given.asked_target,
            trust=self.trust,
            warmup=self.warmup,
            budget=self.budget if self.budget_asked else None,
        )

    @property
    def _asked(self) -> str:
        code = f" --code {shlex.quote(str(self.given.code))}" if self.given.code and self.given.calls else ""
        return f"{shlex.quote(self.given.asked)}{code}"

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the diagnosis, the most urgent first; the stage to mend is always among them."""
        target = f" --target {self.given.asked_target}" if self.given.asked_target else ""
        stage = find_stage_to_mend(
            self.given.description,
            self.costs,
            self.frame_ms,
            self.budget_ms,
            again=f"edgeopt bench {self._asked}{target}",
            optimize="" if self.given.brings_target else f"edgeopt optimize {self._asked}{target}",
        )
        first = [finding for rule in _RULES if (finding := rule(self.figures))]
        return (*first, stage, *(finding for rule in _LATER_RULES if (finding := rule(self.figures))))

    def as_json(self) -> dict[str, Any]:
        """Return plain values; the raw samples are in the .npz beside them."""
        return {
            "schema": SCHEMA,
            "kind": "pipeline",
            "name": self.name,
            "target": self.given.target.name,
            "source": str(self.pictures.source),
            "options": self.options.to_json(),
            "method": METHOD,
            "stages": [asdict(cost) for cost in self.costs],
            "frame_mean_ms": self.frame_ms,
            "samples": self.samples.to_json(),
            "between_stages_mean_ms": self.between_ms,
            "warmup": asdict(self.warmup) | {"first_ratio": self.warmup.first_ratio},
            "budget_ms": self.budget_ms,
            "budget": asdict(self.budget),
            "budget_asked": self.budget_asked,
            "exit_code": self.exit_code,
            "trust": asdict(self.trust),
            "findings": [asdict(finding) for finding in self.findings],
            "environment": self.environment.to_json(),
            "notes": [asdict(note) for note in self.notes],
        }
