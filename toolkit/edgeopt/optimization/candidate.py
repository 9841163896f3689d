"""A candidate: a model made by a chain of steps, with its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.drift import Drift
from edgeopt.measurement.accuracy.judgement import Judgement
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.steps._device_times.prediction import PredictedSpeed, PredictedTime
from edgeopt.system.text import short
from edgeopt.system.toml import parse_table
from edgeopt.tasks import Accuracy

BASELINE = "baseline"
LEAST_DB = 80.0
"""Signal to noise from which outputs are the original's within float rounding: rewrites have 100 dB and more, 16-bit
floats about 60."""
RESUMED = Note(NoteKind.INFO, "taken up from disk")


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of one frame, stage by stage, on the machine that measured it."""

    frames: int
    frame: StageTime
    stages: Mapping[str, StageTime]
    verdict: str
    """PASS, FAIL or INCONCLUSIVE against the budget; empty: there was none."""
    detail: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of one run on a device that is not here, predicted from the times that were measured on it.

    Execution alone, without what comes before and after the model. The intervals hold 95 % of models like those by
    which the device's times were checked.
    """

    time: PredictedTime
    speed: PredictedSpeed
    """Speed over the original's."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of the report."""

    name: str
    parent: str
    steps: tuple[str, ...]
    precision: str
    file: str
    """The model, relative to the output folder."""
    size_bytes: int
    wire_bytes: int | None = None
    """Its size where an app fetches it over the wire, compressed; None: an app has it installed."""
    sha256: str = ""
    """SHA-256 of the model; empty in files of older versions."""
    changes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    drift: Drift | None = None
    agreement: float | None = None
    score: Accuracy | None = None
    judgement: Judgement | None = None
    """Proof of its accuracy; None: it was not judged, since it was not proven faster."""
    latency: Latency | None = None
    speed: Ratio | None = None
    """Ratio of whole frames, against the baseline: what is judged."""
    execute: Ratio | None = None
    """Ratio of the stage `execute` alone, against the baseline."""
    predicted: Prediction | None = None
    """Its time on a device that is not here; None: it is measured, or nothing is known of the device."""
    refused: str = ""
    """Why it is never chosen; empty when it may be."""
    on_front: bool = False
    executor: str = "onnxruntime"
    profile: str = ""
    """The profile whose engine runs it, where it is not the target's own."""
    simulated: Accuracy | None = None
    """The metric with the numbers of the device itself, or of its simulator; the judgement is then of it."""
    placement: str = ""
    """Where its nodes run, in one line; empty where the target runs all that it opens."""
    unfit: str = ""
    """Why its device does not run it, or computes something else."""
    compiled: str = ""
    """File compiled for the device, relative to the output folder; empty: none."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Session configuration entries with which it runs fastest, beyond those of the profile."""
    input_size: tuple[int, ...] = ()
    """Height and width of its pictures, where they are smaller than the original's."""
    is_lossy: bool = False
    """Whether a step on its way computes something else: fewer bits, fewer channels, another training. Equal numbers on
    some samples are then no proof: a classifier that is sure answers alike with any weights."""

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run made it."""
        return RESUMED in self.notes

    @property
    def drop(self) -> float | None:
        """Metric lost against the baseline; None where no labels judged it."""
        return self.judgement.drop if self.judgement and self.judgement.samples else None

    @property
    def drop_most(self) -> float | None:
        """The largest loss that is not excluded, wrong in 5 % of cases; None where no labels judged it."""
        return self.judgement.drop_most if self.judgement and self.judgement.samples else None

    @property
    def is_rewrite(self) -> bool:
        """Whether it computes what the original does, apart from the rounding of floats."""
        agrees = self.agreement is not None and self.agreement > 1 - 1e-3
        is_near = self.drift is not None and self.drift.worst_db >= LEAST_DB
        return not self.is_lossy and is_near and agrees

    @property
    def word(self) -> str:
        """KEPT, LOST, NOT DECIDED, AGREES or DIFFERS; empty where nothing was judged."""
        return str(self.judgement.word) if self.judgement else ""

    def __post_init__(self) -> None:
        if not self.file or PurePath(self.file).is_absolute() or ".." in PurePath(self.file).parts:
            raise ValueError(f"file {short(self.file)} lies outside the folder")


def candidate_from_json(values: Any) -> Candidate:
    """Return the candidate that `dataclasses.asdict` wrote.

    Raises:
        InvalidFileError: If the values are of another version, or no candidate's.
    """
    return parse_table(Candidate, values, "candidate")
