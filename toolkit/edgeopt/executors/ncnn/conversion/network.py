"""A network of ncnn while it is written: layers, the blobs between them, and its two files.

Source: https://github.com/Tencent/ncnn/blob/master/docs/developer-guide/param-and-model-file-structure.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Parameter = int | float | tuple[float, ...]
_MAGIC = 7767517
_INT8_TAG = 0x000D4B38
_FLOAT_TAG = 0
_ARRAY = -23300
"""An array's key in the text is this less its number."""
_WORD = re.compile(r"[^!-~]+")
"""Characters that a name may not hold: the text is read by `%255s`."""
_LARGEST = 3.4028234e38
"""The largest float32 whose seven digits are not above it."""
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Weight:
    """Numbers of a layer in the order in which its `load_model` reads them."""

    array: NDArray[Any]
    """float32, or int8 where the layer computes on integers."""
    has_tag: bool = True
    """Whether the layer reads their kind first; biases and scales are always float32."""

    def to_bytes(self) -> bytes:
        """Return what the `.bin` file holds."""
        data = np.ascontiguousarray(self.array).tobytes()
        if not self.has_tag:
            return data
        tag = _INT8_TAG if self.array.dtype == np.int8 else _FLOAT_TAG
        return np.uint32(tag).tobytes() + data + bytes(-len(data) % 4)


@dataclass(frozen=True, slots=True)
class NcnnLayer:
    """One line of the `.param` text."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[int, Parameter] = field(default_factory=dict)
    weights: tuple[Weight, ...] = ()

    @property
    def is_integer(self) -> bool:
        """Whether it computes on 8-bit integers."""
        return bool(self.weights) and self.weights[0].array.dtype == np.int8

    def line(self) -> str:
        """Return the line."""
        parameters = [_text_of(number, value) for number, value in sorted(self.parameters.items())]
        words = [self.kind.ljust(24), self.name.ljust(24), f"{len(self.inputs)} {len(self.outputs)}"]
        return " ".join([*words, *self.inputs, *self.outputs, *parameters])


def _text_of(number: int, value: Parameter) -> str:
    if isinstance(value, tuple):
        return f"{_ARRAY - number}={len(value)},{','.join(map(_number, value))}"
    return f"{number}={_number(value)}"


def _number(value: float) -> str:
    """Return a number as ncnn tells floats from integers: by a point or an exponent."""
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    return f"{min(max(float(value), -_LARGEST), _LARGEST):e}"  # ncnn reads no `inf`


class NcnnNetwork:
    """Layers in the order in which they run."""

    def __init__(self) -> None:
        self.layers: list[NcnnLayer] = []
        self._names: Counter[str] = Counter()
        self._blobs = 0

    def blob(self) -> str:
        """Return the name of a new blob."""
        self._blobs += 1
        return f"b{self._blobs}"

    def add(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        parameters: Mapping[int, Parameter] | None = None,
        weights: Iterable[Weight] = (),
        outputs: int = 1,
    ) -> tuple[str, ...]:
        """Add a layer; return its new blobs."""
        blobs = tuple(self.blob() for _ in range(outputs))
        layer = NcnnLayer(kind, self._fresh(name or kind), tuple(inputs), blobs, dict(parameters or {}), tuple(weights))
        self.layers.append(layer)
        return blobs

    def _fresh(self, wanted: str) -> str:
        name = _WORD.sub("_", wanted)[-_LONGEST_NAME:]
        self._names[name] += 1
        count = self._names[name]
        return name if count == 1 else f"{name}__{count}"


def readers_of(layers: Iterable[NcnnLayer]) -> dict[str, list[NcnnLayer]]:
    """Return the layers that read each blob, once for each input."""
    readers: dict[str, list[NcnnLayer]] = {}
    for layer in layers:
        for blob in layer.inputs:
            readers.setdefault(blob, []).append(layer)
    return readers


def without_unread(layers: Sequence[NcnnLayer], outputs: Iterable[str]) -> list[NcnnLayer]:
    """Return the layers on which the outputs depend, and all inputs."""
    wanted = set(outputs)
    kept: list[NcnnLayer] = []
    for layer in reversed(layers):
        if layer.kind == "Input" or wanted & set(layer.outputs):
            wanted |= set(layer.inputs)
            kept.append(layer)
    return kept[::-1]


def with_splits(layers: Sequence[NcnnLayer], outputs: Mapping[str, str]) -> list[NcnnLayer]:
    """Return the layers with a `Split` behind each blob of several readers: in ncnn a blob is read once.

    Args:
        layers: In their order.
        outputs: Blobs that leave the network, and the names under which they do; each is one more reader.
    """
    counts = Counter(blob for layer in layers for blob in layer.inputs)
    counts.update(outputs.values())
    copies: dict[str, list[str]] = {}
    made: list[NcnnLayer] = []
    for layer in layers:
        inputs = tuple(copies[blob].pop() if blob in copies else blob for blob in layer.inputs)
        made.append(replace(layer, inputs=inputs))
        place = len(made) - 1
        for blob in layer.outputs:
            named = [name for name, other in outputs.items() if other == blob]
            if counts[blob] < 2 and not (named and layer.kind == "Input"):
                if named:
                    made[place] = _renamed(made[place], blob, named[0])
                continue
            inner = [f"{blob}_{i}" for i in range(counts[blob] - len(named))]
            made.append(NcnnLayer("Split", f"split_{blob}", (blob,), (*inner, *named)))
            copies[blob] = inner[::-1]
    return made


def _renamed(layer: NcnnLayer, blob: str, name: str) -> NcnnLayer:
    return replace(layer, outputs=tuple(name if other == blob else other for other in layer.outputs))


def text_of(layers: Sequence[NcnnLayer]) -> str:
    """Return the `.param` text."""
    blobs = {blob for layer in layers for blob in (*layer.inputs, *layer.outputs)}
    return "\n".join([str(_MAGIC), f"{len(layers)} {len(blobs)}", *(layer.line() for layer in layers), ""])


def weights_of(layers: Iterable[NcnnLayer]) -> bytes:
    """Return the contents of the `.bin` file."""
    return b"".join(weight.to_bytes() for layer in layers for weight in layer.weights)
