"""Tables that are another shape of a constant: they become constants at the same place of its file.

A tied head in blocks is (outputs, blocks, bytes) for the product and (rows, bytes) for the look-up, as checkpoints are
exported: a Reshape between. ONNX Runtime computes it once and holds the copy, 27 MiB of 49,152 rows of 576; a constant
of its own is mapped, and only rows that are looked up are read. Numbers are the same: the bytes of the file. Nothing
here needs onnx.

Source: ONNX Reshape, opset 14 (0 takes the size of the input, unless `allowzero`; -1 what is left); onnx.proto,
NodeProto.input = 1, output = 2, op_type = 4, attribute = 5, domain = 7, TensorProto.int64_data = 7, raw_data = 9.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeopt.graph.facts.constants import GRAPH, INITIALIZER, Constant, constant_at
from edgeopt.graph.facts.lookup_tables import tables_of
from edgeopt.graph.files.message_fields import (
    copied,
    external_data,
    fields_of,
    head_of,
    number_at,
    number_field,
    text_field,
)
from edgeopt.graph.files.outside import Outside

_NODE, _GRAPH_INPUT, _GRAPH_OUTPUT, _VALUE_NAME = 1, 11, 12, 1
_INPUT, _OUTPUT, _OP, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
_DIMS, _TYPE, _NAME, _INTEGERS, _RAW = 1, 2, 8, 7, 9
_LEAST_BYTES = 1 << 20
"""A smaller table may be copied."""
_MOST_GRAPH_BYTES = 64 << 20
"""A larger graph holds weights itself, and would be copied for a table."""
_MOST_IN_GRAPH_BYTES = 4096
"""A constant that lies outside, or a shape, takes less than that in the graph."""
Span = tuple[int, int]
"""First byte of a message, and the byte behind its last."""


@dataclass(frozen=True, slots=True)
class _Reshape:
    """A node that makes a table of a constant."""

    span: Span
    data: str
    shape: str
    output: str


def with_table_views(source: bytes | Path | Outside) -> bytes | Path | Outside:
    """Return a model whose reshaped tables are constants of their own; itself where it has none, or is no graph.

    Args:
        source: A graph in memory without weights outside is returned as it is.
    """
    if isinstance(source, Outside):
        graph = views_in(source.graph)
        return source if graph is None else Outside(graph, source.folder, source.files)
    if not isinstance(source, Path):
        return source
    try:
        with source.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            graph = views_in(data)
    except (OSError, ValueError):  # absent or empty, which the engine says
        return source
    files = () if graph is None else _files_of(graph, source.parent)
    return Outside(graph, source.parent, files) if graph is not None and files else source


def views_in(data: mmap.mmap | bytes) -> bytes | None:
    """Return a serialized graph with constants in the place of reshaped tables; None: it has none, or is no graph."""
    try:
        return _rewritten(data)
    except (ValueError, IndexError):  # cut off, or of another format
        return None


def _rewritten(data: mmap.mmap | bytes) -> bytes | None:
    parts = [(first, last) for number, _, first, last in fields_of(data, 0, len(data)) if number == GRAPH]
    if len(parts) != 1:
        return None
    begin, end = parts[0]
    if end - begin > _MOST_GRAPH_BYTES:
        return None
    fields = [(number, first, last) for number, _, first, last in fields_of(data, begin, end)]
    reshapes = _reshapes(data, [(first, last) for number, first, last in fields if number == _NODE])
    if not reshapes:
        return None
    outputs, inputs = (
        {_text(data, first, last, _VALUE_NAME) for number, first, last in fields if number == wanted}
        for wanted in (_GRAPH_OUTPUT, _GRAPH_INPUT)
    )
    spans = _spans_of([span for number, *span in fields if number == INITIALIZER], data, reshapes)
    dropped, views = set[Span](), list[bytes]()
    for reshape in reshapes:
        if reshape.output in outputs or {reshape.data, reshape.shape} & inputs:  # which callers may replace
            continue
        if reshape.data not in spans or reshape.shape not in spans:
            continue
        view = _view(constant_at(data, *spans[reshape.data]), _integers(data, *spans[reshape.shape]), reshape.output)
        if view:
            dropped.add(reshape.span)
            views.append(head_of(INITIALIZER, len(view)) + view)
    if not views:
        return None
    nodes_left = copied(
        data, begin, end, _NODE, lambda first, last: b"" if (first, last) in dropped else None, is_dropped=True
    )
    return copied(data, 0, len(data), GRAPH, lambda *_: nodes_left + b"".join(views))


def _spans_of(constants: list[list[int]], data: mmap.mmap | bytes, reshapes: list[_Reshape]) -> dict[str, Span]:
    """Return where the constants lie that reshapes read, by name."""
    wanted = {name.encode() for reshape in reshapes for name in (reshape.data, reshape.shape)}
    result = dict[str, Span]()
    for first, last in constants:
        if last - first <= _MOST_IN_GRAPH_BYTES and any(name in data[first:last] for name in wanted):
            result[_text(data, first, last, _NAME)] = (first, last)
    return result


def _reshapes(data: mmap.mmap | bytes, nodes: list[Span]) -> list[_Reshape]:
    """Return the nodes that make what others look rows up in."""
    tables = set[bytes]()
    for first, last in nodes:
        if data.find(b"Gather", first, last) >= 0:
            tables |= tables_of(data, first, last)
    if not tables:
        return []
    result = list[_Reshape]()
    for first, last in nodes:
        content = data[first:last]
        if b"Reshape" not in content or not any(table in content for table in tables):
            continue
        texts = {_INPUT: list[str](), _OUTPUT: list[str](), _OP: list[str](), _DOMAIN: list[str]()}
        has_attribute = False
        for number, _, begin, end in fields_of(content, 0, len(content)):
            if number in texts:
                texts[number].append(content[begin:end].decode("utf-8", "replace"))
            has_attribute = has_attribute or number == _ATTRIBUTE  # `allowzero`, which no table needs
        is_plain = texts[_OP] == ["Reshape"] and not any(texts[_DOMAIN]) and not has_attribute
        if is_plain and len(texts[_INPUT]) == 2 and len(texts[_OUTPUT]) == 1:
            made = texts[_OUTPUT][0]
            if made.encode() in tables:
                result.append(_Reshape((first, last), texts[_INPUT][0], texts[_INPUT][1], made))
    return result


def _view(constant: Constant, shape: tuple[int, ...], name: str) -> bytes:
    """Return a constant of another shape at the place of one that lies outside; empty: it is none."""
    sizes = _sizes(constant.shape, shape)
    if not constant.file or constant.size_bytes < _LEAST_BYTES or not sizes:
        return b""
    made = b"".join(number_field(_DIMS, size) for size in sizes) + number_field(_TYPE, constant.type_number)
    return made + text_field(_NAME, name) + external_data(constant.file, constant.offset, constant.size_bytes)


def _sizes(before: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes that a Reshape makes; none: the shape does not fit."""
    if any(size == 0 and place >= len(before) for place, size in enumerate(shape)):
        return ()
    sizes = [before[place] if size == 0 else size for place, size in enumerate(shape)]
    count, rest = math.prod(before), math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and rest > 0 and count % rest == 0:
        sizes[sizes.index(-1)] = count // rest
    return tuple(sizes) if all(size > 0 for size in sizes) and math.prod(sizes) == count else ()


def _integers(data: mmap.mmap | bytes, start: int, end: int) -> tuple[int, ...]:
    """Return the numbers of a constant of int64 that lie in the graph."""
    result = list[int]()
    for number, value, first, last in fields_of(data, start, end):
        if number == _RAW:
            result += [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(first, last, 8)]
        elif number == _INTEGERS:
            result += [value] if first == last else list(_packed(data, first, last))
    return tuple(number - (1 << 64) if number >= 1 << 63 else number for number in result)


def _packed(data: mmap.mmap | bytes, place: int, end: int) -> Iterator[int]:
    while place < end:
        value, place = number_at(data, place)
        yield value


def _text(data: mmap.mmap | bytes, start: int, end: int, wanted: int) -> str:
    """Return a text of a message; empty: it has none."""
    for number, _, first, last in fields_of(data, start, end):
        if number == wanted:
            return data[first:last].decode("utf-8", "replace")
    return ""


def _files_of(graph: bytes, folder: Path) -> tuple[Path, ...]:
    """Return the files with the weights of a graph; none where it lies beyond the folder or is not there."""
    entries = dict[str, bytes]()
    for part in fields_of(graph, 0, len(graph)):
        for number, _, first, last in fields_of(graph, *part[2:]) if part[0] == GRAPH else ():
            content = graph[first:last] if number == INITIALIZER and last - first <= _MOST_IN_GRAPH_BYTES else b""
            if b"location" in content and not any(entry in content for entry in entries.values()):
                name = constant_at(content, 0, len(content)).file
                entries[name] = text_field(1, "location") + text_field(2, name)
    inside = folder.resolve()
    files = tuple((folder / name).resolve() for name in sorted(entries) if name)
    return files if all(file.is_relative_to(inside) and file.is_file() for file in files) else ()
