"""A detector's graph changed so that it must be fed and read in another way, as other trainers and exporters do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeopt.model import Model

STRIDES = (8, 16, 32)


def each_channel(value: object) -> np.ndarray:
    return np.broadcast_to(np.asarray(value, np.float64), 3).reshape(1, 3, 1, 1)


class Surgery:
    """A model's graph, changed at its input and its outputs."""

    def __init__(self, model: Model) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(model.proto)
        self.proto.ir_version = max(self.proto.ir_version, 8)  # initializers need not be inputs
        self.graph, self._count = self.proto.graph, 0
        constants = {one.name for one in self.graph.initializer}
        kept = [one for one in self.graph.input if one.name not in constants]
        del self.graph.input[:]
        self.graph.input.extend(kept)

    def constant(self, value: object, dtype: object = np.float32) -> str:
        name = self.name()
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def name(self) -> str:
        self._count += 1
        return f"surgery_{self._count}"

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        made = self.name()
        self.graph.node.append(helper.make_node(op, list(inputs), [made], **attributes))
        return made

    def feed(self, *, swap: bool = False, before=(1.0, 0.0, 1.0), after=(1.0, 0.0, 1.0)) -> Surgery:
        """Take (value * scale - mean) / std of `after` where the model takes that of `before`; channels as told."""
        own, ends = self.graph.input[0], len(self.graph.node)
        scale, mean, std = (np.broadcast_to(np.asarray(one, np.float64), 3).reshape(1, 3, 1, 1) for one in after)
        old_scale, old_mean, old_std = (
            np.broadcast_to(np.asarray(one, np.float64), 3).reshape(1, 3, 1, 1) for one in before
        )
        gain, bias = std / scale * old_scale / old_std, (mean / scale * old_scale - old_mean) / old_std
        fed = self.node("Add", self.node("Mul", "picture", self.constant(gain)), self.constant(bias))
        if swap:
            fed = self.node("Gather", fed, self.constant([2, 1, 0], np.int64), axis=1)
        first = list(self.graph.node)[ends:]
        for node in self.graph.node[:ends]:
            node.input[:] = [fed if name == own.name else name for name in node.input]
        rest = list(self.graph.node)[:ends]
        del self.graph.node[:]
        self.graph.node.extend([*first, *rest])
        own.name = "picture"
        return self

    def outputs(self, **shapes: tuple[str, Sequence[int]]) -> Model:
        """Return the model with these outputs: name=(value, shape)."""
        del self.graph.output[:]
        for name, (value, shape) in shapes.items():
            self.graph.node.append(helper.make_node("Identity", [value], [name]))
            self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        onnx.checker.check_model(self.proto)
        return Model(self.proto, "other")

    def done(self) -> Model:
        onnx.checker.check_model(self.proto)
        return Model(self.proto, "other")

    # parts of a YOLOX output: (1, n, 5 + classes)

    def part(self, start: int, end: int) -> str:
        return self.node("Slice", self.raw, *(self.constant([one], np.int64) for one in (start, end, 2)))

    @property
    def raw(self) -> str:
        return self.graph.output[0].name

    def grid(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return (1, n, 2) columns and rows of all cells, and (1, n, 1) strides."""
        cells, steps = [], []
        for stride in STRIDES:
            x, y = np.meshgrid(np.arange(size[1] // stride), np.arange(size[0] // stride))
            cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
            steps.append(np.full((x.size, 1), stride))
        return np.concatenate(cells)[None].astype(np.float32), np.concatenate(steps)[None].astype(np.float32)

    def boxes(self, size: tuple[int, int], kind: str) -> str:
        """Return centre and size as `cells`, `pixels` or `relative`; corners as `corners` or `relative corners`."""
        if kind == "cells":
            return self.part(0, 4)
        cells, strides = self.grid(size)
        cell, stride = self.constant(cells), self.constant(strides)
        centre = self.node("Mul", self.node("Add", self.part(0, 2), cell), stride)
        extent = self.node("Mul", self.node("Exp", self.part(2, 4)), stride)
        if "corners" in kind:
            half = self.node("Mul", extent, self.constant(0.5))
            centre, extent = self.node("Sub", centre, half), self.node("Add", centre, half)
        found = self.node("Concat", centre, extent, axis=2)
        if "relative" in kind:
            return self.node("Div", found, self.constant([size[1], size[0]] * 2))
        return found

    def scores(self, classes: int, *, joined: bool, logits: bool) -> str:
        """Return objectness and classes, (1, n, 1 + classes); joined: their product, (1, n, classes)."""
        found = self.part(4, 5 + classes)
        if joined:
            found = self.node("Mul", self.part(4, 5), self.part(5, 5 + classes))
        return self.logits(found) if logits else found

    def logits(self, probabilities: str) -> str:
        kept = self.node("Clip", probabilities, self.constant(1e-6), self.constant(1 - 1e-6))
        return self.node("Log", self.node("Div", kept, self.node("Sub", self.constant(1.0), kept)))
