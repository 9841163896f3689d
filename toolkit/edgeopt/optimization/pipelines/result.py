"""The result of `optimize` for a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_OF, EXIT_PASS, InvalidFileError, Note
from edgeopt.measurement.pipelines.figures import StageCost
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.pipelines.choice import Combination, StageForm
from edgeopt.optimization.report.gate import read_stored_as, verdict_of
from edgeopt.system.machine.environment import Environment
from edgeopt.system.toml import read_json

SCHEMA = 1
KIND = "pipeline"
_DERIVED = ("schema", "kind", "verdict", "chosen_forms", "folder", "bundle")


@dataclass(frozen=True, slots=True)
class JointReport:
    """Everything that one run found."""

    pipeline: str
    code: str
    """Where the app's functions lie, as the user wrote it; empty: there are none."""
    target: str
    budget_ms: float
    budget_asked: bool
    metric: str
    """What the whole is judged by: a metric on labels, or `agreement`."""
    may_lose: float
    """The loss that is allowed: of the metric, or of the agreement."""
    pictures: int
    """The whole was judged on so many."""
    forms: tuple[tuple[StageForm, ...], ...]
    """Forms of each model, the original first."""
    fixed_ms: float
    """What a frame takes outside the models."""
    tail_ratio: float
    front: tuple[Combination, ...]
    """Worth looking at, what loses least first."""
    candidates: tuple[Candidate, ...]
    """Measured as a whole: the original, and the combination that was chosen together where it is another."""
    measured: Combination | None
    """The combination that was measured as a whole; None: the original is it."""
    chosen: str
    reason: str
    before: tuple[StageCost, ...]
    """What each stage took with the models as they came."""
    after: tuple[StageCost, ...]
    """What each stage takes now."""
    mend: str
    """Which stage is to be mended first for more speed, and what would be left."""
    reports: Mapping[str, str]
    """The report of each model's own candidates, by stage, relative to the folder."""
    trust: str
    environment: Environment
    folder: Path
    bundle: Path
    notes: tuple[Note, ...]

    @property
    def best(self) -> Candidate:
        """The chosen whole."""
        return next(candidate for candidate in self.candidates if candidate.name == self.chosen)

    @property
    def chosen_forms(self) -> Mapping[str, str]:
        """The form of each model in the bundle, by stage."""
        if self.measured is None or self.chosen == BASELINE:
            return {form[0].stage: BASELINE for form in self.forms}
        return self.measured.names

    @property
    def verdict(self) -> str:
        """PASS, FAIL or INCONCLUSIVE by the budget; NOISY or INVALID where the machine closes the gate."""
        latency = self.best.latency
        return verdict_of(latency.verdict if latency else None, self.trust, budget_asked=self.budget_asked)

    @property
    def exit_code(self) -> int:
        """0, 2, 3 or 4; a budget that nobody asked for fails nothing."""
        return EXIT_OF[self.verdict] if self.budget_asked else EXIT_PASS

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = dataclasses.asdict(self)
        own = {"schema": SCHEMA, "kind": KIND, "verdict": self.verdict, "chosen_forms": dict(self.chosen_forms)}
        return values | own | {"folder": str(self.folder), "bundle": str(self.bundle)}


def is_joint_report(folder: Path) -> bool:
    """Return whether a folder holds the report of a pipeline."""
    path = folder / "report.json"
    try:
        values = read_json(path, remedy="")
    except InvalidFileError:
        return False
    return isinstance(values, dict) and values.get("kind") == KIND


def read_joint_report(folder: Path) -> JointReport:
    """Return the report that a run wrote into its output folder.

    Raises:
        InvalidFileError: If there is none, it is damaged, or of another version.
    """
    folders = {"folder": folder, "bundle": folder / "bundle"}
    return read_stored_as(JointReport, folder / "report.json", SCHEMA, _DERIVED, "report of a pipeline", folders)
