"""Compute SiLU as a HardSwish fitted to each channel, for engines where the one costs ten times the other.

SiLU needs an exponential and a division for each number; OpenVINO computes both in the convolution's own kernel, and
they take a third of a detector's time there. HardSwish, h(x) = x clip(x / 6 + 1/2, 0, 1), needs neither. For channel c
of what a convolution makes, x = w_c * u + v_c,

    silu(x) ~ A_c h(b_c x + c_c) + D_c

b and c disappear in the convolution (weights b_c w_c, bias b_c v_c + c_c); A and D are a Mul and an Add of one number
a channel, which the engine adds to the same kernel. On its own, h is far from SiLU (up to 0.15); but a channel uses
a part of the curve only, and there a piece of a parabola is close to it: on a detector, 21 to 45 dB for a tensor.

For b and c given, A and D are those of least squares on what calibration sampled and on each channel's extremes; b and
c are looked for on a grid, and then around its best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.activations import hard_swish, silu
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.patterns import has_weights, name_of, silu_sigmoid
from edgeopt.steps.quantize.repairs import ModelRepair, Search, Setting
from edgeopt.system.declared.target import Int8Rules

_OPSET = 14
"""First opset with HardSwish."""
_SLOPES, _SHIFTS = np.geomspace(0.25, 4.0, 9), np.linspace(-2.5, 2.5, 9)
_BOTTOM, _HARD_BOTTOM = -1.2785, -1.5
"""Where SiLU and HardSwish are least: a channel that stays about there is met only where both bottoms meet."""
_COARSE = 4
"""Every how many-th sample the grid is tried on; around its best all count, as fewer gave worse fits."""
_STEPS, _SHRINK = 10, 0.7
_SHOWN = 3
_EXACT_SHARES = (0.1, 0.2, 0.3, 0.5)
"""Shares of all numbers that SiLUs compute exactly, in a model that computes the others as fitted HardSwishes. On
YOLOX-nano the first tenth costs 0.2 of 4.6 ms; without it 0.006 AP are lost, with it none (means of four to five
calibrations)."""
_ROUNDING = 1e-12
"""Below this share of a channel's power a variance is rounding: the channel never changes."""


@dataclass(frozen=True, slots=True)
class SiluFit:
    """A SiLU and the HardSwish that stands for it."""

    name: str
    """Name of the tensor that the SiLU makes."""
    slope: NDArray[np.float32]
    """b, shape (channels,), as are the next three."""
    shift: NDArray[np.float32]
    gain: NDArray[np.float32]
    offset: NDArray[np.float32]
    noise: float
    """Mean over channels of the error's power over the variance of the channel."""
    elements: int
    """Numbers that the SiLU computes for one input: what HardSwish saves grows with them."""


def fit_silus(graph: Graph, seen: Mapping[str, Observation]) -> tuple[SiluFit, ...]:
    """Return a fit for each SiLU behind a convolution, in the order of the graph.

    Args:
        graph: The float model, with shapes; it is not edited.
        seen: What calibration saw of the convolutions' outputs, by name; SiLUs without it have no fit.
    """
    fits = []
    for node, x in _behind_convolutions(graph):
        observation = seen.get(name_of(x))
        if observation is not None:
            fits.append(
                _fitted(name_of(node.outputs[0]), observation, math.prod(graph.shape(x) or observation.low.shape))
            )
    return tuple(fits)


def keep_worst(fits: Iterable[SiluFit], share: float) -> tuple[SiluFit, ...]:
    """Return the fits without those that lose most for what they save, at most `share` of all elements.

    A larger share keeps what a smaller one does, and more.
    """
    fits = tuple(fits)
    left = share * sum(fit.elements for fit in fits)
    kept = set()
    for one in sorted(fits, key=lambda one: (-one.noise / one.elements, one.name)):
        left -= one.elements
        if left < 0:
            break
        kept.add(one.name)
    return tuple(fit for fit in fits if fit.name not in kept)


def note_of(fits: Sequence[SiluFit]) -> Note:
    """Return how many SiLUs are computed otherwise, and where that is coarsest."""
    worst = sorted(fits, key=lambda fit: (-fit.noise, fit.name))[:_SHOWN]
    text = ", ".join(f"{fit.name!r} {-10 * math.log10(max(fit.noise, _ROUNDING)):.1f} dB" for fit in worst)
    detail = f"{len(fits)} SiLU computed as HardSwish, fitted to each channel of what calibration saw"
    return Note(NoteKind.CHOICE, detail, f"coarsest: {text}")


def place_fits(graph: Graph, fits: Sequence[SiluFit]) -> int:
    """Write HardSwish where fits say so, in place, and return how many.

    Args:
        graph: The float model that was fitted.
        fits: Of its SiLUs.
    """
    wanted = {other.name: other for other in fits}
    done = 0
    for node, x in _behind_convolutions(graph):
        fit = wanted.get(name_of(node.outputs[0]))
        if fit is not None:
            _place(graph, node, x, fit)
            done += 1
    if done:
        graph.remove_unused()
    return done


def _behind_convolutions(graph: Graph) -> list[tuple[Node, Value]]:
    """Return each SiLU whose input a convolution makes for it alone, with that input."""
    behind_convolutions = []
    for node in graph.nodes("Mul") if graph.opset >= _OPSET else ():
        gate = silu_sigmoid(graph, node)
        x = gate.inputs[0] if gate is not None else None
        maker = graph.producer(x, "Conv")
        if x is None or gate is None or maker is None or not has_weights(graph, maker) or graph.is_output(x):
            continue
        alone = set(graph.consumers(x)) == {node, gate} and graph.is_used_once(gate.outputs[0])
        if alone and not graph.is_output(node.outputs[0]):
            behind_convolutions.append((node, x))
    return behind_convolutions


def _fitted(name: str, seen: Observation, elements: int) -> SiluFit:
    """Return the fit of one tensor.

    Args:
        name: Of what the SiLU makes.
        seen: Of what it reads.
        elements: Of one input.
    """
    few, whole = _Error(seen, _COARSE), _Error(seen, 1)
    count = len(seen.low)
    slope, shift, best = np.ones(count), np.zeros(count), np.full(count, np.inf)
    for b in _SLOPES:
        for c in (*_SHIFTS, _HARD_BOTTOM - b * _BOTTOM):
            error, _, _ = few.of(np.full(count, b), np.full(count, c))
            better = error < best
            slope[better], shift[better], best[better] = b, c, error[better]
    error, gain, offset = whole.of(slope, shift)
    factor, step = _SLOPES[1] / _SLOPES[0], (_SHIFTS[1] - _SHIFTS[0]) / 2
    for _ in range(_STEPS):
        for b, c in ((factor, 0), (1 / factor, 0), (1, step), (1, -step), (factor, step), (1 / factor, -step)):
            tried = slope * b, shift + c
            array, its_gain, its_offset = whole.of(*tried)
            better = array < error
            slope, shift = np.where(better, tried[0], slope), np.where(better, tried[1], shift)
            gain, offset = np.where(better, its_gain, gain), np.where(better, its_offset, offset)
            error = np.where(better, array, error)
        factor, step = factor**_SHRINK, step * _SHRINK
    noise = float(np.mean(np.maximum(error, 0) / whole.spread))
    b, c, a, d = (other.astype(np.float32) for other in (slope, shift, gain, offset))
    return SiluFit(name, slope=b, shift=c, gain=a, offset=d, noise=noise, elements=elements)


class _Error:
    """The difference that the best gain and offset leave, for all channels at once."""

    def __init__(self, seen: Observation, step: int) -> None:
        """Take every `step`-th sample, and the extremes of each channel."""
        x = np.concatenate([seen.low[None], seen.high[None], seen.samples[::step]]).T.astype(np.float64)
        wanted = silu(x)
        self._x, self._mean = x, wanted.mean(axis=1)
        self._wanted = wanted - self._mean[:, None]
        self.spread = _variance(self._wanted, self._mean)

    def of(
        self, slope: NDArray[np.float64], shift: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return mean squared error, gain and offset of each channel."""
        made = hard_swish(slope[:, None] * self._x + shift[:, None])
        mean = made.mean(axis=1)
        made -= mean[:, None]
        power, common = _variance(made, mean), (made * self._wanted).mean(axis=1)
        gain = common / power
        return self.spread - 2 * gain * common + np.square(gain) * power, gain, self._mean - gain * mean


def _variance(differences: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of each row, above zero: at least what rounding leaves of rows that never change."""
    least = _ROUNDING * np.square(mean) + np.finfo(np.float32).tiny
    return np.asarray(np.maximum(np.square(differences).mean(axis=1), least))


def _place(graph: Graph, node: Node, x: Value, fit: SiluFit) -> None:
    maker = graph.producer(x)
    assert maker is not None
    weight = graph.constant(maker.inputs[1])
    bias = graph.constant(maker.inputs[2]) if len(maker.inputs) > 2 else None
    assert weight is not None
    graph.set_input(maker, 1, weight * fit.slope.reshape(-1, *[1] * (weight.ndim - 1)))
    graph.set_input(maker, 2, (fit.slope * bias if bias is not None else 0) + fit.shift)
    shape = (1, -1, *[1] * (weight.ndim - 2))
    name = name_of(node.outputs[0])
    made = graph.insert("HardSwish", [x], name=f"{name}_HardSwish", before=node).outputs[0]
    gain = graph.add_initializer(f"{name}_gain", fit.gain.reshape(shape))
    made = graph.insert("Mul", [made, gain], name=f"{name}_scaled", before=node).outputs[0]
    offset = graph.add_initializer(f"{name}_offset", fit.offset.reshape(shape))
    made = graph.insert("Add", [made, offset], name=f"{name}_fitted", before=node).outputs[0]
    graph.bypass(node, keep=made)


class FittedSilu(ModelRepair):
    """The SiLUs in the setting, by what they make, are computed as the HardSwish that fits them best."""

    order: ClassVar[int] = 40
    follows_form: ClassVar[bool] = True
    keeps: ClassVar[tuple[type, ...]] = (SiluFit,)

    def told(self, setting: Setting) -> str:
        """Return how many."""
        return f"{len(_names(setting))} SiLU as fitted HardSwish"

    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield all SiLUs but more and more of the worst, until the answers agree."""
        if not search.rules.fitted_silu or not search.agrees or search.was_tried("fitted_silu"):
            return  # what is spoiled without fits already may be mended before they are tried again
        for share in _EXACT_SHARES:
            if not search.has_time("SiLU as fitted HardSwish") or not search.prepared("fitted_silu"):
                return
            yield frozenset(fit.name for fit in keep_worst(search.prepared("fitted_silu"), share))
            if not search.is_last_in_need:
                return

    def prepare(self, graph: Graph, seen: Mapping[str, Observation], rules: Int8Rules) -> tuple[SiluFit, ...]:
        """Return the fit of each SiLU; none where the target gains nothing from it."""
        return fit_silus(graph, seen) if rules.fitted_silu else ()

    def edit(self, graph: Graph, seen: Mapping[str, Observation], setting: Setting, prepared: Any) -> int:
        """Write HardSwish in place of the SiLUs in the setting."""
        return place_fits(graph, _chosen(prepared, setting))

    def notes(self, prepared: Any, setting: Setting) -> tuple[Note, ...]:
        """Return how many, and where that is coarsest."""
        return (note_of(_chosen(prepared, setting)),)


def _names(setting: Setting) -> frozenset[str]:
    return setting if isinstance(setting, frozenset) else frozenset()


def _chosen(fits: Sequence[SiluFit], setting: Setting) -> list[SiluFit]:
    return [fit for fit in fits if fit.name in _names(setting)]


REPAIR = FittedSilu()
