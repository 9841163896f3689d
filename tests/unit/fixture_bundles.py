"""Bundles that tests share: a model as it is packed, and a manifest changed by somebody who knows how it is sealed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeopt import bundle
from edgeopt.bundle import MANIFEST, Artefact, make_artefact
from edgeopt.target import Target


def packed(file: str, precision: str, data: bytes, target: Target, threads: int = 0) -> tuple[Artefact, bytes]:
    """Return a model as `write_bundle` takes it."""
    return make_artefact(file, data, precision, target, threads), data


def reseal(folder: Path, change: Callable[[Any], object]) -> None:
    """Change a manifest in place and give it the hash that belongs to it."""
    values = json.loads((folder / MANIFEST).read_text("utf-8"))
    change(values)
    values["sha256"] = bundle._seal(values)
    (folder / MANIFEST).write_text(json.dumps(values), "utf-8")
