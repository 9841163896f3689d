"""ONNX ops in LiteRT's operators: one family of ops a file, which ends in `OPS`.

A function takes the conversion and a step, adds operators, and says which tensor carries each output. `ON_INTEGERS` of
a file names the ops whose operator takes int8, and on which grids it computes what the pairs around the node say;
`OTHER_TYPES` the types that an op may read and make, where these are more than float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep
from edgeopt.executors.litert.conversion.grids import Fits
from edgeopt.system.declared import registry

FLOATS = frozenset({"float32"})
Convert: TypeAlias = Callable[[TfliteConversion, TfliteStep], None]


@cache
def known_ops() -> dict[str, Convert]:
    """Return what writes each op, by its name; those of another domain than ONNX's as `domain.name`."""
    return registry.joined(sys.modules[__name__], "OPS")


@cache
def integer_ops() -> dict[str, Fits]:
    """Return on which grids each op may be computed on integers, by its name."""
    return registry.joined(sys.modules[__name__], "ON_INTEGERS")


@cache
def other_types() -> dict[str, frozenset[str]]:
    """Return the types of the tensors that an op reads and makes, where it takes more than float32."""
    return registry.joined(sys.modules[__name__], "OTHER_TYPES")
