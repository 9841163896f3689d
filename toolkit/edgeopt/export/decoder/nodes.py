"""Nodes and weights of a decoder's graph in the making, and the parts that several kinds of decoders have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgeopt.export.decoder.packed import PackedMatrix, keeps_halves, packed_of, side_by_side
from edgeopt.export.decoder.packed_nodes import PackedNodes
from edgeopt.export.decoder.tensors_file import NamedTensors

MICROSOFT = "com.microsoft"


class NodeWriter:
    """Nodes and constants as they come; each kind of decoder adds its own."""

    def __init__(self, weights: NamedTensors) -> None:
        """Begin without a node.

        Args:
            weights: Read as they are needed.
        """
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[TensorProto] = []
        self._packed = PackedNodes(self._constant, self._node)

    def _constant(self, name: str, array: NDArray[Any] | TensorProto) -> str:
        self._constants.append(array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name))
        return name

    def _node(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self._outputs(op, inputs, [output], domain, **attributes)
        return output

    def _outputs(self, op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str, **attributes: Any) -> None:
        node = helper.make_node(op, inputs, outputs, name=f"{outputs[0]}/{op}", domain=domain, **attributes)
        self._nodes.append(node)

    def _product(self, x: str, theirs: Sequence[str], sides: Sequence[int], inputs: int, mine: str) -> str:
        """Return x times the matrices side by side, and their biases where there are any."""
        packed = side_by_side(self._stored(theirs, sides, inputs))
        if packed is not None:
            made = self._packed.product(x, packed, mine)
        else:
            shapes = zip(theirs, sides, strict=True)
            parts = [self._weights.read(f"{name}.weight", (side, inputs)) for name, side in shapes]
            if keeps_halves(self._weights):
                made = self._packed.product_of_halves(x, np.concatenate(parts), f"{mine}.half", mine)
            else:
                weight = self._constant(f"{mine}.weight", np.ascontiguousarray(np.concatenate(parts).T))
                made = self._node("MatMul", [x, weight], mine)
        if f"{theirs[0]}.bias" not in self._weights:
            return made
        biases = [self._weights.read(f"{name}.bias", (side,)) for name, side in zip(theirs, sides, strict=True)]
        return self._node("Add", [made, self._constant(f"{mine}.bias", np.concatenate(biases))], f"{mine}.biased")

    def _stored(self, theirs: Sequence[str], sides: Sequence[int], inputs: int) -> list[PackedMatrix | None]:
        shapes = zip(theirs, sides, strict=True)
        return [packed_of(self._weights, f"{name}.weight", (side, inputs)) for name, side in shapes]

    def _gated(self, x: str, theirs: str, sides: tuple[int, int], mine: str, names: Sequence[str] = ()) -> str:
        """Return down(silu(gate(x)) * up(x)).

        Args:
            x: (batch, sequence, hidden).
            theirs: What the names of the three matrices begin with.
            sides: Numbers of a token, and neurons.
            mine: What the names of the nodes begin with.
            names: Of gate, up and down; empty: as Llama has them.
        """
        gate_name, up_name, down_name = names or ("gate_proj", "up_proj", "down_proj")
        hidden, inner = sides
        gate = self._product(x, [f"{theirs}.{gate_name}"], [inner], hidden, f"{mine}.gate")
        up = self._product(x, [f"{theirs}.{up_name}"], [inner], hidden, f"{mine}.up")
        opened = self._node("Sigmoid", [gate], f"{mine}.sigmoid")
        passed = self._node("Mul", [gate, opened], f"{mine}.silu")
        neurons = self._node("Mul", [passed, up], f"{mine}.inner")
        return self._product(neurons, [f"{theirs}.{down_name}"], [hidden], inner, f"{mine}.down")
