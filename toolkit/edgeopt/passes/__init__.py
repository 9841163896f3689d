"""Graph rewrites, one file each; the file name is the pass's name, and each file ends in `PASS`.

A pass changes the graph in place, returns how often it did, finds nothing when it runs again, and leaves
every output numerically equal, those of the phase `float` apart. The steps decide whether it runs, and check what it
made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from edgeopt.graph.graph import Graph
from edgeopt.system.declared import registry


class Phase(StrEnum):
    """The step that a pass belongs to."""

    SIMPLIFY = "simplify"
    """Takes out what computes nothing."""
    FUSE = "fuse"
    """Makes one node of several, or writes what engines can make one kernel of."""
    FLOAT = "float"
    """Takes out the rounding of activations; what comes out differs, and is a candidate of its own."""
    DEVICE = "device"
    """Says the same in the words that a device's compiler knows; only where the target asks for it."""
    DECODER = "decoder"
    """Says the same of a language model in the ops that ONNX Runtime has for it; checked with a past."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite and the step it belongs to."""

    function: Callable[[Graph], int]
    phase: Phase


def passes_of(phase: Phase) -> dict[str, Callable[[Graph], int]]:
    """Return the passes of one phase, by name and in the order of their names."""
    package = sys.modules[__name__]
    loaded: dict[str, Pass] = {name: registry.load(package, name).PASS for name in registry.names(package)}
    return {name: other.function for name, other in loaded.items() if other.phase is phase}
