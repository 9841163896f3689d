"""The times of candidates on a device that is not here, predicted from those that were measured on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.candidate import Candidate, Prediction
from edgeopt.optimization.run import Run
from edgeopt.steps._device_times.device import predictor_of
from edgeopt.steps._device_times.forms import layers_of_form
from edgeopt.steps._device_times.prediction import (
    PredictedSpeed,
    Predictor,
    form_layers_ms,
    model_shapes,
    speed_between,
)

_INTEGERS = "w8a8"


def with_predictions(run: Run, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates of a run with their times on a device that is not here, as far as its times are known.

    The original counts as its simplified form: an engine simplifies what it opens.
    """
    target = run.context.engine.target
    floats = predictor_of(target, target.float_precision)
    if floats is None:
        return tuple(candidates)
    by_name = {candidate.name: candidate for candidate in candidates}
    plain = [candidate for candidate in candidates if not candidate.is_lossy and _is_float(candidate)][-1]
    base_ms = _float_ms(_model(run, plain), floats)
    made = list[Candidate]()
    for candidate in candidates:
        parent = by_name.get(candidate.parent)
        if not candidate.is_lossy and _is_float(candidate):
            layers_ms, speed = base_ms, PredictedSpeed(1.0, 1.0, 1.0)
            predicted = _prediction(floats, layers_ms, speed)
        elif _is_float(candidate):
            layers_ms = _float_ms(_model(run, candidate), floats)
            predicted = _prediction(floats, layers_ms, floats.speed_of_thinner(_ratio(base_ms, layers_ms)))
        else:
            integers = predictor_of(target, candidate.precision)
            predicted = None
            if integers and candidate.precision.startswith(_INTEGERS) and parent and _is_float(parent):
                shapes = model_shapes(_model(run, parent))
                layers_ms = form_layers_ms(layers_of_form(shapes, _model(run, candidate)), integers, floats)
                predicted = _prediction(
                    integers, layers_ms, speed_between(floats, integers, _ratio(base_ms, layers_ms))
                )
        made.append(replace(candidate, predicted=predicted))
    return tuple(made)


def _is_float(candidate: Candidate) -> bool:
    return candidate.precision.startswith(("fp", "bf"))


def _model(run: Run, candidate: Candidate) -> Model:
    return load_model(run.workspace.path(candidate.file), candidate.name)


def _float_ms(model: Model, floats: Predictor) -> list[float]:
    return [floats.layer_ms(shape) for shape in model_shapes(model)]


def _ratio(base_ms: Sequence[float], layers_ms: Sequence[float]) -> float:
    return math.fsum(base_ms) / math.fsum(layers_ms)


def _prediction(predictor: Predictor, layers_ms: Sequence[float], speed: PredictedSpeed) -> Prediction:
    time = predictor.model_time(layers_ms)
    return Prediction(time.ms, time.low_ms, time.high_ms, speed.ratio, speed.low, speed.high)
