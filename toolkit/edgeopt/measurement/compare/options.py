"""Options of `compare` for models that answer frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from edgeopt.measurement.common_options import (
    LABEL_KINDS,
    MEASURED,
    MODEL,
    out_option,
    seed_option,
    shapes_option,
    source_option,
    threads_option,
)
from edgeopt.system.declared.options import FileUse, Syntax, option

SECONDS = 20.0
MARGIN = 0.02


@dataclass(frozen=True)
class Contest:
    """Options of `compare` for every kind of workload."""

    seconds: float = option(
        SECONDS, "How long the measurement of all takes.", group=MEASURED, common=True, syntax=Syntax.SECONDS
    )
    """How long to run, all together; five rounds run whatever it says."""
    margin: float = option(
        MARGIN, "Speeds that differ by no more than this count as equal.", group=MEASURED, syntax=Syntax.SHARE
    )
    """Ratios within 1 / (1 + margin) to 1 + margin count as equal."""
    threads: int = threads_option(MODEL)
    seed: int = seed_option(MEASURED)
    out: Path | None = out_option(MODEL, "compare.json, .md, .html and the raw samples")

    @property
    def more_sides(self) -> int:
        """Sides that stand beside the workloads that are named."""
        return 0


@dataclass(frozen=True)
class CompareOptions(Contest):
    """Options of `compare` for models that answer frames."""

    source: str | Path | None = source_option(MEASURED, "those of the first recipe")
    """Pictures; None: the first model's own, or synthetic ones."""
    eval: str | Path | None = option(
        None,
        f"Labels that judge the accuracy: {LABEL_KINDS}.",
        group=MEASURED,
        common=True,
        metavar="LABELS",
        file_use=FileUse.READ,
    )
    """Labels that judge the accuracy."""
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    """Whole shapes of inputs by name, for what models leave free; a bundle has its own."""


class FrameCompareWishes(TypedDict, total=False):
    """Keyword options of `compare`; `CompareOptions` says what each means, and its default."""

    seconds: float
    margin: float
    threads: int
    source: str | Path | None
    eval: str | Path | None
    seed: int
    shapes: Mapping[str, tuple[int, ...]]
