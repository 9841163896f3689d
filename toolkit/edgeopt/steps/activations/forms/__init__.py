"""Replacements of activations, one file each; each ends in `FORM`.

A form computes z of slope * x + shift; gain * z + offset stands for the activation. Slope and shift lie in the layer
before, gain and offset in the layers behind, so that nothing is left to compute but z.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.activations import forms
from edgeopt.system.declared import registry

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """How a form stands for one activation: four numbers for each channel, shape (channels,)."""

    slope: Numbers
    shift: Numbers
    gain: Numbers
    offset: Numbers
    error: Numbers
    """Mean squared, of each channel."""
    floor: float = 0.0
    """The least value of z, where the form has one."""


class ActivationForm(ABC):
    """A function that some engine computes inside the layer before it."""

    name: ClassVar[str]
    op: ClassVar[str]
    """The op that a profile's `fused_activations` names."""
    opset: ClassVar[int] = 13

    @abstractmethod
    def fit(self, x: Numbers, wanted: Numbers, *, gain: Numbers | None, has_offset: bool) -> Fit:
        """Return the fit with the least squared error.

        Args:
            x: Samples of the activation's input, shape (channels, samples).
            wanted: What the activation makes of them.
            gain: The gains that it must have; None: any above zero.
            has_offset: Whether an offset can be taken over by what reads it.
        """
        ...

    @abstractmethod
    def insert(self, graph: Graph, x: Value, fit: Fit, before: Node, name: str) -> Value:
        """Write the op behind `x`, which the layer before makes with slope and shift, and return z."""
        ...


def all_forms() -> Mapping[str, ActivationForm]:
    """Return every form by its file's name."""
    result: dict[str, ActivationForm] = {name: registry.load(forms, name).FORM for name in registry.names(forms)}
    return result
