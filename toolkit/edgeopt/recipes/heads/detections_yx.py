"""The outputs of `detections` with boxes of top, left, bottom, right, 0..1 unless the recipe says otherwise.

Source: TensorFlow Object Detection API, `exporter.add_output_tensor_nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import detections
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, usually_relative
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows
from edgeopt.recipes.recipe import Postprocess

_ORDER = (1, 0, 3, 2)


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    return detections.decode(outputs, usually_relative(numbers), size, threshold, _ORDER)


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    return detections.write(rows.usually_relative(), outputs, _ORDER)


HEAD = replace(detections.HEAD, decode=_decode, write=_write)
