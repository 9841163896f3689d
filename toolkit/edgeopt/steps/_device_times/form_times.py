"""The times of INT8 forms of one float model on a device that is not here: what an INT8 search goes by."""

from __future__ import annotations

import math

from edgeopt.graph.model import Model
from edgeopt.steps._device_times.features import LayerFeatures, features_of
from edgeopt.steps._device_times.forms import borders_by_name, is_predictable, layers_of_form
from edgeopt.steps._device_times.prediction import Predictor, form_layers_ms, model_shapes
from edgeopt.steps.prune.network.layer_shapes import WEIGHTED
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes, border_profile, times_of_profiles
from edgeopt.steps.quantize.scheme import open_graph


class FormTimes:
    """Predicts how fast forms of a float model are."""

    def __init__(self, model: Model, floats: Predictor, integers: Predictor) -> None:
        """Take the float model, and what predicts layers in float and on integers."""
        self._model, self._floats, self._integers = model, floats, integers
        self._shapes = model_shapes(model)
        self._float_ms = math.fsum(floats.layer_ms(shape) for shape in self._shapes)

    def speed(self, form: Model) -> float | None:
        """Return the float model's time over a form's; None of a form whose times do not follow from measured ones."""
        if not is_predictable(form):
            return None
        parts = layers_of_form(self._shapes, form)
        return self._float_ms / math.fsum(form_layers_ms(parts, self._integers, self._floats))

    def layer_times(self, form: Model) -> LayerTimes:
        """Return the time of each layer with weights in float and on integers, and of a border between them.

        Args:
            form: The first NHWC form of the float model.
        """
        in_float, on_integers = dict[str, int](), dict[str, int]()
        for shape in self._shapes:
            first = shape.layer.nodes[0]
            if first.op_type in WEIGHTED:
                features = features_of(shape)
                in_float[first.output[0]] = _ns(self._floats, features)
                on_integers[first.output[0]] = _ns(self._integers, features)
        borders = {name: _ns(self._integers, features) for name, features in borders_by_name(self._shapes, form)}
        return times_of_profiles(open_graph(self._model), in_float, on_integers | border_profile(borders))


def _ns(predictor: Predictor, features: LayerFeatures) -> int:
    return round(1e6 * predictor.ms(features))
