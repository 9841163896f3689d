"""The step `quantize`: a float model to the fastest integer form that keeps its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeopt.steps import Step
from edgeopt.steps.quantize.calibration.calibrate import calibrate

if TYPE_CHECKING:
    from edgeopt.graph.model import Model
    from edgeopt.graph.outcome import Outcome
    from edgeopt.steps._context import Context, Setting
    from edgeopt.system.target import Target

__all__ = ["STEP", "calibrate"]


def _make(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    from edgeopt.steps.quantize import _step  # which needs what it shares with other steps, and that calibration

    return _step.make_int8(model, context, setting)


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
    without="no INT8",
    on_device=True,
)
