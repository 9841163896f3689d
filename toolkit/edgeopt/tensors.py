"""The words for tensors: a named array in, a named array out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
Frame: TypeAlias = NDArray[np.uint8]
"""One picture as OpenCV reads it: (height, width, 3), BGR, 0..255."""
Sample: TypeAlias = Frame | Tensors
"""What a model is asked: a picture, or its inputs themselves."""


def require_names(inputs: Tensors, known: Iterable[str]) -> None:
    """Raise ValueError unless the inputs are exactly those that a model knows."""
    names = set(known)
    if inputs.keys() != names:
        raise ValueError(f"inputs are {', '.join(sorted(inputs))}, not {', '.join(sorted(names))}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, element type (NumPy's word) and shape; None or a name stands for a free dimension."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number above zero."""
        return all(isinstance(size, int) and size > 0 for size in self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {'x'.join('?' if s is None else str(s) for s in self.shape)}"
