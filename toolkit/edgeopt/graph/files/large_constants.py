"""Large constants that are made of a model above 2 GB: they go to files at once, so that memory holds none of them.

A search makes several forms of one model. In memory each would be as large as its weights, several times over; in files
they are what an engine maps anyway, and equal constants are one file.
"""

from __future__ import annotations

import hashlib
import mmap
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from edgeopt.graph.files.outside import LEAST_BYTES, StoredPiece, remember_sha256
from edgeopt.system.disk.files import open_beside

_FOLDER: ContextVar[Path | None] = ContextVar("folder_of_large_constants", default=None)
FOLDER = ".large"
"""Folder of such files in the output folder of a run."""
_PLAIN = "fiu"
"""Kinds of elements that are stored as NumPy holds them: others pack several into a byte."""


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Keep the large constants that are made inside the `with` in a folder, which is gone afterwards.

    Args:
        folder: Of nothing else; None: they stay in memory.
    """
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def place_of(array: NDArray[Any], folder: Path | None = None) -> StoredPiece | None:
    """Write an array to a file named after its content, unless one is there, and return it; None: it stays in memory.

    Args:
        array: Any.
        folder: That outlives the one of `kept_in`, for what several graphs are made of; None: that one.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    folder = folder or _FOLDER.get()
    if folder is None or array.nbytes < LEAST_BYTES or array.dtype.kind not in _PLAIN or not array.dtype.isnative:
        return None
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    digest = hashlib.sha256(data).hexdigest()
    path = (folder / f"{digest}.bin").resolve()
    if not path.is_file():
        with open_beside(path, is_lasting=False) as file:
            file.write(data)
        remember_sha256(path, digest)
    return StoredPiece(path, 0, array.nbytes)


def stored(array: NDArray[Any], name: str) -> ir.Tensor[Any] | ir.ExternalTensor:
    """Return a constant of a graph: in a file where it is large and a folder is given."""
    place = place_of(array)
    if place is None:
        return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    dtype, shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
    return ir.ExternalTensor(place.file, place.offset, place.length, dtype, shape=shape, name=name)


def proto_of(array: NDArray[Any], name: str) -> onnx.TensorProto:
    """Return a constant of a graph that is written node by node: in a file where it is large and a folder is given."""
    made = stored(array, name)
    return ir.to_proto(made) if isinstance(made, ir.ExternalTensor) else numpy_helper.from_array(array, name)


def held_outside(array: NDArray[Any], folder: Path | None = None) -> NDArray[Any]:
    """Return an array as it is mapped from its file, read only; itself where it stays in memory. See `place_of`."""
    place = place_of(array, folder)
    return array if place is None else np.memmap(place.file, array.dtype, "r", shape=array.shape)


def let_go(mapped: object) -> None:
    """Drop the pages of a mapped file, or of an array mapped from one, from memory: who reads them maps them again."""
    pages = mapped if isinstance(mapped, mmap.mmap) else getattr(mapped, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        pages.madvise(mmap.MADV_DONTNEED)
