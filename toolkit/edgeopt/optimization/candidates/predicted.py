"""The times of candidates on a device that is not here, predicted from those that were measured on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.candidate import Candidate, Prediction
from edgeopt.optimization.run import Run
from edgeopt.steps._device_times.device import predictor_of
from edgeopt.steps._device_times.forms import is_predictable, layers_of_form
from edgeopt.steps._device_times.prediction import (
    PredictedSpeed,
    Predictor,
    form_layers_ms,
    model_shapes,
    speed_between,
)


def with_predictions(run: Run, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates of a run with their times on a device that is not here, as far as its times are known.

    The original counts as its simplified form: an engine simplifies what it opens.
    """
    own = run.context.engine.target
    floats = predictor_of(own, own.float_precision)
    if floats is None:
        return tuple(candidates)
    by_name = {candidate.name: candidate for candidate in candidates}
    plain = [other for other in candidates if not other.is_lossy and _is_float(other) and not other.profile][-1]
    basis = _Basis(floats, _float_ms(_model(run, plain), floats), _model(run, plain))
    return tuple(
        replace(candidate, predicted=_predicted(run, candidate, by_name.get(candidate.parent), basis))
        for candidate in candidates
    )


@dataclass(frozen=True, slots=True)
class _Basis:
    """The original on the target's own engine, with which all are compared."""

    floats: Predictor
    layers_ms: Sequence[float]
    plain: Model
    """Its simplified form."""


def _predicted(run: Run, candidate: Candidate, parent: Candidate | None, basis: _Basis) -> Prediction | None:
    """Return the time of a candidate; None where nothing is known of its engine, precision or form."""
    target = run.engine_of(candidate).target
    predictor = predictor_of(target, candidate.precision)
    if predictor is None:
        return None
    if not _is_float(candidate):
        floats = predictor_of(target, target.float_precision)
        form = _model(run, candidate)
        if parent is None or not _is_float(parent) or not is_predictable(form):
            return None
        shapes = model_shapes(_model(run, parent))
        layers_ms = form_layers_ms(layers_of_form(shapes, form), predictor, floats)
    elif candidate.is_lossy:
        layers_ms = _float_ms(_model(run, candidate), predictor)
    else:
        layers_ms = _float_ms(basis.plain, predictor)
    ratio = math.fsum(basis.layers_ms) / math.fsum(layers_ms)
    if predictor is not basis.floats:
        speed = speed_between(basis.floats, predictor, ratio)
    elif candidate.is_lossy:
        speed = predictor.speed_of_thinner(ratio)
    else:
        speed = PredictedSpeed(1.0, 1.0, 1.0)
    return Prediction(predictor.model_time(layers_ms), speed)


def _is_float(candidate: Candidate) -> bool:
    return candidate.precision.startswith(("fp", "bf"))


def _model(run: Run, candidate: Candidate) -> Model:
    return load_model(run.workspace.path(candidate.file), candidate.name)


def _float_ms(model: Model, floats: Predictor) -> list[float]:
    return [floats.layer_ms(shape) for shape in model_shapes(model)]
