"""The step `activations`: a smooth function becomes what the engine computes inside the layer before it."""

from __future__ import annotations

from edgeopt.steps import Step
from edgeopt.steps.activations.step import replace_activations

STEP = Step(
    replace_activations,
    does="SiLU, GELU and their like as HardSwish or a line with a floor, fitted to each channel",
    order=35,
    needs_float=True,
    needs_calibration=True,
    is_default=False,
    beside=True,
)
