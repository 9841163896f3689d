"""Read how an op moves over a picture, where a cheaper one may do the same."""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, attribute


def is_pointwise(graph: Graph, node: Node) -> bool:
    """Whether a convolution is one matrix product over all positions of a picture."""
    weight = graph.constant(node.inputs[1])
    plain = attribute(node, "group", 1) == 1 and not any(attribute(node, "pads", (0,)))
    ones = weight is not None and weight.shape[2:] == (1, 1) and set(attribute(node, "strides", (1, 1))) == {1}
    return plain and ones and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")


def centred_window(node: Node) -> int | None:
    """Return the size of a square pooling window that keeps the picture's size, or None.

    Two such maxima in a row are one with a window of k1 + k2 - 1, so a pyramid of windows needs small ones
    only.
    """
    sizes = set(attribute(node, "kernel_shape", (0, 1)))
    plain = set(attribute(node, "strides", (1,))) == {1} and set(attribute(node, "dilations", (1,))) == {1}
    size = sizes.pop()
    centred = size % 2 == 1 and set(attribute(node, "pads", (0,))) == {size // 2}
    return size if not sizes and plain and centred and attribute(node, "auto_pad", "NOTSET") == "NOTSET" else None


def repeats_of(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how often a nearest Resize repeats each row and column, or None if it does something else."""
    place = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if (place, rounding) not in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        return None
    if any(large % small for small, large in zip(before[2:], after[2:], strict=True)):
        return None
    return after[2] // before[2], after[3] // before[3]
