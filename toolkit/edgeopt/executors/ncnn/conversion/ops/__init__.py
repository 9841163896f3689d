"""ONNX ops in ncnn's layers: one family of ops a file, which ends in `OPS`.

A function takes the conversion and a node, adds layers, and says which blob carries each output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.graph.graph import Node
from edgeopt.system.declared import registry

Convert: TypeAlias = Callable[[Conversion, Node], None]


@cache
def known_ops() -> dict[str, Convert]:
    """Return what writes each op, by its name; those of another domain than ONNX's as `domain.name`."""
    return registry.joined(sys.modules[__name__], "OPS")
