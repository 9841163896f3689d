"""A line with a floor, z = max(slope x + shift, floor): on integers the end of the layer's own grid, no op at all."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.activations.forms import ActivationForm, Fit, Numbers
from edgeopt.steps.activations.forms._least_squares import solve, where

_KNOTS = np.linspace(-2.5, 2.0, 37)
_FLOORS = (-0.3, -0.25, -0.2, -0.15, -0.1, -0.05, 0.0)
_FLOOR = -0.2
"""Lowest z, where a gain makes any other of it."""
_LEAST, _MOST = -0.4, -0.04
"""Between these lies the floor of a channel: the gain is its share of `_FLOOR`."""


class LineForm(ActivationForm):
    """A line that ends in a floor."""

    name: ClassVar[str] = "line"
    op: ClassVar[str] = "Clip"

    def fit(self, x: Numbers, wanted: Numbers, *, gain: Numbers | None, has_offset: bool) -> Fit:
        """Return the best of a grid of knots, with a floor for each channel where gain or offset can make one."""
        if gain is not None:
            return _with_gain(x, wanted, gain)
        if has_offset:
            return _best(x, wanted)
        return _scaled(x, wanted)

    def insert(self, graph: Graph, x: Value, fit: Fit, before: Node, name: str) -> Value:
        """Write Relu, or Clip from the floor up."""
        if fit.floor == 0:
            return graph.insert("Relu", [x], name=f"{name}_Relu", before=before).outputs[0]
        floor = graph.add_initializer(f"{name}_floor", np.array(fit.floor, np.float32))
        return graph.insert("Clip", [x, floor], name=f"{name}_Clip", before=before).outputs[0]


def _best(x: Numbers, wanted: Numbers) -> Fit:
    """Fit gain * max(x - knot, 0) + offset."""
    count = len(x)
    arrays = (np.ones(count), np.zeros(count), np.full(count, np.inf))
    knot = np.zeros(count)
    for value in _KNOTS:
        its = solve(np.maximum(x - value, 0), wanted, None, True)
        better = its[2] < arrays[2]
        knot = np.where(better, value, knot)
        arrays = where(better, its, arrays)
    return Fit(np.ones(count), -knot, arrays[0], arrays[1], arrays[2])


def _scaled(x: Numbers, wanted: Numbers) -> Fit:
    """Fit max(a (x - knot), 0) + bottom, written as gain * max(slope x + shift, floor) with one floor for all."""
    count = len(x)
    steep, knot, bottom = np.ones(count), np.zeros(count), np.full(count, _FLOOR)
    best = np.full(count, np.inf)
    for value in _KNOTS:
        z = np.maximum(x - value, 0)
        a, d, _ = solve(z, wanted, None, True)
        d = np.clip(d, _LEAST, _MOST)
        a, _, _ = solve(z, wanted - d[:, None], None, False)
        error = np.square(a[:, None] * z + d[:, None] - wanted).mean(axis=1)
        better = error < best
        steep, knot, bottom = np.where(better, a, steep), np.where(better, value, knot), np.where(better, d, bottom)
        best = np.minimum(best, error)
    gain = bottom / _FLOOR
    return Fit(steep / gain, (bottom - steep * knot) / gain, gain, np.zeros(count), best, _FLOOR)


def _with_gain(x: Numbers, wanted: Numbers, gain: Numbers) -> Fit:
    """Fit gain * max(slope x + shift, floor), one floor for the whole tensor."""
    best: Fit | None = None
    for floor in _FLOORS:
        bottom = gain * floor
        count = len(x)
        arrays = (np.ones(count), np.zeros(count), np.full(count, np.inf))
        for knot in _KNOTS:
            z = np.maximum(x - knot, 0)
            a, _, _ = solve(z, wanted - bottom[:, None], None, False)
            error = np.square(a[:, None] * z + bottom[:, None] - wanted).mean(axis=1)
            better = error < arrays[2]
            arrays = where(better, (a, np.full(count, knot), error), arrays)
        slope = arrays[0] / gain
        fit = Fit(slope, floor - slope * arrays[1], gain, np.zeros(count), arrays[2], floor)
        if best is None or fit.error.mean() < best.error.mean():
            best = fit
    assert best is not None
    return best


FORM = LineForm()
