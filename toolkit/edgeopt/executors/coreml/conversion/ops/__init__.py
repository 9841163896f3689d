"""ONNX ops in Core ML's intermediate language MIL: one family of ops a file, which ends in `OPS`.

A function takes the conversion and a node, writes ops, and says which variable carries each output.
"""

from __future__ import annotations

import sys
from functools import cache

from edgeopt.executors.coreml.conversion.conversion import Convert
from edgeopt.system.declared import registry


@cache
def known_ops() -> dict[str, Convert]:
    """Return what writes each op, by its name; those of another domain than ONNX's as `domain.name`."""
    return registry.joined(sys.modules[__name__], "OPS")
