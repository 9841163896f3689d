"""The step `quantize`: a float model to the fastest integer form that keeps its answers."""

from edgeopt.steps.quantize.calibration.calibrate import calibrate

__all__ = ["calibrate"]
