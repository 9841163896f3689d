"""Apple's coremltools, loaded once and without what it prints: it logs about torch and about macOS on its way."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from edgeopt.system.declared.optional import require
from edgeopt.system.processes.quiet import quiet_thread

PURPOSE = "writing a Core ML package"


@cache
def coremltools() -> Any:
    """Return the package.

    Raises:
        MissingDependencyError: If it is not installed, or lacks its part in C++ that stores weights.
    """
    with quiet_thread():
        package = require("coremltools", extra="coreml", purpose=PURPOSE)
        require("coremltools.libmilstoragepython", extra="coreml", purpose=PURPOSE)
        require("coremltools.libmodelpackage", extra="coreml", purpose=PURPOSE)
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    return package


def builder() -> Any:
    """Return the class whose methods are the ops of MIL, Core ML's intermediate language."""
    coremltools()
    return require("coremltools.converters.mil", extra="coreml", purpose=PURPOSE).Builder


def target() -> Any:
    """Return the oldest system that the files are for: iOS 17 and macOS 14, the first with ops on 8-bit integers."""
    return coremltools().target.iOS17
