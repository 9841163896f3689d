"""Tensors as named arrays, and the names, types and shapes that a model gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.system.text import shorten

_MOST_SHOWN = 200
"""Characters of a name in a message; files from elsewhere have names of any length."""
_LONGEST_SIZE = 40
"""Characters of the name of a free dimension."""
_NAME = re.compile(r"[\w.:/ -]*[^\W\d][\w.:/ -]*")
"""Name of a free dimension: letters, digits and what joins words; a formula has brackets and signs."""
Tensors: TypeAlias = Mapping[str, NDArray[Any]]
Frame: TypeAlias = NDArray[np.uint8]
"""One picture as OpenCV reads it: (height, width, 3), BGR, 0..255."""


@dataclass(frozen=True, slots=True)
class ReducedPicture:
    """A picture that was decoded at a part of its size: its pixel (i, j) shows a square of `factor` pixels a side.

    What a model finds in it is told in pixels of the whole picture.
    """

    pixels: Frame
    factor: int
    """1, 2, 4 or 8."""
    height: int
    """Height of the whole picture."""
    width: int
    left: int = 0
    """Pixels of the first column that lie outside the whole picture: its width is no multiple of the factor."""
    top: int = 0

    def enlarged(self) -> Frame:
        """Return it in the size of the whole picture, for drawing: its details do not come back."""
        if self.factor == 1:
            return self.pixels
        import cv2  # 17 MB that a model of texts does without

        height, width = (self.factor * side for side in self.pixels.shape[:2])
        large = np.asarray(cv2.resize(self.pixels, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
        return np.ascontiguousarray(large[self.top : self.top + self.height, self.left : self.left + self.width])


Sample: TypeAlias = Frame | ReducedPicture | Tensors | str | Sound
"""One input of a model: a picture, a text, a sound, or the model's input tensors themselves."""


def require_picture(sample: Sample) -> Frame:
    """Return a sample that is a picture.

    Raises:
        UnsupportedError: If it is anything else.
    """
    if not isinstance(sample, np.ndarray):
        text = {str: "a text", Sound: "a sound"}.get(type(sample), "tensors")
        raise UnsupportedError(f"the recipe takes pictures, and is fed {text}", remedy="pass pictures")
    return sample


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
    op: str = field(default="", compare=False, repr=False)
    """Op of an output: the operator that makes its values, where the graph is known."""

    before: str = field(default="", compare=False, repr=False)
    """The operator of an output in front of `op`, what is only added or normalised between left out."""

    is_unranked: bool = False
    """Whether even the number of dimensions is unknown; `shape` is empty then, as that of a scalar is."""

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number above zero."""
        return not self.is_unranked and all(isinstance(size, int) and size > 0 for size in self.shape)

    def takes_shape(self, shape: Sequence[int]) -> bool:
        """Return whether an array of this shape fits: of the same rank, and equal where a dimension is not free."""
        if self.is_unranked:
            return True
        return len(shape) == len(self.shape) and all(
            mine == size for mine, size in zip(self.shape, shape, strict=True) if isinstance(mine, int)
        )

    def __str__(self) -> str:
        sizes = "x".join("?" if size is None else _shown_size(size) for size in self.shape)
        dtype = "string" if self.dtype == "object" else self.dtype  # numpy's name of it says nothing
        name = shorten(self.name, _MOST_SHOWN)
        return f"{name} {dtype} {'of unknown shape' if self.is_unranked else sizes or 'scalar'}"


def _shown_size(size: int | str) -> str:
    """Return a size as a message shows it; a formula, as torch writes for cells, is as free as one without a name."""
    is_name = isinstance(size, int) or _NAME.fullmatch(size)
    return shorten(str(size), _LONGEST_SIZE) if is_name else "?"


def fix_sizes(specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """Return inputs in the shapes that `--shape` gives, and with the same size wherever a dimension has the same name.

    Args:
        specs: What a model takes.
        shapes: Whole shapes by input name; the other inputs keep what no name fixes.

    Raises:
        NotFoundError: If no input has such a name.
        UnsupportedError: If a shape contradicts the model's, or gives one name two sizes.
    """
    by_name, known = {spec.name: spec for spec in specs}, dict[str, int]()
    for name, shape in shapes.items():
        if name not in by_name:
            raise NotFoundError("input", name, by_name)
        _learn_sizes(by_name[name], shape, known)
    return tuple(
        replace(spec, shape=shapes[spec.name], is_unranked=False)
        if spec.name in shapes
        else replace(spec, shape=tuple(known.get(str(size), size) for size in spec.shape))
        for spec in specs
    )


def _learn_sizes(spec: TensorSpec, shape: tuple[int, ...], known: dict[str, int]) -> None:
    """Take up the sizes of named dimensions; raise unless the shape fits and no name had another size before."""
    if spec.is_unranked:
        return
    if not spec.takes_shape(shape):
        raise UnsupportedError(
            f"--shape gives {'x'.join(map(str, shape))} to input {spec}",
            remedy="give one size for each dimension, and change only those that are free",
        )
    for name, size in zip(spec.shape, shape, strict=True):
        if isinstance(name, str) and known.setdefault(name, size) != size:
            raise UnsupportedError(
                f"--shape gives {name} the sizes {known[name]} and {size}", remedy=f"give {name} one size everywhere"
            )


def ints(*values: int) -> NDArray[np.int64]:
    """Return a vector of whole numbers."""
    return np.array(values, np.int64)


def floats(*values: float) -> NDArray[np.float32]:
    """Return a vector of numbers."""
    return np.array(values, np.float32)
