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


def moves_pixels(node: Node) -> bool:
    """Whether a Resize hands on values of its input and makes none: nearest pixels, without a value for the outside."""
    place = attribute(node, "coordinate_transformation_mode", "half_pixel")
    return attribute(node, "mode", "nearest") == "nearest" and place != "tf_crop_and_resize"


def resize_factors(graph: Graph, node: Node) -> tuple[float, ...] | None:
    """Return by what a Resize of known shapes multiplies each dimension: pixels are found with these very numbers.

    They are not the sizes behind it over those before it where the product was cut down. None where they are computed,
    or belong to some of the axes, or come out of a policy.
    """
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    named = attribute(node, "axes", None) is not None
    if before is None or after is None or named or attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    _, _, scales, sizes = (*node.inputs, None, None, None)[:4]
    if sizes is not None:
        return tuple(large / small for small, large in zip(before, after, strict=True))
    numbers = graph.constant(scales)
    return tuple(map(float, numbers)) if numbers is not None and len(numbers) == len(before) else None


def repeats_of(node: Node, factors: tuple[float, ...]) -> tuple[int, int] | None:
    """Return how often a nearest Resize of a picture repeats each row and column, or None if it does something else."""
    place = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if (place, rounding) not in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        return None
    down, across = factors[2:]
    return (int(down), int(across)) if down.is_integer() and across.is_integer() else None
