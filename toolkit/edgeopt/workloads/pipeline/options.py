"""Options of pipelines, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.measurement.check.options import Gate
from edgeopt.measurement.common_options import (
    ARRIVALS,
    LABEL_KINDS,
    MEASURED,
    MODEL,
    code_option,
    optimize_out_option,
    out_option,
    seed_option,
    source_option,
    target_option,
)
from edgeopt.measurement.compare.options import Contest
from edgeopt.measurement.frames.options import MeasureOptions
from edgeopt.optimization.options import DEMANDS, Options
from edgeopt.running.live_options import LiveOptions
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option


@dataclass(frozen=True)
class PipelineBench(MeasureOptions):
    """Options of `bench` for a pipeline."""

    target: str = target_option(MODEL)
    out: Path | None = out_option(MODEL, "bench.json, .md, .html and the raw samples")
    code: Path | None = code_option()
    seed: int = seed_option(ARRIVALS, "arrivals, phases and orders")
    """Frames come one after the other: it decides nothing here, and is taken so that scripts hold for every kind."""


def _labels_option(group: OptionGroup) -> Any:
    text = f"Labels that judge the accuracy: {LABEL_KINDS}."
    return option(None, text, group=group, metavar="LABELS", shown="the pipeline's own", file_use=FileUse.READ)


@dataclass(frozen=True)
class PipelineCompare(Contest):
    """Options of `compare` for pipelines."""

    target: str = target_option(MODEL)
    source: str | Path | None = source_option(MEASURED, "those of the first pipeline")
    eval: str | Path | None = _labels_option(MEASURED)
    code: Path | None = code_option()


@dataclass(frozen=True)
class PipelineCheck(Gate):
    """Options of `check` for a pipeline."""

    target: str = target_option(MODEL)
    source: str | Path | None = source_option(MEASURED, "the pipeline's own")
    eval: str | Path | None = _labels_option(MEASURED)
    code: Path | None = code_option()


@dataclass(frozen=True)
class PipelineOptimize(Options):
    """Options of `optimize` for a pipeline."""

    target: str = target_option(MODEL, required=True)
    out: Path | None = optimize_out_option(MODEL)
    fps: float | None = option(
        None, "The budget, given as frames a second.", group=DEMANDS, syntax=Syntax.NUMBER, least=0, above=True
    )
    code: Path | None = code_option()


@dataclass(frozen=True)
class PipelineRun(LiveOptions):
    """Options of `run` for a pipeline."""

    code: Path | None = code_option()


CHECKS = ("accuracy",)
"""Checks besides those of every kind."""
OPTIONS: Mapping[str, type] = {
    "bench": PipelineBench,
    "compare": PipelineCompare,
    "check": PipelineCheck,
    "optimize": PipelineOptimize,
    "run": PipelineRun,
}
