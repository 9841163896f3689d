"""Moments of the inputs of layers that read prunable channels, from one pass over pictures.

Memory grows with the layers, never with the pictures: for each input, the mean and the Gram matrix of its columns, at
sampled positions. Layers that read one tensor with the same window share them. A column is one tap of one channel.

Where all Gram matrices together would take more than `MOST_BYTES`, the widest layers are taken by channel: one matrix
of the channels, over all taps, in place of one of the columns. So a Gemm behind a flatten of 512 channels of 7x7 takes
2 MiB, not 5 GB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.groups import ChannelGroups, ChannelUse
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.prune.network.layers import Layer, layers_of
from edgeopt.steps.prune.network.weights import constants_of
from edgeopt.steps.quantize.calibration.watching import groups_of, shapes_of, with_outputs
from edgeopt.system.processes.time_limit import require_time

MOST_BYTES = 512 << 20
"""Most bytes of all Gram matrices together."""
POSITIONS = 128
"""Sampled positions of a layer's output in one picture."""
_FETCHED_BYTES = 256 << 20
"""Activations of one picture that are held at once."""
_CHUNK = 4
"""Pictures whose rows are multiplied together."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The positions of a layer's output at which pictures are looked at."""

    most: int = POSITIONS
    """Most positions in one picture, spread evenly."""
    places: Sequence[NDArray[np.float64]] = ()
    """Where the answer to each picture lies: as many positions more are drawn by it; none: all count alike."""

    @property
    def rows(self) -> int:
        """The most rows of one picture."""
        return 2 * self.most if self.places else self.most

    def at(self, layer: Layer, shape: Sequence[int], picture: int) -> NDArray[Any]:
        """Return the positions of a layer's output, of which this is the shape."""
        return layer.positions(shape, self.most, picture, self.places[picture] if self.places else None)


@dataclass(frozen=True, slots=True)
class Moments:
    """Second moments of a layer's input."""

    gram: NDArray[np.float64]
    """Mean of x x^T where x ends in a 1: shape (columns + 1, columns + 1); its last row holds the means."""
    rows: int
    width: int
    """Columns of one input channel, or, where `fold` is not 0, 1."""
    fold: int = 0
    """Taken by channel: neighbouring input channels of the layer that are one column; 0: by tap."""

    @property
    def mean(self) -> NDArray[np.float64]:
        """Shape (columns,)."""
        return np.asarray(self.gram[-1, :-1])

    @property
    def covariance(self) -> NDArray[np.float64]:
        """Shape (columns, columns)."""
        return self.gram[:-1, :-1] - np.outer(self.mean, self.mean)

    def columns(self, channels: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
        """Return the columns of some of the layer's input channels, sorted."""
        if self.fold:
            return np.unique(channels // self.fold)
        return np.sort((channels[:, None] * self.width + np.arange(self.width)).ravel())

    def matrix(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights (outputs, channels, taps) as (rows, columns): each row weighs the columns."""
        if not self.fold:
            return weights.reshape(len(weights), -1)
        split = weights.reshape(len(weights), weights.shape[1] // self.fold, -1)
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(-1, split.shape[1])

    def weights(self, matrix: NDArray[np.float64], outputs: int, taps: int) -> NDArray[np.float64]:
        """Return what `matrix` was made of, shape (outputs, channels, taps)."""
        if not self.fold:
            return matrix.reshape(outputs, -1, taps)
        return np.ascontiguousarray(matrix.reshape(outputs, -1, matrix.shape[1]).swapaxes(1, 2)).reshape(
            outputs, -1, taps
        )

    def by_output(self, values: NDArray[np.float64], outputs: int) -> NDArray[np.float64]:
        """Return values of the rows of `matrix` summed for each output."""
        return np.asarray(values.reshape(outputs, -1).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Statistics:
    """The moments of one pass."""

    layers: Mapping[str, Layer]
    """Those that read prunable channels, by name."""
    moments: Mapping[str, Moments]
    """Moments by a layer's key."""
    constants: Mapping[str, NDArray[Any]]
    """Constants of the model."""
    pictures: int
    skipped: Mapping[str, str]
    """Name of a layer without moments -> the reason."""

    def of(self, layer: Layer) -> Moments | None:
        """Return the moments of a layer's input, None where there are none."""
        return self.moments.get(layer.key)

    def weights(self, layer: Layer) -> NDArray[np.float64]:
        """Return a layer's weights, shape (outputs, channels, taps)."""
        return np.asarray(layer.matrix(self.constants[layer.weight])[0])


def collect(
    model: Model,
    batches: Iterable[Tensors],
    groups: ChannelGroups,
    *,
    looks: Looks = Looks(),
    most_bytes: int = MOST_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Statistics:
    """Run the dense model over pictures once, and sum up the inputs of all layers that read prunable channels.

    Args:
        model: The dense model.
        batches: Model inputs, one picture each; read once, a few held at a time.
        groups: Of the model.
        looks: At which positions of layers' outputs.
        most_bytes: Of all Gram matrices together.
        progress: Called with the number of pictures done.

    Raises:
        EdgeoptError: If there are no pictures.
        UnsupportedError: If an activation is NaN or infinite.
    """
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise EdgeoptError("there are no calibration pictures", remedy="give a folder of pictures with --calib")
    constants = constants_of(model)
    readers = {use.node: use for group in groups.free for use in group.consumers}
    layers = {layer.name: layer for layer in layers_of(model, constants) if layer.name in readers}
    skipped = {name: "no layer whose input is weighed by a stored matrix" for name in readers if name not in layers}
    forms, too_wide = _forms({layer.key: layer for layer in reversed(layers.values())}, constants, readers, most_bytes)
    skipped |= {layer.name: "its input is too wide" for layer in layers.values() if layer.key in too_wide}
    watched = [one for one in {one.key: one for one in layers.values()}.values() if one.key in forms]
    sums, pictures = _sums(model, chain([first], stream), first, watched, forms, looks, progress)
    moments = {
        layer.key: Moments(
            sums[layer.key][0] / sums[layer.key][1], sums[layer.key][1], forms[layer.key].width, forms[layer.key].fold
        )
        for layer in watched
    }
    return Statistics(layers, moments, constants, pictures, skipped)


@dataclass(frozen=True, slots=True)
class _Form:
    """How the columns of an input are laid out."""

    channels: int
    """Input channels of the layer."""
    taps: int
    fold: int
    """See `Moments`."""
    regular: int
    """Neighbouring input channels that are one channel of a group; 0: not regular."""

    @property
    def width(self) -> int:
        return 1 if self.fold else self.taps

    @property
    def columns(self) -> int:
        return self.channels // self.fold if self.fold else self.channels * self.taps

    @property
    def size_bytes(self) -> int:
        return 8 * (self.columns + 1) ** 2

    def by_channel(self) -> _Form:
        return replace(self, fold=self.regular)


def _forms(
    layers: Mapping[str, Layer],
    constants: Mapping[str, NDArray[Any]],
    readers: Mapping[str, ChannelUse],
    most_bytes: int,
) -> tuple[dict[str, _Form], set[str]]:
    """Return the form of each input, by key, and the keys that no form makes small enough.

    The widest are taken by channel, then left out, until all fit.
    """
    forms = {key: _form(layer, constants, readers[layer.name]) for key, layer in layers.items()}
    for narrower in (True, False):
        for key in sorted(forms, key=lambda key: (-forms[key].size_bytes, key)):
            if sum(form.size_bytes for form in forms.values()) <= most_bytes:
                return forms, layers.keys() - forms.keys()
            if narrower:
                forms[key] = forms[key].by_channel()
            else:
                del forms[key]
    return forms, layers.keys() - forms.keys()


def _form(layer: Layer, constants: Mapping[str, NDArray[Any]], use: ChannelUse) -> _Form:
    _, _, channels, taps = layer.matrix(constants[layer.weight]).shape
    units = int(use.channels.max()) + 1
    regular = channels // units if channels % units == 0 else 0
    if regular and not np.array_equal(use.channels, np.repeat(np.arange(units), regular)):
        regular = 1 if taps > 1 else 0
    return _Form(channels, taps, 0, regular)


def _sums(
    model: Model,
    batches: Iterable[Tensors],
    first: Tensors,
    layers: Sequence[Layer],
    forms: Mapping[str, _Form],
    looks: Looks,
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, tuple[NDArray[np.float64], int]], int]:
    """Return sums of x x^T and the number of rows, by key, and the number of pictures."""
    shapes = shapes_of(model, [other.name for other in layers], first)
    sums: dict[str, tuple[NDArray[np.float64], int]] = {}
    pictures = 0
    for picture, values in watch(model, batches, {other.source for other in layers}):
        for layer in layers:
            if layer.source in values:
                at = looks.at(layer, shapes[layer.name], picture)
                rows = _rows(layer, values[layer.source], shapes[layer.name], picture, at, forms[layer.key])
                total, count = sums.get(layer.key, (0.0, 0))
                sums[layer.key] = total + rows.T @ rows, count + len(rows)
        if progress and picture >= pictures:
            progress(picture + 1)
        pictures = max(pictures, picture + 1)
    return sums, pictures


def _rows(
    layer: Layer, value: NDArray[Any], shape: tuple[int, ...], picture: int, at: NDArray[Any], form: _Form
) -> NDArray[np.float64]:
    """Return sampled rows, each with a 1 at its end."""
    rows = layer.rows(value, shape, at)[0]
    if form.fold:
        rows = rows.reshape(len(rows), rows.shape[1] // form.fold, -1).swapaxes(1, 2)
        rows = rows.reshape(-1, rows.shape[2])
    rows = rows.reshape(len(rows), -1)
    if not np.isfinite(rows).all():
        raise UnsupportedError(
            f"{layer.source!r} is NaN or infinite for calibration picture {picture + 1}",
            remedy="leave this picture out, or mend what makes it",
        )
    return np.concatenate([rows, np.ones((len(rows), 1), rows.dtype)], axis=1).astype(np.float64)


def watch(model: Model, batches: Iterable[Tensors], names: Iterable[str]) -> Iterator[tuple[int, Tensors]]:
    """Run a model over pictures and yield activations: (number of the picture, some of the tensors by name).

    Each tensor comes once for each picture; those of one picture may come in several parts.

    Args:
        model: Of float.
        batches: Model inputs, one picture each.
        names: Of activations; inputs of the model may be among them.
    """
    inputs = {spec.name for spec in model.inputs}
    wanted = sorted(set(names) - inputs)
    given = sorted(set(names) & inputs)
    stream, start = iter(batches), 0
    parts: list[list[str]] = []
    whole: Session | None = None
    try:
        while chunk := list(islice(stream, _CHUNK)):
            if not start:
                sizes = {name: 4 * math.prod(shape) for name, shape in shapes_of(model, wanted, chunk[0]).items()}
                parts = groups_of(sizes, _FETCHED_BYTES)
                whole = _open(model, parts[0]) if len(parts) == 1 else None
            for number, part in enumerate(parts or [[]]):
                session = whole or (_open(model, part) if part else None)
                for i, arrays in enumerate(chunk):
                    require_time()
                    result = {name: arrays[name] for name in given} if number == 0 else {}
                    if session is not None:
                        result |= session.run(arrays)
                    yield start + i, result
                if session is not None and session is not whole:
                    session.close()
            start += len(chunk)
    finally:
        if whole is not None:
            whole.close()


def _open(model: Model, names: Sequence[str]) -> Session:
    return EXECUTOR.open(with_outputs(model, names), SessionOptions(threads=1))
