"""A large ONNX file whose weights stay where they lie in it: engines and tools map them, and nobody holds a copy.

A protobuf holds the numbers of a constant as plain bytes, so that external data may name the model's own file. Nothing
here needs onnx.
Source: onnx.proto, ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.raw_data = 9, external_data = 13.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from edgeopt.graph.files.message_fields import copied, external_data, fields_of
from edgeopt.graph.files.outside import LEAST_BYTES, Outside

LEAST_FILE_BYTES = 16 << 20
"""A smaller file is loaded: what it holds counts for nothing, and a bundle has one file for it."""
GRAPH, INITIALIZER, RAW = 7, 5, 9


def mapped(file: Path) -> Outside | Path:
    """Return what an engine opens of a model so that it maps the weights inside it; the file where they lie elsewhere.

    ONNX Runtime holds each weight of a file that it reads itself twice for a while, and keeps what it was read from.
    """
    try:
        whole = file.resolve()
        graph = graph_alone(whole)
    except OSError:  # the engine says what is wrong with the file
        return file
    return file if graph is None else Outside(graph, whole.parent, (whole,))


def graph_alone(file: Path) -> bytes | None:
    """Return a serialized model whose large constants name their place in its own file, relative to its folder.

    None: the file is small, holds no large constant, or is no ONNX file that is whole, which whoever loads it says.

    Raises:
        OSError: If the file cannot be read.
    """
    if file.stat().st_size < LEAST_FILE_BYTES:
        return None
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            light = copied(data, 0, len(data), GRAPH, lambda begin, end: _graph(data, begin, end, file.name))
        except (ValueError, IndexError):
            return None
    return light if len(light) < file.stat().st_size else None


def _graph(data: mmap.mmap, begin: int, end: int, name: str) -> bytes:
    return copied(data, begin, end, INITIALIZER, lambda first, last: _tensor(data, first, last, name))


def _tensor(data: mmap.mmap, begin: int, end: int, name: str) -> bytes | None:
    """Return a constant that names the place of its numbers; None: it is small, or its numbers are no plain bytes."""
    raw = [(first, last) for number, _, first, last in fields_of(data, begin, end) if number == RAW]
    if len(raw) != 1 or raw[0][1] - raw[0][0] < LEAST_BYTES:
        return None
    first, last = raw[0]
    made = copied(data, begin, end, RAW, lambda *_: b"", is_dropped=True)
    return made + external_data(name, first, last - first)
