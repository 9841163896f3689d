"""The result of `bench` for a pipeline: raw samples, and the cost of each stage."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.bench.finding import Finding, apply_rules
from edgeopt.measurement.bench.result import BenchResult, JudgedLimit
from edgeopt.measurement.frames.diagnosis import (
    again,
    find_distrust,
    find_first_run,
    find_tail_stage,
    find_undecided,
    find_unsteady,
)
from edgeopt.measurement.frames.figures import Figures, make_figures
from edgeopt.measurement.frames.options import MeasureOptions
from edgeopt.measurement.frames.result import METHOD
from edgeopt.measurement.pipelines.diagnosis import find_stage_to_mend
from edgeopt.measurement.pipelines.figures import StageCost, stage_costs
from edgeopt.measurement.pipelines.given import OpenedPipeline
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import BudgetResult
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.measurement.statistics.trend import Warmup
from edgeopt.recipes.inputs.frames import Frames

_RULES = (find_distrust, find_unsteady)
_LATER_RULES = (find_tail_stage, find_first_run, find_undecided)


@dataclass(frozen=True, kw_only=True)
class PipelineResult(BenchResult):
    """Raw samples and what they say."""

    kind: ClassVar[str] = "pipeline"
    given: OpenedPipeline
    pictures: Frames
    options: MeasureOptions
    samples: Samples
    runs: Mapping[str, NDArray[np.int64]]
    """(n,) how often each model ran for a frame, by stage."""
    budget_ms: float
    budget: BudgetResult
    warmup: Warmup
    trust: Trust

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.given.description.name

    @property
    def judged(self) -> tuple[JudgedLimit, ...]:
        """The budget."""
        return (JudgedLimit("budget", self.budget.verdict, self.budget.detail),)

    @property
    def is_gate(self) -> bool:
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

    @cached_property
    def figures(self) -> Figures:
        """The figures that the diagnosis may use."""
        return make_figures(
            self.samples,
            model=self._asked,
            target=self.given.asked_target,
            trust=self.trust,
            warmup=self.warmup,
            budget=self.budget if self.is_gate else None,
        )

    @property
    def _asked(self) -> str:
        code = f" --code {shlex.quote(str(self.given.code))}" if self.given.code and self.given.calls else ""
        return f"{shlex.quote(self.given.asked)}{code}"

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the diagnosis, the most urgent first; the stage to mend is always among them."""
        command = self.repeat()
        stage = find_stage_to_mend(
            self.given.description,
            self.costs,
            self.frame_ms,
            self.budget_ms,
            again=command,
            optimize="" if self.given.brings_target else command.replace(" bench ", " optimize ", 1),
        )
        return (*apply_rules(_RULES, self.figures), stage, *apply_rules(_LATER_RULES, self.figures))

    def repeat(self, *options: str) -> str:
        """Return the command that measures the same pipeline again, with other options."""
        return again(self.figures, *options)

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return the raw samples, and how often each model ran for each of their frames."""
        runs = json.dumps({name: counts.tolist() for name, counts in self.runs.items()})
        return {"samples.npz": self.samples, "runs.json": f"{runs}\n"}

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "target": self.given.target.name,
            "source": str(self.pictures.source),
            "options": self.options.to_json(),
            "method": METHOD,
            "stages": [asdict(cost) for cost in self.costs],
            "frame_mean_ms": self.frame_ms,
            "samples": self.samples.to_json(),
            "between_stages_mean_ms": self.between_ms,
            "warmup": self.warmup.as_json(),
            "budget_ms": self.budget_ms,
            "budget": asdict(self.budget),
        }
