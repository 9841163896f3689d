"""HardSwish, z = x clip(x / 6 + 1/2, 0, 1): a parabola between two lines, close to a piece of any smooth activation."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.activations.forms import ActivationForm, Fit, Numbers
from edgeopt.steps.activations.forms._least_squares import solve, where
from edgeopt.steps.quantize.activations import hard_swish

_SLOPES, _SHIFTS = np.geomspace(0.25, 4.0, 9), np.linspace(-2.5, 2.5, 11)
_STEPS, _SHRINK = 10, 0.7
_COARSE = 4


class HardSwish(ActivationForm):
    """A parabola between two lines."""

    name: ClassVar[str] = "HardSwish"
    op: ClassVar[str] = "HardSwish"
    opset: ClassVar[int] = 14

    def fit(self, x: Numbers, wanted: Numbers, *, gain: Numbers | None, has_offset: bool) -> Fit:
        """Return the best of a grid of slopes and shifts, then of steps around it."""
        count = len(x)
        slope, shift, best = np.ones(count), np.zeros(count), np.full(count, np.inf)
        few = slice(None, None, _COARSE)
        for b in _SLOPES:
            for c in _SHIFTS:
                error = _solved(b * x[:, few] + c, wanted[:, few], gain, has_offset)[2]
                better = error < best
                slope[better], shift[better], best[better] = b, c, error[better]
        arrays = _solved(slope[:, None] * x + shift[:, None], wanted, gain, has_offset)
        factor, step = _SLOPES[1] / _SLOPES[0], (_SHIFTS[1] - _SHIFTS[0]) / 2
        for _ in range(_STEPS):
            for b, c in ((factor, 0), (1 / factor, 0), (1, step), (1, -step), (factor, step), (1 / factor, -step)):
                tried = slope * b, shift + c
                its = _solved(tried[0][:, None] * x + tried[1][:, None], wanted, gain, has_offset)
                better = its[2] < arrays[2]
                slope, shift = np.where(better, tried[0], slope), np.where(better, tried[1], shift)
                arrays = where(better, its, arrays)
            factor, step = factor**_SHRINK, step * _SHRINK
        return Fit(slope, shift, arrays[0], arrays[1], arrays[2])

    def insert(self, graph: Graph, x: Value, fit: Fit, before: Node, name: str) -> Value:
        """Write HardSwish."""
        return graph.insert("HardSwish", [x], name=f"{name}_HardSwish", before=before).outputs[0]


def _solved(x: Numbers, wanted: Numbers, gain: Numbers | None, has_offset: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Return gain, offset and mean squared error of each channel."""
    z = np.asarray(hard_swish(x))
    return solve(z, wanted, gain, has_offset)


FORM = HardSwish()
