"""Options of models that answer frames, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.measurement.check.options import CheckOptions
from edgeopt.measurement.common_options import (
    EXPORTED,
    INPUT,
    MODEL,
    TASK,
    optimize_out_option,
    out_option,
    recipe_option,
    shapes_option,
    target_option,
)
from edgeopt.measurement.compare.options import CompareOptions
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.optimization.options import DEMANDS, LENGTH, Options
from edgeopt.running.live_options import LiveOptions
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option
from edgeopt.workloads._serving import ServeFlags

AS_IT_IS = OptionGroup("model", "A model that is no bundle", "recipe and device")
SHOWN = OptionGroup("shown", "What is shown", "integer tensors, or every node")


@dataclass(frozen=True)
class FrameBench(BenchOptions):
    """Options of `bench` for a model that answers frames."""

    target: str = target_option(MODEL)
    recipe: str | None = recipe_option(MODEL)
    out: Path | None = out_option(MODEL, "bench.json, .md, .html and the raw samples")


@dataclass(frozen=True)
class FrameCompare(CompareOptions):
    """Options of `compare` for models that answer frames."""

    target: str = target_option(MODEL)
    recipe: str | None = recipe_option(MODEL)


@dataclass(frozen=True)
class FrameCheck(CheckOptions):
    """Options of `check` for a model that answers frames."""

    target: str = target_option(MODEL)
    recipe: str | None = recipe_option(MODEL)


@dataclass(frozen=True)
class FrameOptimize(Options):
    """Options of `optimize` for a model that answers frames."""

    target: str = target_option(MODEL, required=True)
    recipe: str | None = recipe_option(MODEL)
    out: Path | None = optimize_out_option(MODEL)
    fps: float | None = option(
        None, "The budget, given as frames a second.", group=DEMANDS, syntax=Syntax.NUMBER, least=0, above=True
    )
    cluster: str = option(
        "",
        "Workers that score candidates: those of a Dask scheduler such as tcp://lab:8786, or local:2 for two on this "
        "machine. Times are measured here alone.",
        group=LENGTH,
        metavar="ADDRESS",
        shown="none, this process scores",
    )
    dry_run: bool = option(False, "Print the plan and stop.", group=LENGTH, syntax=Syntax.FLAG)
    inputs: tuple[tuple[str, tuple[int, ...], str], ...] = option(
        (),
        INPUT,
        "--input",
        group=EXPORTED,
        syntax=Syntax.TYPED_SHAPE,
        metavar="NAME=1x3x224x224",
        repeatable=True,
    )
    task: str = option(
        "",
        TASK,
        group=EXPORTED,
        metavar="NAME",
        shown="the task of the model's class",
    )


@dataclass(frozen=True)
class FrameInspect:
    """Options of `inspect` for a model that answers frames."""

    target: str | None = option(
        None,
        "Device for which the placement of each node is shown.",
        "--target",
        "-t",
        group=MODEL,
        syntax=Syntax.TARGET,
        metavar="NAME|FILE",
    )
    recipe: str | None = recipe_option(MODEL)
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    quantized: bool = option(
        False,
        "Show the integer tensors instead: type, scale, zero point.",
        group=SHOWN,
        syntax=Syntax.FLAG,
    )
    calib: str = option(
        "",
        "With --quantized: also measure the error of each tensor.",
        group=SHOWN,
        metavar="PICTURES",
        file_use=FileUse.READ,
    )
    against: str = option(
        "",
        "With --calib: the float model to compare with.",
        "--float",
        group=SHOWN,
        metavar="FILE",
        file_use=FileUse.READ,
    )
    nodes: bool = option(
        False,
        "With --target: list every node, not only the refused ones.",
        group=SHOWN,
        syntax=Syntax.FLAG,
    )


@dataclass(frozen=True)
class FrameRun(LiveOptions):
    """Options of `run` for a model that answers frames."""

    recipe: str | None = option(
        None,
        "How a model that is no bundle is fed and read: a name of edgeopt models, or a TOML file.",
        "--recipe",
        "-r",
        group=AS_IT_IS,
        syntax=Syntax.RECIPE,
        metavar="NAME|FILE",
        shown="read from the model",
    )
    target: str | None = option(
        None,
        "The device for a model that is no bundle, or the target to run from a bundle for several targets.",
        "--target",
        "-t",
        group=AS_IT_IS,
        syntax=Syntax.TARGET,
        metavar="NAME|FILE",
        shown="cpu; of a bundle the best target",
    )


CHECKS = ("accuracy", "memory", "cold_start", "placement")
"""Checks besides those of every kind."""
OPTIONS: Mapping[str, type] = {
    "inspect": FrameInspect,
    "bench": FrameBench,
    "compare": FrameCompare,
    "check": FrameCheck,
    "optimize": FrameOptimize,
    "run": FrameRun,
    "serve": ServeFlags,
}
