"""The baseline of `edgeopt check` as a file: figures, raw samples beside it, and where the workload lies."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.resources.trust import read_trust, told_trust
from edgeopt.measurement.samples import Samples
from edgeopt.report.result import SCHEMA, Result
from edgeopt.system.disk import assets
from edgeopt.system.disk.files import write_beside
from edgeopt.system.disk.links import pinned
from edgeopt.system.machine.environment import Environment
from edgeopt.system.toml import read_object


@dataclass(frozen=True)
class Baseline(Result):
    """One workload as it was when it was good."""

    command: ClassVar[str] = "check --update"

    name: str
    kind: str
    """Name of its kind of workload."""
    workload: str
    """Its kind, as messages call it: `a language model`."""
    model: str
    """Path from the file's own folder, or a shipped name."""
    settings: Mapping[str, Any]
    """How it was opened and fed, by `CheckedSides.settings`."""
    sha256: str
    """SHA-256 of its models."""
    threads: int
    held: Mapping[str, Any]
    """Stored value of each guard, by the guard's name; a guard that was left out has none."""
    trust: str
    """`trusted`, `noisy` or `invalid`; empty where no times were measured."""
    trust_reasons: tuple[str, ...]
    environment: Environment
    samples: Samples | None
    """None: no times were measured."""

    def own_figures(self) -> dict[str, Any]:
        """Return plain values; the raw samples are in a file beside them."""
        return {
            "name": self.name,
            "workload": self.workload,
            "model": self.model,
            "settings": dict(self.settings),
            "sha256": self.sha256,
            "threads": self.threads,
            "held": dict(self.held),
            "holds_times": self.samples is not None,
            "trust": told_trust("; ".join((self.trust, *self.trust_reasons))),
        }

    def locate(self, file: Path) -> str | None:
        """Return what to open it by, or None if nothing is there any more.

        Args:
            file: Where the baseline was read from.
        """
        if self.model in assets.model_folders():
            return self.model
        path = file.parent / self.model
        return os.path.normpath(path) if path.exists() else None


def path_from(file: Path, model: str) -> str:
    """Return a model's path as the baseline in `file` names it: relative, so that both can move together."""
    if not Path(model).exists():
        return model
    try:
        return os.path.relpath(pinned(Path(model)), file.resolve().parent)
    except ValueError:  # Windows: another drive
        return str(pinned(Path(model)))


def raw_beside(file: Path) -> Path:
    """Return where the raw samples of a baseline lie."""
    return file.with_suffix(".npz")


def write_baseline(baseline: Baseline, file: Path) -> None:
    """Write the figures, and the raw samples beside them.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    if baseline.samples is not None:
        baseline.samples.save(raw_beside(file))
    write_beside(file, json.dumps(baseline.as_json(), indent=2, allow_nan=False) + "\n")


def read_baseline(file: Path) -> Baseline:
    """Read what `write_baseline` wrote.

    Raises:
        InvalidFileError: If it is absent, damaged, of another schema or another kind of file.
    """
    remedy = remedy_of(file)
    values = read_object(file, schema=SCHEMA, remedy=remedy)
    if values.get("command") != Baseline.command:
        raise InvalidFileError(f"{file} is no baseline of edgeopt check", remedy=remedy)
    try:
        return _parse(values, Samples.read(raw_beside(file)) if values["holds_times"] else None)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(file, error) from error


def remedy_of(file: Path) -> str:
    """Return what to do where a baseline cannot be used."""
    return f"write it once from a good model: edgeopt check MODEL --baseline {file} --update"


def damaged(file: Path, error: Exception) -> InvalidFileError:
    """Return that a baseline does not hold what it should."""
    why = str(error) if isinstance(error, ValueError) else repr(error)
    return InvalidFileError(f"{file} is damaged: {why}", remedy=remedy_of(file))


def _parse(values: Mapping[str, Any], samples: Samples | None) -> Baseline:
    level, *reasons = read_trust(values["trust"]).split("; ")
    return Baseline(
        name=str(values["name"]),
        kind=str(values["kind"]),
        workload=str(values["workload"]),
        model=str(values["model"]),
        settings=dict(values["settings"].items()),
        sha256=str(values["sha256"]),
        threads=int(values["threads"]),
        held=dict(values["held"].items()),
        trust=level.lower(),
        trust_reasons=tuple(str(reason) for reason in values.get("trust_reasons", reasons)),
        environment=Environment.from_json(values.get("environment")),
        samples=samples,
    )
