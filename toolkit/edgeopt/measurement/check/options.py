"""Options of `check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from edgeopt.measurement.common_options import (
    LABEL_KINDS,
    MEASURED,
    MODEL,
    seed_option,
    shapes_option,
    source_option,
    threads_option,
)
from edgeopt.recipes.default_limits import Check
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option

BASELINE = OptionGroup("baseline", "The baseline", "the figures to check against")
ALLOWED = OptionGroup("allowed", "What is allowed", "limits against the baseline")
CHECKS_OF_ALL = ("latency", "size")
"""Checks of every kind of workload, which `--skip` can leave out; `guards.py` makes those besides the times."""
SECONDS = 20.0
STARTS = 10
_STANDARD = Check()


@dataclass(frozen=True)
class Gate:
    """Options of `check` for every kind of workload."""

    baseline: str | Path = option(
        Path(),
        "File with the figures to check against.",
        "--baseline",
        "-b",
        group=BASELINE,
        common=True,
        syntax=Syntax.FILE,
        required=True,
        file_use=FileUse.BOTH,
    )
    """The file; raw samples lie beside it."""
    update: bool = option(
        False, "Write the baseline from this run, and check nothing.", group=BASELINE, common=True, syntax=Syntax.FLAG
    )
    """Whether the baseline is written from this run instead of checking."""
    latency_ratio: float | None = option(
        None,
        "Longest execution time and whole-answer time allowed, as a multiple of the baseline's.",
        group=ALLOWED,
        syntax=Syntax.NUMBER,
        least=0,
        shown=f"{_STANDARD.latency_ratio:.2f}",
    )
    accuracy_drop: float | None = option(
        None,
        "How much of the metric may be lost, or the share by which a perplexity may rise.",
        group=ALLOWED,
        syntax=Syntax.NUMBER,
        least=0,
        shown="as for optimize",
    )
    size_ratio: float | None = option(
        None,
        "Model size allowed, divided by the baseline's.",
        group=ALLOWED,
        syntax=Syntax.NUMBER,
        least=0,
        shown=f"{_STANDARD.size_ratio:.2f}",
    )
    memory_ratio: float | None = option(
        None,
        "Peak memory allowed, divided by the baseline's; for a language model the memory of its cache.",
        group=ALLOWED,
        syntax=Syntax.NUMBER,
        least=0,
        shown=f"{_STANDARD.memory_ratio:.2f}",
    )
    skip: tuple[str, ...] = option(
        (),
        "Checks to leave out: {}; repeatable.",
        group=MEASURED,
        common=True,
        syntax=Syntax.NAMES,
        repeatable=True,
        help_from="edgeopt.workloads:names_of_checks",
    )
    """Names of checks to leave out."""
    threads: int = threads_option(MODEL, "the baseline's")
    seconds: float = option(
        SECONDS, "How long both models are timed.", group=MEASURED, common=True, syntax=Syntax.SECONDS
    )
    judge_noisy: bool = option(
        False,
        "Judge times on a noisy machine too, if they were measured in turns.",
        group=MEASURED,
        syntax=Syntax.FLAG,
    )
    seed: int = seed_option(MEASURED)

    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Limits by the names of `Check`; the field of that name, where it is set, overrides."""

    @property
    def allowed(self) -> Mapping[str, float]:
        """The limits that the user set, by the names of `Check`."""
        names = (name for name in Check.__dataclass_fields__ if hasattr(self, name))
        values: Mapping[str, Any] = {name: getattr(self, name) for name in names}
        return {**self.thresholds, **{name: value for name, value in values.items() if value is not None}}


@dataclass(frozen=True)
class CheckOptions(Gate):
    """Options of `check` for a model that answers frames."""

    source: str | Path | None = source_option(MEASURED)
    """Pictures; None: the recipe's own, or synthetic ones."""
    eval: str | Path | None = option(
        None,
        f"Labels that judge the accuracy: {LABEL_KINDS}.",
        group=MEASURED,
        common=True,
        metavar="LABELS",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    """Labels; None: the recipe's own, if it ships some."""
    starts: int = option(
        STARTS,
        "Number of fresh processes that measure memory and cold start.",
        group=MEASURED,
        syntax=Syntax.WHOLE,
        least=3,
    )
    """Fresh processes for the cold start; half as many for the memory."""
    cold_start_ratio: float | None = option(
        None,
        "Time allowed to the first answer, divided by the baseline's.",
        group=ALLOWED,
        syntax=Syntax.NUMBER,
        least=0,
        shown=f"{_STANDARD.cold_start_ratio:.2f}",
    )
    max_nodes_off_device: int | None = option(
        None,
        "Number of nodes that may run on the CPU instead of the device.",
        group=ALLOWED,
        syntax=Syntax.WHOLE,
        least=0,
        shown=str(_STANDARD.max_nodes_off_device),
    )
    shapes: Mapping[str, tuple[int, ...]] = shapes_option(MODEL)
    """Whole shapes of inputs by name, for what a model leaves free; a bundle has its own."""


class FrameCheckWishes(TypedDict, total=False):
    """Keyword options of `check`; `CheckOptions` says what each means, and its default."""

    baseline: str | Path
    update: bool
    latency_ratio: float | None
    accuracy_drop: float | None
    size_ratio: float | None
    memory_ratio: float | None
    skip: tuple[str, ...]
    thresholds: Mapping[str, float]
    source: str | Path | None
    eval: str | Path | None
    threads: int
    seconds: float
    starts: int
    seed: int
    judge_noisy: bool
    cold_start_ratio: float | None
    max_nodes_off_device: int | None
    shapes: Mapping[str, tuple[int, ...]]
