"""Means, sums, extremes and norms along axes."""

from __future__ import annotations

from edgeopt.executors._conversion.reduced_axes import reduced_axes
from edgeopt.executors.coreml.conversion.conversion import Convert, MilConversion
from edgeopt.graph.graph import Node, attribute


def _reduced(name: str) -> Convert:
    def convert(conversion: MilConversion, node: Node) -> None:
        axes = reduced_axes(conversion.graph, node, len(conversion.shape(node.inputs[0])))
        if axes is None:
            raise conversion.refuse(node, "over no axis, or over axes that are computed")
        keeps = bool(attribute(node, "keepdims", 1))
        made = getattr(conversion.mb, name)(x=conversion.var(node.inputs[0]), axes=axes, keep_dims=keeps)
        conversion.set(node.outputs[0], made)

    return convert


def _place_of_extreme(name: str) -> Convert:
    def convert(conversion: MilConversion, node: Node) -> None:
        if attribute(node, "select_last_index", 0):
            raise conversion.refuse(node, "of the last of equals")
        axis, keeps = attribute(node, "axis", 0), bool(attribute(node, "keepdims", 1))
        made = getattr(conversion.mb, name)(x=conversion.var(node.inputs[0]), axis=axis, keep_dims=keeps)
        conversion.set(node.outputs[0], made)

    return convert


OPS = {
    "ReduceMean": _reduced("reduce_mean"),
    "ReduceSum": _reduced("reduce_sum"),
    "ReduceMax": _reduced("reduce_max"),
    "ReduceMin": _reduced("reduce_min"),
    "ReduceProd": _reduced("reduce_prod"),
    "ReduceSumSquare": _reduced("reduce_sum_square"),
    "ReduceL1": _reduced("reduce_l1_norm"),
    "ReduceL2": _reduced("reduce_l2_norm"),
    "ArgMax": _place_of_extreme("reduce_argmax"),
    "ArgMin": _place_of_extreme("reduce_argmin"),
}
