"""Options of pipelines, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.measurement.bench import options as bench
from edgeopt.measurement.bench.options import BenchOptions
from edgeopt.measurement.common_options import code_option, out_option, target_option
from edgeopt.optimization import options as optimize
from edgeopt.optimization.options import Options
from edgeopt.running.live_options import LiveOptions
from edgeopt.system.declared.options import Syntax, option


@dataclass(frozen=True)
class PipelineBench(BenchOptions):
    """Options of `bench` for a pipeline."""

    target: str = target_option(bench.MODEL)
    out: Path | None = out_option(bench.MODEL, "bench.json, .md, .html and the raw samples")
    code: Path | None = code_option()


@dataclass(frozen=True)
class PipelineOptimize(Options):
    """Options of `optimize` for a pipeline."""

    target: str = target_option(optimize.MODEL, required=True)
    out: Path | None = option(
        None, "Folder to write.", "--out", "-o", group=optimize.MODEL, syntax=Syntax.FILE, shown="out/MODEL-TARGET"
    )
    fps: float | None = option(
        None, "The budget as frames a second.", group=optimize.LABELS, syntax=Syntax.NUMBER, least=0, above=True
    )
    code: Path | None = code_option()


@dataclass(frozen=True)
class PipelineRun(LiveOptions):
    """Options of `run` for a pipeline."""

    code: Path | None = code_option()


OPTIONS: Mapping[str, type] = {"bench": PipelineBench, "optimize": PipelineOptimize, "run": PipelineRun}
