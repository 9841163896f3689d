"""Tables that rows are looked up in, mapped once for all sessions of the process that read the same file.

ONNX Runtime maps them for each session: what a text looks up then counts in the memory of the process as often as
graphs look it up, twice for a graph of prompts beside one of tokens. Numbers are the same: the bytes of the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Source
from edgeopt.graph.facts.constants import Constant
from edgeopt.graph.facts.lookup_tables import outside_tables
from edgeopt.graph.files.outside import Outside

_TYPES = {1: "f4", 2: "u1", 3: "i1", 10: "f2"}
"""NumPy's names of the types that are lent, by TensorProto.DataType."""
_LEAST_BYTES = 1 << 20
"""Smaller tables are left to ONNX Runtime."""


class MappedFile:
    """A file of weights in memory, read only; nothing of it is read until somebody looks."""

    def __init__(self, file: Path) -> None:
        """Map it.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it is empty.
        """
        with file.open("rb") as opened:
            memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux, which else maps 2 MiB of a file for one row
            with suppress(OSError):  # a kernel without huge pages does not know the word
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._bytes = np.frombuffer(memory, np.uint8)  # it keeps the mapping

    def array(self, table: Constant) -> NDArray[Any] | None:
        """Return a table as it lies in the file; None: it is of another type, or the file does not hold it so."""
        end = table.offset + table.size_bytes
        if table.type_number not in _TYPES or table.offset < 0 or end > len(self._bytes):
            return None
        dtype = np.dtype(_TYPES[table.type_number])
        if table.offset % dtype.itemsize:
            return None
        return self._bytes[table.offset : end].view(dtype).reshape(table.shape)


_files: WeakValueDictionary[tuple[int, int, int, int], MappedFile] = WeakValueDictionary()
"""Files that a session reads, by device, inode, size and time of change."""
_one_at_a_time = Lock()


def lend_tables(made: Any, source: Source) -> tuple[Any, ...]:
    """Give a session the tables of its graph that lie outside of it.

    Args:
        made: Its options.
        source: Which it will open.

    Returns:
        Their values, which must live as long as the session.
    """
    import onnxruntime

    lent = list[Any]()
    for table, file in _tables_of(source):
        try:
            mapped = _mapped(file)
        except (OSError, ValueError):  # the engine says what is wrong with it
            continue
        array = mapped.array(table)
        if array is not None:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)  # borrows the array's memory
            made.add_initializer(table.name, value)
            lent += [value, array, mapped]
    return tuple(lent)


def _tables_of(source: Source) -> Iterator[tuple[Constant, Path]]:
    """Yield large tables of a graph, and the files that hold them; none beyond the graph's folder."""
    if isinstance(source, Outside):
        tables, folder = outside_tables(source.graph), source.folder
    elif isinstance(source, Path):
        tables, folder = _tables_beside(source), source.parent
    else:
        return
    inside = folder.resolve()
    for table in tables:
        file = (folder / table.file).resolve()
        if table.size_bytes >= _LEAST_BYTES and file.is_relative_to(inside) and file.is_file():
            yield table, file


def _tables_beside(graph: Path) -> list[Constant]:
    try:
        with graph.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return outside_tables(data)
    except (OSError, ValueError):  # the engine says what is wrong with it
        return []


def _mapped(file: Path) -> MappedFile:
    facts = file.stat()
    key = facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
    with _one_at_a_time:
        mapped = _files.get(key)
        if mapped is None:
            mapped = _files[key] = MappedFile(file)
        return mapped
