"""Means, sums, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.executors._conversion.reduced_axes import reduced_axes
from edgeopt.executors.litert.conversion.conversion import Order, TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.grids import any_grids, one_grid
from edgeopt.executors.litert.conversion.network import type_name


def _axes(conversion: TfliteConversion, step: TfliteStep) -> tuple[int, ...]:
    axes = reduced_axes(conversion.graph, step.node, len(conversion.shape(step.inputs[0])))
    if axes is None:
        raise conversion.refuse(step.node, "over no axis, or over axes that are computed")
    return axes


def _order_after(order: Order, axes: tuple[int, ...], *, keeps: bool) -> Order:
    """Return the order of a result whose axes are gone, or of size 1."""
    if keeps:
        return order
    left = [axis for axis in order if axis not in axes]
    return tuple(sorted(left).index(axis) for axis in left)


def _reduced(code: str, *, squares: bool = False, root: bool = False) -> Callable[[TfliteConversion, TfliteStep], None]:
    def convert(conversion: TfliteConversion, step: TfliteStep) -> None:
        order, axes = conversion.order(step.inputs[0]), _axes(conversion, step)
        keeps = bool(step.attribute("keepdims", 1))
        place = conversion.tensor(step.inputs[0], order)
        if squares:
            place = conversion.apply("MUL", [place, place], conversion.shown(place))
        made = conversion.new(step.outputs[0], _order_after(order, axes, keeps=keeps))
        stored = sorted(order.index(axis) for axis in axes)
        conversion.network.add(code, [place, conversion.integers(stored)], [made], keepDims=keeps)
        if root:
            after = _order_after(order, axes, keeps=keeps)
            conversion.set(step.outputs[0], conversion.apply("SQRT", [made], conversion.shown(made)), after)

    return convert


def _place_of_extreme(code: str) -> Callable[[TfliteConversion, TfliteStep], None]:
    def convert(conversion: TfliteConversion, step: TfliteStep) -> None:
        if step.attribute("select_last_index", 0):
            raise conversion.refuse(step.node, "of the last of equals")
        rank = len(conversion.shape(step.inputs[0]))
        axis = step.attribute("axis", 0) % rank
        plain = tuple(range(rank))
        place = conversion.tensor(step.inputs[0], plain)
        small = [size for i, size in enumerate(conversion.shown(place)) if i != axis]
        made = conversion.network.tensor(f"{step.outputs[0].name}_place", small, "int64")
        number = conversion.integers([axis])
        conversion.network.add(code, [place, number], [made], outputType=type_name("int64"))
        shape = conversion.shape(step.outputs[0])
        conversion.set(step.outputs[0], conversion.reshaped(made, shape), tuple(range(len(shape))))

    return convert


OPS = {
    "ReduceMean": _reduced("MEAN"),
    "ReduceSum": _reduced("SUM"),
    "ReduceMax": _reduced("REDUCE_MAX"),
    "ReduceMin": _reduced("REDUCE_MIN"),
    "ReduceProd": _reduced("REDUCE_PROD"),
    "ReduceSumSquare": _reduced("SUM", squares=True),
    "ReduceL2": _reduced("SUM", squares=True, root=True),
    "ArgMax": _place_of_extreme("ARG_MAX"),
    "ArgMin": _place_of_extreme("ARG_MIN"),
}
ON_INTEGERS = {"ReduceMean": any_grids, "ReduceMax": one_grid, "ReduceMin": one_grid}
OTHER_TYPES = dict.fromkeys(("ArgMax", "ArgMin"), frozenset({"float32", "int64"}))
