"""The ops that read each constant of a graph, read from its file alone: nothing is loaded, and onnx not needed.

Source: onnx.proto, GraphProto.node = 1, NodeProto.input = 1, output = 2, op_type = 4.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from pathlib import Path

from edgeopt.graph.facts.constants import GRAPH
from edgeopt.graph.files.message_fields import fields_of

_NODE, _INPUT, _OUTPUT, _OP = 1, 1, 2, 4
_CAST = "Cast"


def readers_of(file: Path) -> dict[str, set[str]]:
    """Return, by name of a tensor, the types of the ops that read it; behind a `Cast`, those that read what it makes.

    They are written `Cast MatMul` then. A file that is no graph has none, which whoever opens it says.
    """
    readers = defaultdict[str, set[str]](set)
    casts = dict[str, str]()
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for graph in fields_of(data, 0, len(data)):
                for node in fields_of(data, *graph[2:]) if graph[0] == GRAPH else ():
                    if node[0] == _NODE:
                        inputs, outputs, op = _node(data, *node[2:])
                        for name in inputs:
                            readers[name].add(op)
                        if op == _CAST and inputs and outputs:
                            casts[outputs[0]] = inputs[0]
    except (OSError, ValueError, IndexError):  # empty, cut off, or of another format
        return {}
    for made, source in casts.items():
        readers[source] |= {f"{_CAST} {op}" for op in readers.get(made, ())}
    return {name: ops - {_CAST} for name, ops in readers.items()}


def _node(data: mmap.mmap, begin: int, end: int) -> tuple[list[str], list[str], str]:
    """Return the inputs, the outputs and the type of a node."""
    inputs, outputs, op = list[str](), list[str](), ""
    for number, _, first, last in fields_of(data, begin, end):
        if number in (_INPUT, _OUTPUT):
            (inputs if number == _INPUT else outputs).append(data[first:last].decode("utf-8", "replace"))
        elif number == _OP:
            op = data[first:last].decode("utf-8", "replace")
    return inputs, outputs, op
