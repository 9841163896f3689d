"""Which head of a detector is written as ONNX ops for a recipe's decoder.

Rows of poses and masks are rows of detectors with more numbers behind; `steps/_beside_boxes.py` reads these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgeopt.graph.nodes import Nodes
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import end_to_end, head_of, yolov8
from edgeopt.recipes.heads._rows import Found, Rows, fixed
from edgeopt.recipes.output_shapes import split_prototypes
from edgeopt.recipes.recipe import Recipe

EMBEDDED = {
    "yolov8_pose": yolov8.write,
    "end_to_end_pose": end_to_end.write,
    "yolov8_segment": yolov8.write,
    "end_to_end_segment": end_to_end.write,
}
"""Decoders of poses and masks whose rows begin as a detector's."""


def writer_of(decoder: str) -> Callable[[Rows, Sequence[TensorSpec]], Found] | None:
    """Return what writes a decoder; None where nothing does."""
    head = head_of(decoder)
    return head.write if head else EMBEDDED.get(decoder)


def decode(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> Found:
    """Write the recipe's decoder, which `writer_of` knows, for the model's outputs, in its order.

    Raises:
        UnsupportedError: If an output's size that it needs is free.
    """
    numbers, head = recipe.postprocess, head_of(recipe.postprocess.decoder)
    write = writer_of(numbers.decoder)
    assert write is not None
    ordered = head.order(outputs) if head else outputs
    plain, more = [replace(output, name=nodes.cast(output.name, "float32")) for output in ordered], 0
    if recipe.task == "keypoints":
        more = recipe.keypoints.numbers
    elif pair := split_prototypes(plain) if recipe.task == "instances" else None:
        plain, more = [pair[0]], fixed(pair[1], 1)
    return write(
        Rows(nodes, numbers, (recipe.input.size[0], recipe.input.size[1]), numbers.score_threshold, more), plain
    )
