"""A network of a training framework, with all that its export needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note
from edgeopt.recipes.recipe import Recipe

_UNKNOWN_INTEGERS = 2
"""Whole numbers are drawn below it where nothing tells what they mean: 0 and 1 are indices of every table."""


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """An input of a network and which numbers it may be asked."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    """NumPy's word."""
    below: int = _UNKNOWN_INTEGERS
    """Whole numbers lie from 0 to below it."""

    def draw(self, seed: int, free: Mapping[int, int]) -> NDArray[Any]:
        """Return numbers of a seed: for an even one from 0 to 1, for an odd one normal; whole ones from 0 to `below`.

        Args:
            seed: Any.
            free: Size by axis, where it differs from the shape's.
        """
        random = np.random.default_rng(seed)
        shape = [free.get(axis, size) for axis, size in enumerate(self.shape)]
        if not np.issubdtype(np.dtype(self.dtype), np.floating):
            return np.asarray(random.integers(0, self.below, shape), self.dtype)
        return np.asarray(random.normal(0, 1, shape) if seed % 2 else random.random(shape), self.dtype)


@dataclass(frozen=True)
class Network:
    """A network to export, and the metadata that its file gets."""

    name: str
    """Name of the model."""
    framework: str
    """Who answers for the original: `PyTorch 2.13.0`."""
    module: Any
    """Called with a tensor for each input, in order; returns tensors."""
    inputs: tuple[NetworkInput, ...]
    form: str = "module"
    """`module`, `program` (torch.export's) or `torchscript`: each goes another way."""
    program: Any = None
    """Program that torch.export made, for the form `program`."""
    outputs: tuple[str, ...] = ()
    """Names of the tensors it returns; empty: as the answer's structure says."""
    recipe: Recipe | None = None
    """How the network is fed and read, as far as its source says; None: the source says too little."""
    companions: tuple[Path, ...] = ()
    """Files that are copied beside the ONNX file, for those who load it."""
    notes: tuple[Note, ...] = ()
