"""ONNX ops in torch: one family of ops a file, which ends in `OPS`.

A function takes the node and its input tensors, None where one is left out, and returns a tensor or a tuple of them.
Shapes, axes and other integers lie on the CPU, wherever the data lie.
"""

from __future__ import annotations

import sys
from functools import cache

from edgeopt.executors._torch.ops._node import Compute
from edgeopt.system.declared import registry


@cache
def known_ops() -> dict[str, Compute]:
    """Return what computes each op, by its name; those of another domain than ONNX's as `domain.name`."""
    return registry.joined(sys.modules[__name__], "OPS")
