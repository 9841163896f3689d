"""The step `quantize`: a float model to the fastest integer form that keeps its answers."""

from __future__ import annotations

from edgeopt.steps import Step
from edgeopt.steps.quantize.calibration.calibrate import calibrate
from edgeopt.steps.quantize.step import make_int8, make_like
from edgeopt.system.declared.target import Target

__all__ = ["STEP", "calibrate"]


def _is_int8(precision: str, _: Target) -> bool:
    return precision.startswith("w8a8")


STEP = Step(
    make_int8,
    does="INT8 by the target's rules, calibrated on real pictures, float where INT8 costs accuracy or time",
    order=50,
    precision="w8a8",
    makes=_is_int8,
    needs_float=True,
    needs_calibration=True,
    without="no INT8",
    on_device=True,
    make_alike=make_like,
)
