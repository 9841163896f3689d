"""The step `quantize`: a float model to the fastest integer form that keeps its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeopt.steps import Step

if TYPE_CHECKING:
    from edgeopt.graph.model import Model
    from edgeopt.graph.outcome import Outcome
    from edgeopt.steps._context import Context, Setting
    from edgeopt.system.declared.target import Target


def _make(model: Model, context: Context, setting: Setting) -> Sequence[Outcome]:
    from edgeopt.steps.quantize.step import make_int8  # the whole search: not for a help page

    return make_int8(model, context, setting)


def _make_like(model: Model, context: Context, setting: Setting, names: Sequence[str]) -> Sequence[Outcome]:
    from edgeopt.steps.quantize.step import make_like

    return make_like(model, context, setting, names)


def _is_int8(precision: str, _: Target) -> bool:
    return precision.startswith("w8a8")


STEP = Step(
    _make,
    does="INT8 by the target's rules, calibrated on real pictures, float where INT8 costs accuracy or time",
    order=50,
    precision="w8a8",
    makes=_is_int8,
    needs_float=True,
    needs_calibration=True,
    without="no search for INT8",
    on_device=True,
    make_alike=_make_like,
)
