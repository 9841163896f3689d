"""The time of a layer that was never measured, from those most like it; of a whole model, with its interval.

Times are compared as work a millisecond: within a kind of layer that changes slowly with the sizes, and a plane through
the nearest measured layers, in logarithms, tells what lies between them. Channels are counted in whole steps, since an
engine computes them in blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import ChannelGroups
from edgeopt.graph.model import Model
from edgeopt.steps._device_times.features import BORDER, CHANNELS, OTHER, LayerFeatures, features_of
from edgeopt.steps._device_times.forms import FormLayers
from edgeopt.steps.prune.network.layer_shapes import Layers, LayerShape
from edgeopt.system.declared.device_times import PrecisionTimes

LEAST_CHECKS = 19
"""Networks from which an interval of 95 % follows whatever their errors' distribution; see `_spread`."""
_NEAREST, _RIDGE = 8, 0.5
_SOFT = 0.2
"""Distance, in octaves, within which layers count about equally."""
_OTHER_KIND, _OTHER_ALIGNMENT = 5.0, 1.0
"""Distance, in octaves, of a layer of another kind, and for each factor of 2 that channels are aligned otherwise."""
_MOST_ALIGNED = 4
"""Factors of 2 from which a channel count is aligned for every engine."""
_BEYOND = 0.3
"""How far a prediction may lie beyond the layers that it is made of, in natural logarithms."""
_FEW_CHANNELS = 4
"""Channels of pictures: engines compute so few by kernels of their own, not in blocks."""


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """The time of a whole model."""

    ms: float
    low_ms: float
    """Lower end of the 95 % interval in which a model like those that were checked lies."""
    high_ms: float

    def __str__(self) -> str:
        return f"{self.ms:.3g} [{self.low_ms:.3g}, {self.high_ms:.3g}]"


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """The speed of a model, over that of another one."""

    ratio: float
    low: float
    """Lower end of the 95 % interval."""
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"

    @property
    def is_faster(self) -> bool:
        """Whether it is faster in all of the interval."""
        return self.low > 1


@dataclass(frozen=True, slots=True)
class _Pool:
    """Measured layers that can be compared."""

    kinds: NDArray[np.str_]
    sizes: NDArray[np.float64]
    alignments: NDArray[np.float64]
    speeds: NDArray[np.float64]
    """Logarithms of milliseconds for a unit of work."""


class Predictor:
    """Predicts times in one precision on one engine of a device."""

    def __init__(self, times: PrecisionTimes) -> None:
        """Take the times of the layers that were measured."""
        self.channel_step = times.channel_step
        rows: dict[str, list[tuple[LayerFeatures, float]]] = defaultdict(list)
        for name, measured in times.layers.items():
            pool, _, kind = name.partition(": ")
            for *sizes, work, ms in measured:
                rows[pool].append((LayerFeatures(pool, kind, tuple(sizes), work), ms))
        self._pools = {pool: self._pool(each) for pool, each in rows.items()}
        self._known: dict[LayerFeatures, float] = {}
        self.errors = {check.name: math.log(check.measured_ms / check.predicted_ms) for check in times.checks}
        self._bias = float(np.median([*self.errors.values()])) if self.errors else 0.0
        self._spread = _spread([*self.errors.values()])
        thinned = {check.name: math.log(check.measured_ms / check.predicted_ms) for check in times.thinned}
        both = sorted(self.errors.keys() & thinned.keys())
        self._thinned = [self.errors[name] - thinned[name] for name in both] or [*self.errors.values()]

    def _pool(self, rows: Sequence[tuple[LayerFeatures, float]]) -> _Pool:
        stepped = [self._in_steps(features) for features, _ in rows]
        return _Pool(
            np.array([features.kind for features, _ in rows]),
            np.array([features.sizes for features in stepped]),
            np.array([_alignment(features) for features, _ in rows]),
            np.log([ms / features.work for (_, ms), features in zip(rows, stepped, strict=True)]),
        )

    @property
    def most_off(self) -> float:
        """Times that a prediction of a whole model is off at most, in 95 % of cases."""
        return math.exp(self._spread)

    def layer_ms(self, shape: LayerShape) -> float:
        """Return the time of one layer."""
        return self.ms(features_of(shape))

    def ms(self, features: LayerFeatures) -> float:
        """Return the time of a layer with some features; 0 where nothing at all can be compared with it.

        So it is for passes between layers of an engine that tells of none, as it computes them inside layers.
        """
        if features not in self._known:
            others = None if features.pool == BORDER else self._pools.get(OTHER)
            pool = self._pools.get(features.pool) or others
            self._known[features] = self._between(features, pool) if pool else 0.0
        return self._known[features]

    def model_time(self, layers: Iterable[float]) -> PredictedTime:
        """Return the time of a model whose layers take so many milliseconds each."""
        ms = math.fsum(layers) * math.exp(self._bias)
        return PredictedTime(ms, ms * math.exp(-self._spread), ms * math.exp(self._spread))

    def speed_of_thinner(self, ratio: float) -> PredictedSpeed:
        """Return the speed of a model with fewer channels in the same precision, with its interval.

        Args:
            ratio: Predicted time of the whole model over its own.
        """
        return speed_with(ratio, self._thinned)

    def _between(self, features: LayerFeatures, pool: _Pool) -> float:
        stepped = self._in_steps(features)
        width = min(pool.sizes.shape[1], len(stepped.sizes))  # an unknown op has one size, as all in its pool
        away = pool.sizes[:, :width] - np.array(stepped.sizes[:width])
        aligned = _OTHER_ALIGNMENT * (pool.alignments - _alignment(features))
        other_kind = _OTHER_KIND * (pool.kinds != features.kind)
        squares = (away**2).sum(1) + (aligned**2).sum(1) + other_kind**2
        nearest = np.argsort(squares, kind="stable")[:_NEAREST]
        speeds = pool.speeds[nearest]
        weights = 1 / (np.sqrt(squares[nearest]) + _SOFT) ** 2
        plane = np.column_stack([np.ones(len(nearest)), away[nearest]])
        ridge = np.eye(width + 1) * _RIDGE * weights.mean()
        ridge[0, 0] = 0.0
        weighted = plane.T * weights
        speed = float(np.linalg.solve(weighted @ plane + ridge, weighted @ speeds)[0])
        speed = min(max(speed, float(speeds.min()) - _BEYOND), float(speeds.max()) + _BEYOND)
        return math.exp(speed) * stepped.work

    def _in_steps(self, features: LayerFeatures) -> LayerFeatures:
        """Return a convolution with its channels rounded up to whole steps."""
        sizes, work = list(features.sizes), features.work
        for place in CHANNELS.get(features.pool, ()):
            count = round(2 ** sizes[place])
            if count <= _FEW_CHANNELS:
                continue
            rounded = math.ceil(count / self.channel_step) * self.channel_step
            sizes[place] = math.log2(rounded)
            work *= rounded / count
        return LayerFeatures(features.pool, features.kind, tuple(sizes), work)


def form_layers_ms(form: FormLayers, integers: Predictor, floats: Predictor | None) -> list[float]:
    """Return the times of an INT8 form's layers, and of the passes between them.

    Args:
        form: Its layers.
        integers: Of its precision.
        floats: Of float, for the layers that stay in it; None: they count as if they were on integers.
    """
    on_integers = [integers.ms(features) for features in (*form.integer, *form.borders)]
    return on_integers + [(floats or integers).ms(features) for features in form.in_float]


def speed_between(first: Predictor, second: Predictor, ratio: float) -> PredictedSpeed:
    """Return the speed of a model in another precision, with its interval.

    Args:
        first: Of the precision that it is compared with.
        second: Of its own.
        ratio: Predicted time in the first over that in the second, each without its own bias.
    """
    both = sorted(first.errors.keys() & second.errors.keys())
    errors = [first.errors[name] - second.errors[name] for name in both]
    # without a network that ran in both, the errors count as if one told nothing of the other
    apart = [mine - theirs for mine in first.errors.values() for theirs in second.errors.values()]
    return speed_with(ratio, errors or apart)


def speed_with(ratio: float, errors: Sequence[float]) -> PredictedSpeed:
    """Return a predicted speed with what is known of such predictions.

    Args:
        ratio: As predicted.
        errors: Logarithms of measured over predicted speeds of other models.
    """
    center, spread = float(np.median(errors)) if errors else 0.0, _spread(errors)
    middle = ratio * math.exp(center)
    return PredictedSpeed(middle, middle * math.exp(-spread), middle * math.exp(spread))


def model_shapes(model: Model) -> list[LayerShape]:
    """Return the layers of a model with fixed shapes, in the order of its graph."""
    layers = Layers(model, ChannelGroups((), ()))
    return [layers.shape(place, {}) for place in range(len(layers.all))]


def _alignment(features: LayerFeatures) -> tuple[int, ...]:
    """Return how many times 2 divides the channels in and out; always two numbers."""
    places = CHANNELS.get(features.pool, ())
    counts = [round(2 ** features.sizes[place]) for place in places] + [0] * (2 - len(places))
    return tuple(min((count & -count).bit_length() - 1, _MOST_ALIGNED) if count else 0 for count in counts)


def _spread(errors: Sequence[float], level: float = 0.95) -> float:
    """Return the distance that a further error exceeds in 1 - `level` of cases, whatever their distribution.

    Source: split conformal prediction (Vovk et al. 2005), the ceil((n + 1) level)-th of n distances in order; with
    fewer than 19 of them no distance is sure enough for 95 %, and the largest stands for it.
    """
    if not errors:
        return 0.0
    ordered = sorted(abs(error - float(np.median(errors))) for error in errors)
    return ordered[min(math.ceil((len(ordered) + 1) * level), len(ordered)) - 1]
