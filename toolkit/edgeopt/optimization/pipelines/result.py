"""The result of `optimize` for a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.pipelines.choice import Combination, StageForm
from edgeopt.optimization.report.result import FramesReport


@dataclass(frozen=True, slots=True, kw_only=True)
class JointReport(FramesReport):
    """Everything that one run found: candidates are whole pipelines, the second is chosen together, if there is one."""

    kind: ClassVar[str] = "pipeline"
    derived: ClassVar[tuple[str, ...]] = ("chosen_forms",)

    code: str
    """Where the app's functions lie, as the user wrote it; empty: there are none."""
    pictures: int
    """The whole was judged on so many."""
    forms: tuple[tuple[StageForm, ...], ...]
    """Forms of each model, the original first."""
    fixed_ms: float
    """Milliseconds of a frame outside the models."""
    tail_ratio: float
    front: tuple[Combination, ...]
    """Worth looking at, what loses least first."""
    measured: Combination | None
    """The combination that was measured as a whole; None: the original is it."""
    before: tuple[StageCost, ...]
    """Times of each stage with the models as they came."""
    after: tuple[StageCost, ...]
    """Times of each stage with the chosen forms."""
    mend: str
    """Which stage is to be mended first for more speed, and what would be left."""
    reports: Mapping[str, str]
    """The report of each model's own candidates, by stage, relative to the folder."""

    @property
    def chosen_forms(self) -> Mapping[str, str]:
        """The form of each model in the bundle, by stage."""
        if self.measured is None or self.chosen == BASELINE:
            return {form[0].stage: BASELINE for form in self.forms}
        return self.measured.names
