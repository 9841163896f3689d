"""Run a decoder piece by piece over a text, as it is and with matrices that are rounded already, side by side.

A piece ends where the next tensor that somebody waits for is made. Between pieces only what later nodes read is kept,
so that each node runs once for each side, and no session holds more than the weights of a piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.tensors import Tensors
from edgeopt.system.processes.time_limit import require_time

_IR_VERSION = 10
Held = dict[str, NDArray[Any]]


class TwoRuns:
    """Texts on their way through a decoder: with its own matrices, and with others in their place."""

    def __init__(self, graph: Graph, texts: Sequence[Tensors], ends: Sequence[Value], threads: int) -> None:
        """Begin before the first node.

        Args:
            graph: A decoder without nested graphs among what `ends` hang on.
            texts: Its inputs, each a text.
            ends: Values that will be waited for.
            threads: Of the engine.
        """
        self._graph, self._threads = graph, threads
        self._needed = _behind(graph, ends)
        self._waited = set(ends)
        self._ran = set[Node]()
        self.own: list[Held] = [dict(text) for text in texts]
        """Values made from each text so far that later nodes read, by name."""
        self.other: list[Held] = [dict(text) for text in texts]
        """The same with other matrices."""
        self._is_same = True

    def go_to(self, value: Value, others: Mapping[str, NDArray[np.float32]]) -> None:
        """Run until a value is there.

        Args:
            value: One of `ends`.
            others: Matrices in place of constants, by their names.

        Raises:
            OutOfTime: At the end of a time limit.
        """
        nodes = self._piece(value)
        if not nodes:
            return
        self._ran.update(nodes)
        made = [output for node in nodes for output in node.outputs if output.name]
        kept = [each for each in made if each in self._waited or self._is_read(each)]
        names = [str(each.name) for each in kept]
        reads = {str(input_.name) for node in nodes for input_ in node.inputs if input_ is not None}
        for side, replaced in ((self.own, {}), (self.other, others)):
            if side is self.other and self._is_same and not reads & set(others):
                self.other = [dict(held) for held in self.own]
                break
            self._run(nodes, side, names, reads, replaced)
            self._is_same = self._is_same and side is self.own
        for side in (self.own, self.other):
            for held in side:
                for name in [name for name in held if not self._is_still_read(name)]:
                    del held[name]

    def forget(self, value: Value) -> None:
        """Wait for a value no longer."""
        self._waited.discard(value)

    def _piece(self, value: Value) -> list[Node]:
        behind = _behind(self._graph, [value])
        return [node for node in self._graph.nodes() if node in behind and node not in self._ran]

    def _is_read(self, value: Value) -> bool:
        return any(node in self._needed and node not in self._ran for node in self._graph.consumers(value))

    def _is_still_read(self, name: str) -> bool:
        value = self._values[name]
        return value in self._waited or self._is_read(value)

    @cached_property
    def _values(self) -> dict[str, Value]:
        every = [*self._graph.inputs, *(each for node in self._graph.nodes() for each in node.outputs)]
        return {str(each.name): each for each in every if each.name}

    def _run(
        self,
        nodes: Sequence[Node],
        texts: Sequence[Held],
        names: Sequence[str],
        reads: set[str],
        replaced: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Run some nodes on each text, and keep what they make under `names`."""
        given = {name: value for name, value in texts[0].items() if name in reads}
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)
            for name, value in given.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        made = helper.make_graph([ir.to_proto(node) for node in nodes], "piece", infos, outputs)
        imports = {"": self._graph.opset, **dict.fromkeys({node.domain for node in nodes} - {"", "ai.onnx"}, 1)}
        opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
        model = helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION)
        for name, array in self._constants(reads).items():  # one by one: each step here copies a whole table of tokens
            stored = numpy_helper.from_array(np.ascontiguousarray(replaced.get(name, array)), name)
            model.graph.initializer.append(stored)
            del stored
        data = model.SerializeToString()
        del model
        session = EXECUTOR.open(data, SessionOptions(threads=self._threads))
        del data
        try:
            for held in texts:
                require_time()
                held.update(session.run({name: held[name] for name in given}))
        finally:
            session.close()

    def _constants(self, reads: set[str]) -> dict[str, NDArray[Any]]:
        initial = (each for each in self._graph.initializers if str(each.name) in reads)
        arrays = {str(each.name): self._graph.constant(each) for each in initial}
        return {name: array for name, array in arrays.items() if array is not None}


def has_nested(graph: Graph) -> bool:
    """Whether a node holds a graph of its own, which no piece is cut of."""
    return any(each.type is ir.AttributeType.GRAPH for node in graph.nodes() for each in node.attributes.values())


def _behind(graph: Graph, ends: Sequence[Value]) -> set[Node]:
    """Return the nodes that make values, and all before them."""
    result, waiting = set[Node](), list(ends)
    while waiting:
        node = graph.producer(waiting.pop())
        if node is not None and node not in result:
            result.add(node)
            waiting += [input_ for input_ in node.inputs if input_ is not None]
    return result
