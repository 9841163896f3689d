"""Apple's coremltools, loaded once and without what it prints: it logs about torch and about macOS on its way."""

from __future__ import annotations

import logging
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgeopt.system.declared.optional import NOT_INSTALLED, require
from edgeopt.system.processes.quiet import quiet_thread

_STORE = "libmilstoragepython"
PURPOSE = "writing a Core ML package"
OPENS_ON = "iOS 17, macOS 14 and later"
"""The first systems with ops on 8-bit integers; `target` is their name in coremltools."""


def why_absent() -> str:
    """Return what is missing; empty: nothing is. The package is not imported, which takes seconds."""
    known = find_spec("coremltools")
    if known is None:
        return f"coremltools {NOT_INSTALLED}"
    folders = [Path(folder) for folder in known.submodule_search_locations or ()]
    if not any(any(folder.glob(f"{_STORE}.*")) for folder in folders):
        return "coremltools has no part in C++ for this Python and system, which stores weights"
    return ""


@cache
def coremltools() -> Any:
    """Return the package.

    Raises:
        MissingDependencyError: If it is not installed, or lacks its part in C++ that stores weights.
    """
    with quiet_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its sources, when Python compiles them: strings with unknown escapes
        package = require("coremltools", extra="coreml", purpose=PURPOSE)
        require(f"coremltools.{_STORE}", extra="coreml", purpose=PURPOSE)
        require("coremltools.libmodelpackage", extra="coreml", purpose=PURPOSE)
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    return package


def builder() -> Any:
    """Return the class whose methods are the ops of MIL, Core ML's intermediate language."""
    coremltools()
    return require("coremltools.converters.mil", extra="coreml", purpose=PURPOSE).Builder


def target() -> Any:
    """Return the oldest systems that the files are for."""
    return coremltools().target.iOS17
