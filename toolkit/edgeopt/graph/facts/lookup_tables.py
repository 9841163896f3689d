"""Tables in which rows are looked up by numbers, such as the embedding of tokens, read from a serialized graph alone.

A run reads few rows of them as they are stored; other large constants are read whole, and engines pack most of them.

Source: onnx.proto, GraphProto.node = 1, NodeProto.input = 1, op_type = 4.
"""

from __future__ import annotations

import mmap

from edgeopt.graph.facts.constants import GRAPH, INITIALIZER, Constant, constant_at
from edgeopt.graph.files.message_fields import fields_of

_NODE, _INPUT, _OP = 1, 1, 4
TABLES = {b"Gather": (0,), b"GatherBlockQuantized": (0, 2, 3)}
"""Inputs that are tables, by the op: rows, and of rows in blocks their scales and zero points."""
_MOST_BYTES = 4096
"""A constant whose numbers lie outside takes less than that in the graph."""


def outside_tables(data: mmap.mmap | bytes) -> list[Constant]:
    """Return the tables of a serialized graph whose numbers lie outside of it; none where it is no graph."""
    try:
        spans = [
            (number, begin, end)
            for part, _, first, last in fields_of(data, 0, len(data))
            if part == GRAPH
            for number, _, begin, end in fields_of(data, first, last)
        ]
        names = set[bytes]()
        for number, begin, end in spans:
            if number == _NODE and b"Gather" in data[begin:end]:
                names |= tables_of(data, begin, end)
        tables = list[Constant]()
        for number, begin, end in spans:
            if number != INITIALIZER or end - begin > _MOST_BYTES:
                continue
            if any(name in data[begin:end] for name in names):
                tables.append(constant_at(data, begin, end))
    except (ValueError, IndexError):  # cut off, or of another format
        return []
    return [table for table in tables if table.file and table.name.encode() in names]


def tables_of(data: mmap.mmap | bytes, begin: int, end: int) -> set[bytes]:
    """Return the names of the tables that a node looks up rows in."""
    inputs, op = list[bytes](), b""
    for number, _, first, last in fields_of(data, begin, end):
        if number == _INPUT:
            inputs.append(data[first:last])
        elif number == _OP:
            op = data[first:last]
    return {inputs[place] for place in TABLES.get(op, ()) if place < len(inputs) and inputs[place]}
