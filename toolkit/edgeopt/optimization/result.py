"""The result of `optimize` of a single model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_OF, EXIT_PASS
from edgeopt.measurement.accuracy.judgement import Judgement
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import Latency
from edgeopt.optimization.report.result import FramesReport
from edgeopt.tasks import Accuracy

_END_TO_END = {
    Change.FASTER: "faster end to end",
    Change.UNCONFIRMED: "faster end to end in one process, not proven in others",
    Change.EQUIVALENT: "no faster end to end",
    Change.INCONCLUSIVE: "not shown to be faster end to end",
    Change.SLOWER: "slower end to end",
}
"""Words for whole frames with parts of the recipe inside, in comparison with the same model alone."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Parts of the recipe inside the bundle's models, and the chosen model's figures with them."""

    parts: tuple[str, ...]
    agreement: float
    """Agreement of its answers with those of the same model alone, 0 to 1."""
    score: Accuracy | None = None
    """Metric with the parts inside; None without labels."""
    frame_p50_ms: float | None = None
    frame_p99_ms: float | None = None
    speed: Ratio | None = None
    """Ratio of whole frames, against the same model alone; None where nothing is measured here."""
    judgement: Judgement | None = None
    """Proof of its accuracy against the original; None in reports of older versions."""
    total: Ratio | None = None
    """Ratio of whole frames against the original, in the same fresh processes; None where that was not measured."""
    latency: Latency | None = None
    """Times of its frames, and what they prove of the budget; None where nothing is measured here."""

    @property
    def expected(self) -> dict[str, Any]:
        """The figures that the manifest tells in place of the model's own."""
        accuracy: dict[str, Any] = {"accuracy": self.score.value} if self.score else {}
        if self.judgement and self.judgement.agreement is not None:
            accuracy["agreement"] = self.judgement.agreement
        return {**accuracy, "frame_p50_ms": self.frame_p50_ms, "frame_p99_ms": self.frame_p99_ms}

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.parts)}: answers agree in {self.agreement:.3f} with the model alone"]
        parts += [self.score.short] if self.score else []
        parts += [f"frames {self.speed} as fast: {_END_TO_END[self.speed.verdict]}"] if self.speed else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport(FramesReport):
    """Everything that one run on a model that answers frames found."""

    kind: ClassVar[str] = "frames"

    model_sha256: str
    recipe: str
    recipe_reason: str
    foreign_runtime: str = ""
    """Name of the software that runs the model on the device, where edgeopt does not; empty: edgeopt runs it."""
    measured_on: str = ""
    """The processor of the device that brought the chosen candidate's latency; empty: the machine of the report."""
    off_target: str = ""
    """Why nothing runs on the target's own device; empty where the chosen candidate does."""
    inside: Inside | None = None
    """None where nothing of the recipe is embedded."""
    reduced: Inside | None = None
    """The chosen model's figures with JPEG files decoded at a part of their size; None: they are decoded whole."""
    unproven: str = ""
    """Clause on the candidate that looks fastest, where no time was left for a proof, and on the seconds that a proof
    would take; empty: there is no such candidate."""
    to_label: str = ""
    """Labels that a person may add so that the accuracy is proven, in a sentence; empty: none are wanted."""
    emitted: tuple[str, ...] = ()
    """Folders below the output folder with an engine's own files, for apps that bring its runtime."""
    cores: str = ""
    """`fast`: engines are held to cores of the fastest kind; empty: the system places their threads."""

    @property
    def is_as_given(self) -> bool:
        """Whether what is deployed is the model as it was given, with nothing embedded."""
        return self.best is self.candidates[0] and self.inside is None and self.reduced is None

    @property
    def deployed_speed(self) -> Ratio | None:
        """Ratio of whole frames against the original, with JPEG files decoded smaller where the bundle does so."""
        return (self.reduced.total if self.reduced else None) or self.best.speed

    @property
    def latency(self) -> Latency | None:
        """Times of frames as the bundle computes them: with parts inside, and JPEG files decoded as it does.

        What a device measured is of the bundle itself, whatever this machine measured of it.
        """
        if self.measured_on:
            return self.best.latency
        last = self.inside or self.reduced
        return (last.latency if last and self.best.latency else None) or self.best.latency

    @property
    def timed_otherwise(self) -> str:
        """How the frames that judge the budget differ from those of the table; empty: not at all."""
        last = self.inside or self.reduced
        if last is None or self.measured_on:
            return ""
        if last.latency is None:  # of an older version
            return "with pictures decoded whole" if self.reduced else ""
        how = ["JPEG files decoded as the bundle does"] if self.reduced else []
        how += [f"{' and '.join(self.inside.parts)} inside"] if self.inside else []
        return f"with {' and '.join(how)}"

    @property
    def is_gate(self) -> bool:
        """Whether the user asked for the budget, or nothing runs on the device."""
        return self.budget_asked or bool(self.off_target)

    @property
    def budget_code(self) -> int:
        """The exit code of the budget and the device alone."""
        if self.off_target:
            tried = any(candidate.profile and candidate.refused for candidate in self.candidates)
            return EXIT_MISSED if tried else EXIT_INCONCLUSIVE
        return EXIT_OF[self.verdict] if self.is_gate else EXIT_PASS

    @property
    def how_to_measure(self) -> str:
        """The command that measures the missing latency on the device, or why there is none."""
        command = f"{self.foreign_runtime}, edgeopt does not run there" if self.foreign_runtime else ""
        return f"on the device: {command or f'edgeopt bench {self.bundle}'}"

    @property
    def score(self) -> Accuracy | None:
        """The metric of what is deployed: with its device's numbers, parts inside or JPEG files reduced, if known."""
        last = self.inside or self.reduced
        return self.best.simulated or (last.score if last else None) or self.best.score
