"""Write a norm by the root mean square in the words that ONNX Runtime makes one kernel of.

    x * (1 / Sqrt(Mean(x * x) + epsilon)) * scale   ->   x / Sqrt(Mean(x ^ 2) + epsilon) * scale

with Pow, and with the scale last; ONNX Runtime makes SimplifiedLayerNormalization of that when it opens the model, of
the first form it does not. That op itself is in no operator set, so a file that holds it is no valid ONNX.
Source: SimplifiedLayerNormFusion of ONNX Runtime; Zhang and Sennrich, 2019, arXiv:1910.07467.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, Value
from edgeopt.passes import Pass, Phase
from edgeopt.passes._rms_norm import RmsNorm, residual_sum, rms_norms

_OPSET_OF_AXES_AS_INPUT = 18


def fuse_rms_norm(graph: Graph) -> int:
    """Return how many norms were written in the form that is fused."""
    loose = [
        rms_norm
        for rms_norm in rms_norms(graph)
        if not _is_written(graph, rms_norm) and residual_sum(graph, rms_norm) is None
    ]
    written = sum(_write(graph, rms_norm) for rms_norm in loose)
    if written:
        graph.remove_unused()
    return written


def _is_written(graph: Graph, norm: RmsNorm) -> bool:
    if norm.last.op_type != "Mul":
        return False
    quotient = graph.producer(norm.last.inputs[0], "Div")
    return quotient is not None and quotient.inputs[0] is norm.x


def _write(graph: Graph, norm: RmsNorm) -> bool:
    def node(op: str, *inputs: Value, **attributes: int | list[int]) -> Value:
        return graph.insert(op, inputs, attributes, before=norm.last, name=f"{norm.last.name}_{op}").outputs[0]

    def constant(name: str, value: float) -> Value:
        return graph.add_initializer(f"{norm.last.name}_{name}", np.array(value, np.float32))

    square = node("Pow", norm.x, constant("two", 2.0))
    if graph.opset >= _OPSET_OF_AXES_AS_INPUT:
        mean = node("ReduceMean", square, graph.add_initializer(f"{norm.last.name}_axis", np.array([-1])), keepdims=1)
    else:
        mean = node("ReduceMean", square, axes=[-1], keepdims=1)
    root = node("Sqrt", node("Add", mean, constant("epsilon", norm.epsilon)))
    scale = graph.add_initializer(f"{norm.last.name}_scale", np.asarray(norm.scale, np.float32))
    return graph.replace(norm.last.outputs[0], node("Mul", node("Div", norm.x, root), scale))


PASS = Pass(fuse_rms_norm, Phase.DECODER)
