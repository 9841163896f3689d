"""The predictions for the device of a target, where its times are known and it is not here."""

from __future__ import annotations

from edgeopt.graph.model import Model
from edgeopt.steps._device_times.form_times import FormTimes
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.system.declared.target import Target, TargetElsewhere

_PREDICTORS: dict[tuple[str, str, str], Predictor] = {}
"""Predictors by digest of the times, engine's profile and precision: making one reads thousands of layers."""


def predictor_of(target: Target, precision: str) -> Predictor | None:
    """Return what predicts times on a target's device in a precision; None where none were measured on it."""
    if not isinstance(target, TargetElsewhere) or target.times is None:
        return None
    key = target.times_digest, target.name, precision
    if key not in _PREDICTORS and (times := target.times.of(target.name, precision)):
        _PREDICTORS[key] = Predictor(times)
    return _PREDICTORS.get(key)


def form_times_of(model: Model, target: Target, precision: str) -> FormTimes | None:
    """Return what predicts times of a float model's INT8 forms on a target's device; None where nothing does."""
    floats, integers = predictor_of(target, target.float_precision), predictor_of(target, precision)
    return FormTimes(model, floats, integers) if floats and integers else None
