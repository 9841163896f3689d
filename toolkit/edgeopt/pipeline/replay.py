"""An earlier run's decisions, read from its output folder: which INT8 models, and which candidate.

Every INT8 candidate has its `decisions.json` beside its model; the report names the choice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.pipeline.candidate import Candidate
from edgeopt.pipeline.plan import is_compiled
from edgeopt.pipeline.result import read_report
from edgeopt.pipeline.selection import Chosen
from edgeopt.recipes.frames import Frames
from edgeopt.steps.quantize.search.decisions import Decisions, make_again
from edgeopt.steps.quantize.search.decisions_json import from_plain, to_plain
from edgeopt.system.environment import package_versions
from edgeopt.system.target import Target
from edgeopt.system.toml import read_object

DECISIONS = "decisions.json"
_SCHEMA = 1
_MOST_BYTES = 4 << 30
_REMEDY = "name the output folder of edgeopt optimize, or its report.json"


@dataclass(frozen=True, slots=True)
class Decided:
    """What decided one INT8 candidate, and what it must become again."""

    decisions: Decisions
    original: str
    """Fingerprint of the model as it came, as are the next three of what they name."""
    float_model: str
    calibration: str
    made: str
    is_joined: bool
    """Whether attentions were joined first, since that was faster."""
    options: Mapping[str, str]
    """Session entries with which it was faster."""
    packages: Mapping[str, str]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What was measured: attempts, layer times. Nothing is made of it."""

    def to_json(self) -> str:
        """Return the text of a file."""
        values = {name: getattr(self, name) for name in _PLAIN} | {"decisions": self.decisions}
        held = {name: to_plain(value) for name, value in values.items()}
        return json.dumps({"schema": _SCHEMA, **held}, allow_nan=False) + "\n"

    def outcome(self, model: Model, whose: str) -> Outcome:
        """Return the model once more.

        Args:
            model: The float model that this run made.
            whose: The report, for the error.

        Raises:
            EdgeoptError: If the float model or what is made of it is another one than it was.
        """
        if model.fingerprint != self.float_model:
            raise self._differs("the float model before INT8", whose)
        outcome = make_again(model, self.decisions)
        if outcome.model.fingerprint != self.made:
            raise self._differs("the INT8 model", whose)
        return outcome

    def _differs(self, what: str, whose: str) -> EdgeoptError:
        there, here = self.packages, package_versions()
        names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
        told = ", ".join(f"{name} {there.get(name, 'absent')} there, {here.get(name, 'absent')} here" for name in names)
        return EdgeoptError(
            f"{what} is not that of {whose}: {told or 'the same packages, but other steps or shapes'}",
            remedy="give the options of that run" + (", and install its packages" if told else ""),
        )


_PLAIN = ("original", "float_model", "calibration", "made", "is_joined", "options", "packages", "evidence")


@dataclass(frozen=True, slots=True)
class Replay:
    """The decisions of one earlier run."""

    source: Path
    model: str
    """Fingerprint of the model as it came."""
    target: str
    threads: int
    chosen: str
    decided: Mapping[str, Decided]
    """By candidate."""

    def of(self, name: str) -> Sequence[Decided]:
        """Return what decided the candidates of one search: `quantize`, `quantize-2` and so on."""
        found = [self.decided[name]] if name in self.decided else []
        while f"{name}-{len(found) + 1}" in self.decided and found:
            found.append(self.decided[f"{name}-{len(found) + 1}"])
        return found

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what it decides."""
        made = {name: one.made for name, one in self.decided.items()}
        return hashlib.sha256(json.dumps([self.chosen, made], sort_keys=True).encode()).hexdigest()

    def require_same(self, model: Model, target: Target) -> None:
        """Raise unless this run is about the same model and target, and nothing but an engine judges its INT8 forms.

        Raises:
            EdgeoptError: If it is not.
        """
        if is_compiled(target):
            raise EdgeoptError(
                f"{target.name} is compiled for: its compiler decides, and no report can be replayed",
                remedy="leave --replay out",
            )
        if model.fingerprint != self.model:
            raise EdgeoptError(f"{self.source} is the report of another model", remedy="name the report of this one")
        if target.name != self.target:
            raise EdgeoptError(
                f"{self.source} is the report of target {self.target}, not of {target.name}",
                remedy=f"pass --target {self.target}",
            )

    def require_calibration(self, frames: Frames) -> None:
        """Raise unless the frames that calibrate are those of the report.

        Raises:
            EdgeoptError: If they are not.
        """
        kept = {one.calibration for one in self.decided.values()}
        if kept and kept != {calibration_fingerprint(frames)}:
            raise EdgeoptError(
                f"{self.source} is the report of another calibration set than {frames.source}",
                remedy="pass the pictures of that run with --calib",
            )

    def choose_again(self, candidates: Sequence[Candidate], here: Chosen) -> Chosen:
        """Return the report's choice.

        Args:
            candidates: Of this run.
            here: What would be chosen by what was measured here.

        Raises:
            EdgeoptError: If this run could not make it.
        """
        if self.chosen not in {one.name for one in candidates}:
            raise EdgeoptError(
                f"{self.source} chose {self.chosen}, which could not be made here",
                remedy="give the same options, and install the engines of that run",
            )
        if self.chosen == here.name:
            return here
        return Chosen(self.chosen, f"{self.chosen}: as {self.source} chose; by what is known here, {here.reason}")


def read_replay(path: Path) -> Replay:
    """Read what an earlier run decided.

    Args:
        path: Its output folder, or the report in it.

    Raises:
        InvalidFileError: If it is none, or its decisions are missing or damaged.
    """
    folder = path.parent if path.name == "report.json" else path
    report = read_report(folder)
    decided = {
        one.name: _read((folder / one.file).with_name(DECISIONS))
        for one in report.candidates
        if (folder / one.file).with_name(DECISIONS).is_file()
    }
    lacking = [one.name for one in report.candidates if "quantize" in one.steps and one.precision == "w8a8"]
    if lacking and not decided:
        raise InvalidFileError(f"{folder} holds no {DECISIONS} of {lacking[0]}", remedy=_REMEDY)
    return Replay(folder, report.model_sha256, report.target, report.threads, report.chosen, decided)


def _read(file: Path) -> Decided:
    values = read_object(file, schema=_SCHEMA, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    try:
        held = {name: from_plain(values[name]) for name in (*_PLAIN, "decisions")}
        if not isinstance(held["decisions"], Decisions):
            raise TypeError("no decisions")
        return Decided(**held)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFileError(f"{file} is no file of decisions: {error!r}", remedy=_REMEDY) from error


def calibration_fingerprint(frames: Frames) -> str:
    """Return the SHA-256 of frames as they are read: names of arrays, types, shapes and numbers, in their order."""
    digest = hashlib.sha256()
    for sample in frames:
        arrays = sample if isinstance(sample, Mapping) else {"picture": sample}
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data if array.dtype != object else repr(array).encode())
    return digest.hexdigest()
