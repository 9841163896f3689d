"""Options of `optimize` for a model that answers frames, or for a pipeline of such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypedDict

from edgeopt.measurement.common_options import (
    LABEL_KINDS,
    MODEL,
    PRUNED,
    SAMPLE_KINDS,
    seed_option,
    shapes_option,
    threads_option,
)
from edgeopt.recipes.default_limits import MAX_DROP
from edgeopt.steps._pruning import AUTO
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option
from edgeopt.system.toml import DURATION_MS, DURATION_S, THREADS, Within, require_ranges

SAMPLES = OptionGroup("data", "Pictures and labels", "what calibrates, and what judges")
DEMANDS = OptionGroup("budget", "What is asked for", "time, accuracy, memory, and what is preferred")
LENGTH = OptionGroup("time", "Time and runs", "limits, interrupted and earlier runs, workers")
STEPS = OptionGroup("steps", "Steps", "what is done to the model, and what each step does")
BUNDLE = OptionGroup("bundle", "The bundle", "what it stores and brings along")


class Prefer(StrEnum):
    """The preference among candidates."""

    SPEED = "speed"
    SIZE = "size"


class SelfTestInputs(StrEnum):
    """The inputs that a bundle stores so that its numbers can be tested on another device."""

    PICTURES = "pictures"
    """Some of the calibration pictures, or of the arrays given in their place."""
    SYNTHETIC = "synthetic"
    """Made-up ones: nothing of what was given leaves with the bundle."""
    OFF = "off"
    """Nothing: wrong numbers stay unseen."""


@dataclass(frozen=True)
class Options:
    """The user's options, apart from model, recipe and target."""

    calib: str = option(
        "",
        f"Unlabelled samples for INT8: {SAMPLE_KINDS}; or the word synthetic.",
        group=SAMPLES,
        common=True,
        metavar="PICTURES",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    """Path of unlabelled pictures, `synthetic`, or empty for the recipe's own."""
    eval: str = option(
        "",
        f"Labels that judge the accuracy: {LABEL_KINDS}.",
        group=SAMPLES,
        common=True,
        metavar="LABELS",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    """Path of a label file, or empty for the recipe's own."""
    budget_ms: Annotated[float, DURATION_MS] | None = option(
        None,
        "Time that a frame may take, such as 33ms; exit code 2 if it is missed.",
        "--budget",
        group=DEMANDS,
        common=True,
        syntax=Syntax.FRAME_BUDGET,
        shown="the target's, without an effect on the exit code",
    )
    """Time that a frame may take; None: the target's, which does not change the exit code."""
    max_drop: Annotated[float, Within(0, 1)] | None = option(
        None,
        "How much of the metric may be lost.",
        group=DEMANDS,
        common=True,
        syntax=Syntax.NUMBER,
        least=0,
        most=1,
        shown=f"the recipe's, {MAX_DROP:g}",
    )
    """How much of the metric may be lost, in its own unit; None: the recipe's."""
    steps: tuple[str, ...] | None = option(
        None,
        "Steps to do, in place of all that are not marked [off]; the word default stands for those.",
        group=STEPS,
        syntax=Syntax.NAMES,
    )
    """Names of the steps to do, and the word `default`; None: those that run by default."""
    skip: tuple[str, ...] = option(
        (), "Steps to leave out; repeatable.", group=STEPS, syntax=Syntax.NAMES, repeatable=True
    )
    """Names of the steps to leave out."""
    threads: Annotated[int, THREADS] = threads_option(MODEL, "the fastest of one, the fast cores and all")
    """Threads of the engine; 0: the target's, or the fastest of one, the fast cores and all."""
    time_limit_s: Annotated[float, DURATION_S] | None = option(
        None,
        "Time for the whole command, such as 5m.",
        "--time-limit",
        group=LENGTH,
        common=True,
        syntax=Syntax.SECONDS,
    )
    """No candidate is begun after this; None: no limit."""
    resume: bool = option(
        False,
        "Take up an interrupted run: its finished candidates are kept.",
        group=LENGTH,
        common=True,
        syntax=Syntax.FLAG,
    )
    """Whether the finished candidates in the output folder are kept."""
    replay: str = option(
        "",
        "Folder or report.json of an earlier run, whose models are made again, byte for byte.",
        group=LENGTH,
        metavar="REPORT",
        file_use=FileUse.READ,
    )
    """Output folder or report of an earlier run whose decisions are repeated; empty: measurements decide."""
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    """Whole shapes of inputs by name, for inputs whose shape the model leaves free."""
    prefer: Prefer = option(
        Prefer.SPEED,
        "Choose what is proven fastest, or the smallest that is not proven slower.",
        group=DEMANDS,
        syntax=Syntax.CHOICE,
        choices=tuple(each.value for each in Prefer),
    )
    """Whether the fastest candidate is chosen, or the smallest that is not slower."""
    selftest: SelfTestInputs = option(
        SelfTestInputs.PICTURES,
        "What the bundle stores to test its numbers: calibration pictures, made-up ones, or nothing.",
        group=BUNDLE,
        syntax=Syntax.CHOICE,
        choices=tuple(each.value for each in SelfTestInputs),
    )
    """Inputs that the bundle stores to test its numbers on another device."""
    emit: tuple[str, ...] = option(
        (),
        "Also write the files of these engines, such as litert or coreml, for an app that brings its own runtime.",
        group=BUNDLE,
        syntax=Syntax.NAMES,
        repeatable=True,
        metavar="ENGINES",
    )
    """Engines whose own files are also written, for an app that brings its own runtime."""
    prune: str = option(
        AUTO,
        PRUNED,
        group=STEPS,
        syntax=Syntax.PRUNING,
    )
    """How much is pruned: `auto`, `off`, a share of the channels such as `0.3`, or a speed such as `1.5x`."""
    keep_layers: tuple[str, ...] = option(
        (),
        "Layers that are never pruned, by node, output or weight; repeatable.",
        group=STEPS,
        syntax=Syntax.NAMES,
        repeatable=True,
        metavar="NAMES",
    )
    """Names of layers that are never pruned."""
    finetune_s: Annotated[float, DURATION_S] | None = option(
        None,
        "Also do the step finetune, and train at most this long, such as 30m.",
        "--finetune",
        group=STEPS,
        syntax=Syntax.SECONDS,
        shown="not done",
    )
    """Longest training of the step `finetune`, which is then done; None: it is done only if `steps` names it."""
    seed: int = seed_option(STEPS, "which values of each tensor are kept while INT8 forms are searched")
    """Seed of the values that calibration keeps; forms that are good with several seeds are not good by chance."""

    def __post_init__(self) -> None:
        require_ranges(self)


class FrameOptimizeWishes(TypedDict, total=False):
    """Keyword options of `optimize` and `prune`; `Options` says what each means, and its default."""

    calib: str
    eval: str
    budget_ms: float | None
    max_drop: float | None
    steps: tuple[str, ...] | None
    skip: tuple[str, ...]
    threads: int
    time_limit_s: float | None
    resume: bool
    replay: str
    shapes: Mapping[str, tuple[int, ...]]
    prefer: Prefer
    selftest: SelfTestInputs
    emit: tuple[str, ...]
    prune: str
    seed: int
    keep_layers: tuple[str, ...]
    finetune_s: float | None
