"""Parts of an answer beside boxes, as ONNX ops: the points of poses and faces, masks of prototypes.

As `tasks/keypoints/decoders.py` and `tasks/instances/decoders.py` compute them.
"""

from __future__ import annotations

from edgeopt.graph.nodes import Nodes, Operand
from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.embedded import FRAME, FRAME_OFFSET, FRAME_SCALE
from edgeopt.recipes.heads._rows import fixed
from edgeopt.recipes.heads._shapes import LANDMARKS
from edgeopt.recipes.recipe import Boxes, Recipe


def points(nodes: Nodes, recipe: Recipe, rows: str, *, in_frame: bool) -> str:
    """Write the points of poses, (n, points, 3), or of faces, (n, points, 2), in pixels of the input or of the frame.

    Args:
        nodes: Written to.
        recipe: Bound to the model.
        rows: (n, numbers); of faces x and y in pixels of the input.
        in_frame: Whether the model is fed frames.
    """
    is_pose = recipe.task == "keypoints"
    count, values = (recipe.keypoints.points, recipe.keypoints.values or 3) if is_pose else (LANDMARKS // 2, 2)
    shaped = nodes("Reshape", rows, ints(-1, count, values))
    places = nodes("Slice", shaped, ints(0), ints(2), ints(2))
    if is_pose and recipe.postprocess.boxes is Boxes.RELATIVE:
        places = nodes("Mul", places, floats(recipe.input.size[1], recipe.input.size[0]))
    if in_frame:
        places = to_frame(nodes, places)
    if not is_pose:
        return places
    if values == 2:
        return nodes("Pad", places, ints(0, 0, 0, 0, 0, 1), floats(1.0).reshape(()))
    return nodes("Concat", places, nodes("Slice", shaped, ints(2), ints(3), ints(2)), axis=2)


def to_frame(nodes: Nodes, places: str) -> str:
    """Lead points of the input, (..., 2), into the frame, also outside it."""
    return nodes("Div", nodes("Sub", places, FRAME_OFFSET), FRAME_SCALE)


def masks(
    nodes: Nodes, recipe: Recipe, coefficients: str, boxes: str, prototypes: TensorSpec, *, in_frame: bool
) -> str:
    """Write the masks, (n, height, width) bool, of the frame or of the input: above 0 inside their box.

    Args:
        nodes: Written to.
        recipe: Bound to the model.
        coefficients: (n, planes)
        boxes: (n, 4), in pixels of what the masks are of.
        prototypes: (1, planes, h, w), over the whole input.
        in_frame: Whether the model is fed frames.

    Raises:
        UnsupportedError: If a size of the prototypes is free.
    """
    count, high, wide = (fixed(prototypes, i) for i in (1, 2, 3))
    flat = nodes("Reshape", nodes.cast(prototypes.name, "float32"), ints(count, high * wide))
    plane = nodes("Reshape", nodes("MatMul", coefficients, flat), ints(-1, high, wide))
    none = nodes("ReduceSum", nodes("Sub", coefficients, coefficients), ints(1), keepdims=1)
    inside = nodes("Unsqueeze", nodes("Equal", none, floats(0.0)), ints(2))  # no mask of NaN or infinity
    for axis, cells in ((1, high), (2, wide)):
        side = recipe.input.size[axis - 1]
        length: Operand = nodes("Gather", nodes("Shape", FRAME), ints(axis - 1)) if in_frame else ints(side)
        steps = nodes("Range", ints(0).reshape(()), nodes("Squeeze", length, ints(0)), ints(1).reshape(()))
        pixels = nodes.cast(steps, "float32")
        middle = nodes("Add", pixels, floats(0.5))
        if in_frame:  # height is y, the second of both
            scale, offset = (nodes("Gather", name, ints(2 - axis)) for name in (FRAME_SCALE, FRAME_OFFSET))
            middle = nodes("Add", nodes("Mul", middle, scale), offset)
        plane = _between(nodes, plane, middle, cells, side, axis)
        inside = nodes("And", inside, _covered(nodes, pixels, boxes, axis))
    return nodes("And", nodes("Greater", plane, floats(0.0).reshape(())), inside)


def _between(nodes: Nodes, plane: str, middle: str, cells: int, side: int, axis: int) -> str:
    """Read planes between their cells, linearly, along an axis; see `tasks/instances/masks.py`, `sampled`."""
    place = nodes("Sub", nodes("Mul", middle, floats(cells / side)), floats(0.5))
    place = nodes("Min", nodes("Max", place, floats(0.0)), floats(cells - 1))
    low = nodes("Floor", place)
    part = nodes("Sub", place, low)
    first = nodes.cast(low, "int64")
    second = nodes("Min", nodes("Add", first, ints(1)), ints(cells - 1))
    if axis == 1:
        part = nodes("Unsqueeze", part, ints(1))
    near = nodes("Mul", nodes("Gather", plane, first, axis=axis), nodes("Sub", floats(1.0), part))
    return nodes("Add", near, nodes("Mul", nodes("Gather", plane, second, axis=axis), part))


def _covered(nodes: Nodes, pixels: str, boxes: str, axis: int) -> str:
    """Tell the pixels along an axis that boxes cover: the first edge in, the second out; see `Canvas.covered`."""
    first, second = (nodes("Ceil", nodes.columns(boxes, i, i + 1)) for i in (2 - axis, 4 - axis))
    inside = nodes("And", nodes("Not", nodes("Less", pixels, first)), nodes("Less", pixels, second))
    return nodes("Unsqueeze", inside, ints(3 - axis))
