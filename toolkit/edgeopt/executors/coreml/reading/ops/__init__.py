"""MIL's ops in ONNX: one family of ops a file, which ends in `OPS`; each as Apple documents it.

Source: https://apple.github.io/coremltools/source/coremltools.converters.mil.mil.ops.defs.html
"""

from __future__ import annotations

import sys
from functools import cache

from edgeopt.executors.coreml.reading.reading import Read
from edgeopt.system.declared import registry


@cache
def known_ops() -> dict[str, Read]:
    """Return what reads each op, by its name in MIL."""
    return registry.joined(sys.modules[__name__], "OPS")
