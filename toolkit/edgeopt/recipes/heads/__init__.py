"""The heads of detectors, one file each; the file name is what a recipe writes under `decoder`.

Each ends in `HEAD`: the shapes it reads, how outputs become boxes in NumPy and in ONNX ops, what a student learns of
them, and what of the model tells it from others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

from edgeopt.errors import NotFoundError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes import heads
from edgeopt.recipes.heads._candidates import Array, Candidates, Size
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows
from edgeopt.recipes.heads._shapes import Shape
from edgeopt.recipes.heads._values import Usual
from edgeopt.recipes.outputs.learned import LearnedHead
from edgeopt.recipes.recipe import Postprocess
from edgeopt.system.declared import registry

Outputs = Sequence[TensorSpec]
"""Outputs of the model, in its order."""
Decode = Callable[[Sequence[Array], Postprocess, Size, float], Candidates]
"""(outputs, numbers, (height, width) of the input, score threshold) -> candidates above the threshold"""


class Exported(StrEnum):
    """How Ultralytics' metadata speaks of a head of its task `detect`."""

    PLAIN = "plain"
    SUPPRESSED = "suppressed"
    """End to end, or with `nms`."""
    QUERIES = "queries"
    """RT-DETR of versions that name no head."""
    CHOSEN_QUERIES = "chosen queries"


@dataclass(frozen=True, slots=True)
class Head:
    """How the raw outputs of one kind of detector are read."""

    why_unfit: Callable[[Sequence[Shape], Postprocess, Sequence[int]], str]
    """(shapes, numbers, (height, width) of the input, empty where free) -> the shapes it reads; empty: it has them"""
    decode: Decode
    """Filters by score first, so that a frame costs what its candidates cost. Values that overflow stay infinite."""
    write: Callable[[HeadRows, Outputs], FoundBoxes] | None = None
    """`decode` as ONNX ops; None: standard ONNX cannot say it."""
    learned: Callable[[Postprocess, Outputs, Size], tuple[LearnedHead, ...]] | None = None
    """Returns the numbers that a student learns; empty: the shapes do not say. None: the order of rows has no meaning,
    and all numbers count alike."""
    count_classes: Callable[[Sequence[Shape]], int | None] = lambda shapes: None
    """None: the shapes do not say."""
    points: Callable[[Sequence[Array], Postprocess, Size, float], Array | None] | None = None
    """As `decode`: (n, points, 2) of the same boxes; None where no output holds them."""
    usual: Usual | None = None
    """Units that its exporter writes, where values may show that another exporter wrote others; None: values show
    nothing."""
    is_suppressed: bool = False
    """Whether nothing is left to suppress."""
    has_whole_numbers: bool = False
    """Whether its classes may be whole numbers."""
    numbers_classes: bool = False
    """Whether the graph numbers the classes itself, from 0 or from 1."""
    rounds_up: bool = False
    """Whether a last row and column of a grid need not be whole: an input of any size fits."""
    are_queries: bool = False
    """Whether a transformer gives the boxes: a thousand at most."""
    needs_match: bool = False
    """Whether its shapes are often something else's: only a recipe's `match` tells it."""
    exported: Exported | None = None
    """None: Ultralytics does not export it."""
    read: Callable[[Outputs], Outputs] = lambda outputs: outputs
    """The outputs that are read."""
    order: Callable[[Outputs], Outputs] = lambda outputs: outputs
    """The outputs in the order in which they are decoded."""
    complete: Callable[[Postprocess, Outputs], Postprocess] = lambda numbers, outputs: numbers
    """Fills in what the outputs tell and the recipe leaves open."""
    scored: Callable[[Outputs], TensorSpec] | None = None
    """The output that ends in a sum where its scores are logits; None: that does not decide."""
    why_unlikely: Callable[[Postprocess, TensorSpec, Sequence[NDArray[Any]]], str] = lambda numbers, output, answers: ""
    """(numbers, output, what a few pictures gave there) -> why an output of its shape holds something else"""


def first(outputs: Outputs) -> Outputs:
    """Return the first output, of heads that read it alone."""
    return outputs[:1]


def head_of(decoder: str) -> Head | None:
    """Return the head that a recipe names; None where its decoder is not a detector's."""
    return find_head(decoder) if decoder in registry.names(heads) else None


def find_head(decoder: str) -> Head:
    """Return the head of this name.

    Raises:
        NotFoundError: If there is none.
    """
    known = registry.names(heads)
    if decoder not in known:
        raise NotFoundError("decoder of task detection", decoder, known)
    head: Head = registry.load(heads, decoder).HEAD
    return head
