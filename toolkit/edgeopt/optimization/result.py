"""The result of `optimize`, and how it is read back from its folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_OF, EXIT_PASS, Note
from edgeopt.measurement.accuracy.judgement import Judgement, Word
from edgeopt.measurement.resources.trust import undecided, warning_of
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.report.gate import exit_code_of, noise_of, read_stored_as, verdict_of
from edgeopt.system.machine.environment import Environment
from edgeopt.system.text import format_bytes, short
from edgeopt.tasks import Accuracy

SCHEMA = 3
RESULT = "report.json"


_END_TO_END = {
    Change.FASTER: "faster end to end",
    Change.UNCONFIRMED: "faster end to end in one process, not proven in others",
    Change.EQUIVALENT: "no faster end to end",
    Change.INCONCLUSIVE: "not shown to be faster end to end",
    Change.SLOWER: "slower end to end",
}
"""What is said of whole frames with parts of the recipe inside, beside the same model alone."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Parts of the recipe inside the bundle's models, and the chosen model's figures with them."""

    parts: tuple[str, ...]
    agreement: float
    """Agreement of its answers with those of the same model alone, 0 to 1."""
    score: Accuracy | None = None
    """With the parts inside; None without labels."""
    frame_p50_ms: float | None = None
    frame_p99_ms: float | None = None
    speed: Ratio | None = None
    """Ratio of whole frames, against the same model alone; None where nothing is measured here."""
    judgement: Judgement | None = None
    """What is proven of its accuracy against the original; None in reports of older versions."""

    @property
    def expected(self) -> dict[str, Any]:
        """The figures that the manifest tells in place of the model's own."""
        accuracy: dict[str, Any] = {"accuracy": self.score.value} if self.score else {}
        if self.judgement and self.judgement.agreement is not None:
            accuracy["agreement"] = self.judgement.agreement
        return {**accuracy, "frame_p50_ms": self.frame_p50_ms, "frame_p99_ms": self.frame_p99_ms}

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.parts)}: answers agree in {self.agreement:.3f} with the model alone"]
        parts += [str(self.score).partition(" (")[0]] if self.score else []
        parts += [f"frames {self.speed} as fast: {_END_TO_END[self.speed.verdict]}"] if self.speed else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of `optimize` found."""

    model: str
    model_sha256: str
    recipe: str
    recipe_reason: str
    target: str
    environment: Environment
    threads: int
    budget_ms: float
    budget_asked: bool
    max_drop: float
    metric: str
    candidates: tuple[Candidate, ...]
    chosen: str
    reason: str
    folder: Path
    bundle: Path
    calibrated_on: str
    notes: tuple[Note, ...]
    untimed: str = ""
    """Why nothing was measured; empty where it was."""
    foreign_runtime: str = ""
    """What runs the model on the device where edgeopt does not; empty where it does."""
    measured_on: str = ""
    """The processor of the device that brought the chosen candidate's latency; empty: the machine of the report."""
    off_target: str = ""
    """Why nothing runs on the target's own device; empty where the chosen candidate does."""
    trust: str = ""
    """TRUSTED, or NOISY or INVALID with the reasons; empty where nothing was measured."""
    inside: Inside | None = None
    """None where nothing of the recipe is embedded."""
    unproven: str = ""
    """What looks faster and was not proven for lack of time, and how much more would do; empty: nothing."""
    to_label: str = ""
    """What a person may label so that the accuracy is proven; empty: nothing."""
    accuracy_asked: bool = False
    """Whether labels were given, or a drop that is allowed."""
    was_cut: bool = False
    """Whether it was interrupted: the bundle holds what was proven by then."""
    emitted: tuple[str, ...] = ()
    """Folders below the output folder with an engine's own files, for apps that bring its runtime."""
    cores: str = ""
    """`fast`: engines are held to cores of the fastest kind; empty: the system places their threads."""

    def __post_init__(self) -> None:
        if [candidate.name for candidate in self.candidates].count(self.chosen) != 1:
            raise ValueError(f"chosen {short(self.chosen)} is none of the candidates")
        if self.verdict not in EXIT_OF:
            raise ValueError(f"the verdict is {short(self.verdict)}")

    @property
    def best(self) -> Candidate:
        """The chosen candidate."""
        return next(candidate for candidate in self.candidates if candidate.name == self.chosen)

    @property
    def is_as_given(self) -> bool:
        """Whether what is deployed is the model as it was given, with nothing embedded."""
        return self.best is self.candidates[0] and self.inside is None

    @property
    def verdict(self) -> str:
        """PASS, FAIL or INCONCLUSIVE by the budget; NOISY or INVALID where the machine closes the gate."""
        latency = self.best.latency
        return verdict_of(latency.verdict if latency else None, self.trust, budget_asked=self.budget_asked)

    @property
    def noise(self) -> str:
        """NOISY or INVALID; empty where the machine was quiet, or nothing was measured."""
        return noise_of(self.trust)

    def budget_word(self, candidate: Candidate) -> str:
        """Return what is proven of a candidate and the budget; on a noisy machine nothing is, whatever was seen."""
        if candidate.latency is None:
            return ""
        return self.noise or candidate.latency.verdict

    @property
    def exit_code(self) -> int:
        """0, 2, 3, 4, or 130 interrupted; a budget that nobody asked for fails nothing, an unused device does.

        3 also where accuracy was asked for and is not decided; the bundle is written all the same.
        """
        return exit_code_of(self.budget_code, is_accuracy_open=self.is_accuracy_open, was_cut=self.was_cut)

    @property
    def budget_code(self) -> int:
        """The exit code of the budget and the device alone."""
        if self.off_target:
            tried = any(candidate.profile and candidate.refused for candidate in self.candidates)
            return EXIT_MISSED if tried else EXIT_INCONCLUSIVE
        return EXIT_OF[self.verdict] if self.budget_asked else EXIT_PASS

    @property
    def is_accuracy_open(self) -> bool:
        """Whether accuracy was asked for, and what was chosen is not proven to keep it."""
        if not self.accuracy_asked or self.is_as_given:
            return False
        return self.best.judgement is None or self.best.judgement.word is not Word.KEPT

    @property
    def verdict_line(self) -> str:
        """The verdict in one sentence, with what a larger file and a noisy machine mean for it."""
        if self.best.latency is None:
            return f"latency: not measured ({self.untimed}); {self.how_to_measure}"
        detail = self.best.latency.detail
        is_blocked = bool(self.noise) and (self.budget_asked or self.verdict == "FAIL")
        parts = [undecided(self.noise, detail) if is_blocked else f"{self.verdict}: {detail}", self._larger]
        if self.noise and not is_blocked:
            parts.append(warning_of(self.trust))
        if not self.budget_asked and self.verdict != "PASS":
            parts.append("that is the target's budget, --budget makes it a gate")
        return "; ".join(part for part in parts if part)

    @property
    def _larger(self) -> str:
        """How much larger the chosen file is than the original; empty where it is not."""
        size, was = self.best.size_bytes, self.candidates[0].size_bytes
        if size <= was:
            return ""
        return f"the file is {size / was:.2f} times the original's size ({format_bytes(size)}, was {format_bytes(was)})"

    @property
    def how_to_measure(self) -> str:
        """The command that measures the missing latency on the device."""
        if self.foreign_runtime:
            return f"on the device: {self.foreign_runtime}, edgeopt does not run there"
        return f"on the device: edgeopt bench {self.bundle}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = dataclasses.asdict(self)
        values |= {"schema": SCHEMA, "folder": str(self.folder), "bundle": str(self.bundle), "verdict": self.verdict}
        return values


def read_report(folder: Path) -> Report:
    """Return the report that `write_report` wrote into an output folder.

    Raises:
        InvalidFileError: If there is none, it is damaged, or of another version.
    """
    derived, folders = ("schema", "folder", "bundle", "verdict"), {"folder": folder, "bundle": folder / "bundle"}
    return read_stored_as(Report, folder / RESULT, SCHEMA, derived, "report of edgeopt optimize", folders)
