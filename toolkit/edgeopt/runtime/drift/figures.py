"""The figures of one frame: of the picture that the model sees, of other numbers, and of its answer.

Only their order matters, since a watch ranks each among those of the calibration frames: no figure needs a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.tasks import FrameTask

Figures = dict[str, float]
"""Figures of a frame by name; NaN: this frame says nothing of it."""

_ROWS: Final = 12
"""Lines of pixels that are read, in each direction."""
_REACH: Final = 160
"""Pixels of a line, at most."""
_LAG: Final = 4
"""Pixels across which a difference is shape rather than texture."""
_LEAST_SIDE: Final = 4 * _LAG
_MOST_VALUES: Final = 4096
"""Values of an input that is no picture."""
_RANKED: Final = 512
"""Values that are sorted, at most."""
_FLOOR: Final = 1 / 2500
"""Share of the span of values that counts as no difference: a tenth of a level of 8 bits."""


@dataclass(frozen=True, slots=True)
class FigureReader:
    """Reads the figures of a model's frames, in constant time whatever their size."""

    name: str
    """Name of the input that is read; empty: none holds numbers of a frame."""
    channels: int | None
    """Axis of the colours of a picture; None: the input is no picture."""
    span: float
    """How far values of the input lie apart in the calibration frames."""
    held: Mapping[str, tuple[float, float]]
    """Input or output -> the least and the largest number that the INT8 model's quantizer there can hold."""

    def of_inputs(self, inputs: Tensors) -> Figures:
        """Return the figures of the inputs of one frame."""
        array = inputs.get(self.name)
        if array is None or not array.size:
            return {}
        figures = self._picture(array) if self.channels is not None else _numbers(array)
        if self.name in self.held:
            values = _sample(array)
            low, high = self.held[self.name]
            figures["beyond"] = float(((values < low) | (values > high)).mean())
        return figures

    def of_outputs(self, outputs: Tensors) -> Figures:
        """Return the share of the outputs' numbers that lie at the end of what their quantizer holds."""
        shares = [self._share_at_end(name, outputs[name]) for name in self.held if name in outputs]
        return {"saturated": max(shares)} if shares else {}

    def _share_at_end(self, name: str, array: NDArray[Any]) -> float:
        values = _sample(array)
        low, high = self.held[name]
        at_low = values <= low if low < 0 else np.zeros(len(values), np.bool_)  # zero is what an empty place holds
        return float((at_low | (values >= high)).mean()) if len(values) else math.nan

    def _picture(self, array: NDArray[Any]) -> Figures:
        """Return the figures of the middle of a picture: its edges may be padding.

        `sharpness` is the second difference over the difference across 4 pixels, which motion and focus lower and noise
        raises, in the direction where it is lower. `grain` is the median of the diagonal difference, in which the
        shapes of things are weak (Donoho 1994), over the same. `edge_tint` compares second differences of the last
        colour with those of the first: edges of most scenes are grey on average, so that their colour is that of the
        light and the camera (van de Weijer, Gevers and Gijsenij 2007). `tint` is that of the scene as well.
        """
        picture: NDArray[Any] = array.reshape(array.shape[-3:])
        if self.channels == -1:  # (height, width, colours)
            picture = picture.transpose(2, 0, 1)
        height, width = picture.shape[1:]
        reach_y, reach_x = min(height // 2, _REACH), min(width // 2, _REACH)
        top, left = (height - reach_y) // 2, (width - reach_x) // 2
        rows = min(_ROWS, reach_y // (_LAG + 1))
        middle = picture[:, top : top + rows * (reach_y // rows), left : left + reach_x]
        bands = middle.reshape(len(picture), rows, -1, reach_x)[:, :, : _LAG + 1]
        grey = np.add.reduce(bands, axis=0, dtype=np.float32)  # (rows, lines below each other, pixels)
        lines = grey[:, 0]
        floor = len(picture) * self.span * _FLOOR
        across = lines[:, _LAG:] - lines[:, :-_LAG]
        step = lines[:, 1:] - lines[:, :-1]
        step_below = grey[:, 1, 1:] - grey[:, 1, :-1]
        bend_down = lines + grey[:, 2] - 2 * grey[:, 1]
        ordered = _ordered(lines)
        level = _mean(ordered)
        figures = {
            "brightness": level,
            "darkest": float(ordered[len(ordered) // 20]),
            "brightest": float(ordered[-1 - len(ordered) // 20]),
            "contrast": _energy(ordered - level),
            "sharpness": min(
                _sharpness(step[:, 1:] - step[:, :-1], across, floor),
                _sharpness(bend_down, grey[:, _LAG] - lines, floor),
            ),
            "grain": _log_ratio(_median(step - step_below), _median(across), floor),
        }
        if len(picture) > 1:
            colours = bands[:, :, 0].astype(np.float32)
            figures["saturation"] = _mean(colours.max(axis=0) - colours.min(axis=0))
            figures["tint"] = _mean(colours[-1] - colours[0])
            figures["edge_tint"] = _edge_tint(colours[:: len(colours) - 1], self.span * _FLOOR)
        return figures


def reader_of(
    inputs: Sequence[TensorSpec], sample: Tensors, name: str, held: Mapping[str, tuple[float, float]]
) -> FigureReader:
    """Return what reads the frames of a model.

    Args:
        inputs: Of the model.
        sample: The inputs of a frame, by which an input is known for a picture.
        name: The input that holds the frame; where it is none, the first that holds numbers.
        held: See `FigureReader`.
    """
    names = [name] if name in sample else [spec.name for spec in inputs]
    for known in names:
        array = np.asarray(sample.get(known, np.empty(0)))
        if array.dtype.kind in "fiu" and array.size:
            span = float(array.max()) - float(array.min())
            return FigureReader(known, _channel_axis(array), span or 1.0, held)
    return FigureReader("", None, 1.0, held)


def _channel_axis(array: NDArray[Any]) -> int | None:
    """Return where the colours of a picture lie: 1, or -1 for the last axis; None where it is no picture."""
    shape = array.shape if array.ndim == 4 else (1, *array.shape)
    if len(shape) != 4 or shape[0] != 1:
        return None
    for axis, sides in ((1, shape[2:]), (-1, shape[1:3])):
        if shape[axis] in (1, 3) and min(sides) >= _LEAST_SIDE:
            return axis
    return None


def of_answer(task: FrameTask, answer: Any) -> Figures:
    """Return the figures of an answer: how sure it is of its best thing, and how many things it names."""
    figures: Figures = {}
    if (score := task.best_score(answer)) is not None:
        figures["best_score"] = score
        figures["things"] = float(task.count(answer))
    return figures


def _sharpness(bend: NDArray[np.float32], across: NDArray[np.float32], floor: float) -> float:
    """Return the logarithm of the size of second differences over that of the differences across some pixels."""
    return 0.5 * _log_ratio(_energy(bend), _energy(across), floor * floor)


def _edge_tint(ends: NDArray[np.float32], floor: float) -> float:
    """Return the logarithm of the size of second differences in the last of two colours over that in the first."""
    bend = ends[:, :, 2:] + ends[:, :, :-2]
    bend -= 2 * ends[:, :, 1:-1]
    return 0.5 * _log_ratio(_energy(bend[1]), _energy(bend[0]), floor * floor)


def _energy(values: NDArray[np.float32]) -> float:
    """Return the mean square."""
    flat = values.reshape(-1)
    return float(flat @ flat) / len(flat)


def _mean(values: NDArray[np.float32]) -> float:
    """Return the mean; `ndarray.mean` takes three times as long for so few."""
    return float(np.add.reduce(values, axis=None)) / values.size


def _log_ratio(value: float, other: float, floor: float) -> float:
    return math.log((value + floor) / (other + floor))


def _ordered(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return at most 512 values from all over an array, in rising order."""
    flat = values.reshape(-1)
    chosen = flat[:: len(flat) // _RANKED + 1].copy()
    chosen.sort()
    return chosen


def _median(differences: NDArray[np.float32]) -> float:
    """Return the median of their sizes."""
    ordered = _ordered(np.abs(differences))
    return float(ordered[len(ordered) // 2])


def _numbers(array: NDArray[Any]) -> Figures:
    """Return the figures of numbers that are no picture: how many, their level, spread and roughness."""
    values = _sample(array)
    spread = float(values.std())
    rough = float(np.abs(np.diff(values)).mean()) if len(values) > 1 else math.nan
    return {
        "length": float(array.size),
        "level": float(values.mean()),
        "spread": spread,
        "roughness": rough / spread if spread else math.nan,
    }


def _sample(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return (values,) at most 4096 values: neighbours from the middle, since roughness compares these."""
    flat = array.reshape(-1)
    first = max(len(flat) - _MOST_VALUES, 0) // 2
    return flat[first : first + _MOST_VALUES].astype(np.float32)
