"""ONNX ops in the forms that MNN's converter reads rightly: one family of ops a file, which ends in `OPS`.

A function takes the graph and a node, and rewrites or refuses it. `OTHER_TYPES` of a file names the types that an op
may read and make, where these are more than float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node
from edgeopt.system.declared import registry

FLOATS = frozenset({"float32"})
ANY_TYPE = frozenset({"float32", "int32", "int64", "bool"})
Rewrite: TypeAlias = Callable[[MnnGraph, Node], None]


@cache
def known_ops() -> dict[str, Rewrite]:
    """Return what rewrites each op, by its name; those of another domain than ONNX's as `domain.name`."""
    return registry.joined(sys.modules[__name__], "OPS")


@cache
def other_types() -> dict[str, frozenset[str]]:
    """Return the types of the tensors that an op reads and makes, where it takes more than float32."""
    return registry.joined(sys.modules[__name__], "OTHER_TYPES")


def as_it_is(_graph: MnnGraph, _node: Node) -> None:
    """Leave a node that the converter reads rightly."""
