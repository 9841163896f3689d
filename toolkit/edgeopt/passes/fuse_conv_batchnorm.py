"""Fold BatchNormalization into the Conv or ConvTranspose before it.

With s = gamma / sqrt(var + epsilon):   W' = W * s   and   b' = (b - mean) * s + beta.
Source: ONNX BatchNormalization-15, inference mode.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.channels import out_channels, scale_outputs
from edgeopt.graph.graph import Array, Graph, Node, attribute
from edgeopt.passes import Pass, Phase


def fuse_conv_batchnorm(graph: Graph) -> int:
    """Return how many BatchNormalization nodes disappeared into a convolution."""
    fused = 0
    for norm in graph.nodes("BatchNormalization"):
        conv = graph.sole_producer(norm.inputs[0], "Conv") or graph.sole_producer(norm.inputs[0], "ConvTranspose")
        if conv is None or not _is_inference(norm):
            continue
        folded = _fold(graph, conv, norm)
        if folded is None or not graph.bypass(norm, keep=conv):
            continue
        graph.set_input(conv, 1, folded[0])
        graph.set_input(conv, 2, folded[1])
        fused += 1
    return fused


def _is_inference(norm: Node) -> bool:
    others_used = any(value.uses() or value.is_graph_output() for value in norm.outputs[1:])
    return not others_used and not attribute(norm, "training_mode", 0) and attribute(norm, "spatial", 1) == 1


def _fold(graph: Graph, conv: Node, norm: Node) -> tuple[Array, Array] | None:
    constants = graph.constants([*(value for value in conv.inputs[1:] if value is not None), *norm.inputs[1:]])
    if constants is None:
        return None
    weight, *bias, gamma, beta, mean, var = constants
    groups, transposed = attribute(conv, "group", 1), conv.op_type == "ConvTranspose"
    if gamma.shape != (out_channels(weight, groups, transposed=transposed),):
        return None
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(var.astype(np.float64) + attribute(norm, "epsilon", 1e-5))
    shift = ((bias[0] if bias else 0) - mean.astype(np.float64)) * scale + beta
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    scaled = scale_outputs(weight, scale, groups, transposed=transposed)
    return scaled.astype(weight.dtype), shift.astype(weight.dtype)


PASS = Pass(fuse_conv_batchnorm, Phase.FUSE)
