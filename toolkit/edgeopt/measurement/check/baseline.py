"""The baseline of `edgeopt check` as a file: figures, raw samples beside it, and where the model lies."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.measurement.samples import Samples
from edgeopt.system.disk import assets
from edgeopt.system.disk.files import write_beside
from edgeopt.system.disk.links import pinned
from edgeopt.system.machine.environment import Environment
from edgeopt.system.toml import read_object

SCHEMA = 2
_KIND = "edgeopt baseline"


@dataclass(frozen=True)
class Baseline:
    """One model or bundle as it was when it was good."""

    name: str
    model: str
    """Path from the file's own folder, or a shipped name."""
    recipe: str | None
    """As asked for; None: read from the model."""
    sha256: str
    """SHA-256 of the serialized model."""
    threads: int
    source: str
    size_bytes: int
    placement: Mapping[str, int]
    """Nodes by provider; empty where the engine does not say."""
    off_device: int
    """Nodes elsewhere than on the first provider."""
    scored: Scored | None
    peak_bytes: tuple[int, ...]
    """Peak bytes of fresh processes; empty: not measured."""
    first_answer_ns: tuple[int, ...]
    """First answer of fresh processes; empty: not measured."""
    trust: str
    trust_reasons: tuple[str, ...]
    environment: Environment
    samples: Samples

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
    baseline.samples.save(raw_beside(file))
    values = {
        "schema": SCHEMA,
        "kind": _KIND,
        "name": baseline.name,
        "model": baseline.model,
        "recipe": baseline.recipe,
        "sha256": baseline.sha256,
        "threads": baseline.threads,
        "source": baseline.source,
        "size_bytes": baseline.size_bytes,
        "placement": dict(baseline.placement),
        "off_device": baseline.off_device,
        "accuracy": baseline.scored.to_json() if baseline.scored else None,
        "peak_bytes": list(baseline.peak_bytes),
        "first_answer_ns": list(baseline.first_answer_ns),
        "trust": baseline.trust,
        "trust_reasons": list(baseline.trust_reasons),
        "environment": baseline.environment.to_json(),
    }
    write_beside(file, json.dumps(values, indent=2, allow_nan=False) + "\n")


def read_baseline(file: Path) -> Baseline:
    """Read what `write_baseline` wrote.

    Raises:
        InvalidFileError: If it is absent, damaged, of another schema or another kind of file.
    """
    remedy = f"write it once from a good model: edgeopt check MODEL --baseline {file} --update"
    values = read_object(file, schema=SCHEMA, remedy=remedy)
    if values.get("kind") != _KIND:
        raise InvalidFileError(f"{file} is no baseline of edgeopt check", remedy=remedy)
    try:
        return _parse(values, Samples.read(raw_beside(file)))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidFileError(f"{file} is damaged: {error!r}", remedy=remedy) from error


def _parse(values: Mapping[str, Any], samples: Samples) -> Baseline:
    return Baseline(
        name=str(values["name"]),
        model=str(values["model"]),
        recipe=values["recipe"],
        sha256=str(values["sha256"]),
        threads=int(values["threads"]),
        source=str(values["source"]),
        size_bytes=int(values["size_bytes"]),
        placement={str(key): int(count) for key, count in values["placement"].items()},
        off_device=int(values["off_device"]),
        scored=Scored.from_json(values["accuracy"]) if values["accuracy"] else None,
        peak_bytes=tuple(int(value) for value in values["peak_bytes"]),
        first_answer_ns=tuple(int(value) for value in values["first_answer_ns"]),
        trust=str(values["trust"]),
        trust_reasons=tuple(str(value) for value in values["trust_reasons"]),
        environment=Environment.from_json(values["environment"]),
        samples=samples,
    )
