"""Write a scheme as ONNX Runtime's own integer ops in NHWC, as its CPU kernels want it.

ONNX Runtime turns Q/DQ into these ops too, but leaves activations such as SiLU between a DequantizeLinear and a
QuantizeLinear in the wrong layout, or runs them as two integer passes. Here every change of layout is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgeopt.graph.files.large_constants import kept_in
from edgeopt.graph.graph import AttributeValue, Graph, Node, Value, attribute
from edgeopt.steps.quantize.formats._float_guards import guarded_layers
from edgeopt.steps.quantize.formats._layouts import to_last
from edgeopt.steps.quantize.formats._nhwc_layers import LayerWriter, has_kernel, written
from edgeopt.steps.quantize.formats.matmul_integer import place_matrices, plain_products
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.grids.weights import QuantizedWeight
from edgeopt.steps.quantize.patterns import key, name_of, silu_sigmoid
from edgeopt.steps.quantize.scheme import Scheme, candidates, data_inputs
from edgeopt.steps.quantize.spatial import centred_window, repeats_of, resize_factors

_MICROSOFT = "com.microsoft"
_ELEMENTWISE = frozenset(
    {"Relu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "LeakyRelu", "Elu", "Gelu", "Softplus", "Mish"}
)
"""Ops of one tensor that do not care for the layout."""
_KNOWN = ("", "ai.onnx", _MICROSOFT)
"""Domains whose ops of these names are known to do so."""
_POSITIONS = (1, 2)
"""Axes of rows and columns with channels last."""
_OPSET_OF_AXES_AS_INPUT = 18
"""First opset whose ReduceMean reads its axes; before, they are an attribute."""
_SIZES = 3
"""Place of a Resize's sizes among its inputs."""
_RESIZE_ATTRIBUTES = ("coordinate_transformation_mode", "mode", "nearest_mode")
_POOL_ATTRIBUTES = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


class _Lowering(LayerWriter):
    """One walk over the graph."""

    def __init__(self, graph: Graph, scheme: Scheme) -> None:
        super().__init__(graph, scheme)
        self.counts: dict[str, int] = {}
        self._pools: dict[tuple[Value, Affine], tuple[int, Value]] = {}
        self._rules: Mapping[str, Callable[[Node], bool]] = {
            "Conv": self.convolution,
            "Mul": self._mul,
            "Add": self._both_float,
            "Concat": self._concat,
            "MaxPool": self._max_pool,
            "Resize": self._resize,
            "GlobalAveragePool": self._global_pool,
            "Identity": self._same,
            "Reshape": self._reshape,
            "Transpose": self._transpose,
            "Dropout": self._same,
        }

    def walk(self) -> Mapping[str, int]:
        """Lower node by node, in order; return how many of each op."""
        for node in self.graph.nodes():
            rule = self._rules.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if rule is not None and rule(node):
                self.counts[node.op_type] = self.counts.get(node.op_type, 0) + 1
            elif node.op_type in _ELEMENTWISE and self._elementwise(node):
                continue
            else:
                self._keep(node)
        return self.counts

    def finish(self) -> None:
        """Give the model's outputs their own form, and drop what nothing reads any more."""
        for value in self.graph.outputs:
            if self.forms.is_lowered(value):
                self.graph.replace(value, self.forms.nchw(value))
        self.graph.remove_unused()

    def _keep(self, node: Node) -> None:
        """Leave a node in float and NCHW."""
        for i, value in enumerate(node.inputs):
            if value is not None and self.forms.is_lowered(value):
                self.graph.set_input(node, i, self.forms.nchw(value))

    def _elementwise(self, node: Node) -> bool:
        source, made = node.inputs[0], node.outputs[0]
        if self.forms.is_lowered(made):
            return True  # absorbed by the convolution before it
        if source is None or node.domain not in _KNOWN or not self._is_last(source):
            return False
        if node.op_type == "Sigmoid" and self._is_gate_alone(node):
            return True  # its Mul makes both
        inputs: list[Value | None] = [self.forms.nhwc(source), *node.inputs[1:]]
        kept = written(node, node.attributes)
        self.forms.put_float(made, self.insert(node.op_type, inputs, node, kept, node.domain))
        return True

    def _is_gate_alone(self, sigmoid: Node) -> bool:
        """Whether nothing but the Mul of a SiLU reads a Sigmoid."""
        readers = self.graph.consumers(sigmoid.outputs[0])
        silus = [silu_sigmoid(self.graph, reader) is sigmoid for reader in readers]
        return bool(readers) and all(silus) and not self.graph.is_output(sigmoid.outputs[0])

    def _mul(self, node: Node) -> bool:
        sigmoid = silu_sigmoid(self.graph, node)
        if sigmoid is None:
            return self._both_float(node)
        source = sigmoid.inputs[0]
        assert source is not None
        if not self._is_last(source) and not self._leaves_float(node, source):
            return False
        grids = self.forms.grids_of(source)
        if self.options.integer_silu and grids and self.scheme.is_integer(node):
            self._integer_silu(node, sigmoid, source, grids[0])
        else:
            real = self.insert("QuickGelu", [self.forms.nhwc(source)], node, {"alpha": 1.0})
            self.forms.put_float(node.outputs[0], real)
        return True

    def _leaves_float(self, node: Node, source: Value) -> bool:
        """Whether a float convolution's SiLU is read by integers only: then the layout changes before it.

        ONNX Runtime folds a Transpose into the float convolution before it, but would move one that stands before
        a QuantizeLinear behind it, where it is a pass of its own.
        """
        maker, readers = self.graph.producer(source), self.graph.consumers(node.outputs[0])
        made_in_float = maker is not None and maker.op_type == "Conv" and self.graph.rank(source) == 4
        alone = len(self.graph.consumers(source)) == 2  # its Sigmoid and its Mul
        return made_in_float and alone and bool(readers) and all(self.scheme.is_integer(reader) for reader in readers)

    def _integer_silu(self, node: Node, sigmoid: Node, source: Value, grid: Affine) -> None:
        integers = self.forms.integer(source, grid)
        gate, to = self.grid(sigmoid.outputs[0]), self.grid(node.outputs[0])
        inputs: list[Value | None] = [integers, *self.forms.grid(grid), *self.forms.grid(gate)]
        opened = self.insert("QLinearSigmoid", inputs, sigmoid)
        self.forms.put_integer(sigmoid.outputs[0], gate, opened)
        inputs = [integers, *self.forms.grid(grid), opened, *self.forms.grid(gate), *self.forms.grid(to)]
        self.forms.put_integer(node.outputs[0], to, self.insert("QLinearMul", inputs, node))

    def _both_float(self, node: Node) -> bool:
        """Two float tensors of four dimensions in NHWC; a scale and a shift by constants stay as they are."""
        sources = data_inputs(self.graph, node)
        ready = [source for source in sources if self._is_last(source)]
        flat = len(sources) == 2 and all(self.graph.rank(source) == 4 for source in sources)
        if not flat or len(ready) != 2:
            return False
        inputs: list[Value | None] = [self.forms.nhwc(source) for source in sources]
        self.forms.put_float(node.outputs[0], self.insert(node.op_type, inputs, node, domain=""))
        return True

    def _concat(self, node: Node) -> bool:
        parts, made = data_inputs(self.graph, node), node.outputs[0]
        rank = self.graph.rank(made)
        if rank is None:
            return False
        axis = attribute(node, "axis", 1) % rank
        if self.scheme.is_integer(node) and axis == 1 and rank == 4:
            grid = self.grid(made)
            integers: list[Value | None] = [self.forms.integer(part, grid) for part in parts]
            self.forms.put_integer(made, grid, self.insert("Concat", integers, node, {"axis": 3}, ""))
            return True
        if len(parts) < len(node.inputs) or not all(self._is_last(part) for part in parts):
            return False
        real: list[Value | None] = [self.forms.nhwc(part) for part in parts]
        last = to_last(rank).index(axis)
        self.forms.put_float(made, self.insert("Concat", real, node, {"axis": last}, ""))
        return True

    def _is_last(self, value: Value | None) -> bool:
        """Whether the tensor was lowered, and has a form with channels last."""
        return self.forms.has_nhwc(value) and self.forms.is_lowered(value)

    def _reshape(self, node: Node) -> bool:
        """(n, c, h, w) to (n, c, h w), which leaves the channels where they are."""
        source, made = node.inputs[0], node.outputs[0]
        before, after = self.graph.shape(source), self.graph.shape(made)
        if source is None or not self._is_last(source) or before is None or after is None:
            return False
        if before[:2] != after[:2] or len(after) < 3:
            return False
        shape = self.graph.add_initializer(f"{node.name}_shape", np.array([after[i] for i in to_last(len(after))]))
        self.forms.put_float(made, self.insert("Reshape", [self.forms.nhwc(source), shape], node, domain=""))
        return True

    def _transpose(self, node: Node) -> bool:
        """A Transpose that moves the channels last has nothing left to do."""
        source, made = node.inputs[0], node.outputs[0]
        rank = self.graph.rank(made)
        if source is None or rank is None or not self._is_last(source):
            return False
        if attribute(node, "perm", ()) != to_last(rank) or self.graph.is_output(made):
            return False
        self.forms.put_same(made, self.forms.nhwc(source))
        return True

    def _max_pool(self, node: Node) -> bool:
        source, made = node.inputs[0], node.outputs[0]
        simple = len(node.outputs) == 1 and attribute(node, "storage_order", 0) == 0
        if source is None or not self.scheme.is_integer(node) or self.graph.rank(made) != 4 or not simple:
            return False
        grid = self.grid(made)
        window = centred_window(node)
        integers = self.forms.integer(source, grid)
        smaller = self._pools.get((source, grid))
        if window is not None and smaller is not None and smaller[0] < window:
            rest = window - smaller[0] + 1
            kept: dict[str, AttributeValue] = {"kernel_shape": (rest, rest), "pads": (rest // 2,) * 4}
            integers = smaller[1]
        else:
            kept = written(node, _POOL_ATTRIBUTES)
        pooled = self.insert("NhwcMaxPool", [integers], node, kept)
        self.forms.put_integer(made, grid, pooled)
        if window is not None:
            self._pools[source, grid] = window, pooled
        return True

    def _resize(self, node: Node) -> bool:
        source, made = node.inputs[0], node.outputs[0]
        before, factors = self.graph.shape(source), resize_factors(self.graph, node)
        if source is None or not self.scheme.is_integer(node) or before is None or len(before) != 4:
            return False
        if factors is None or factors[:2] != (1, 1):
            return False
        grid = self._read_grid(made)
        integers = self.forms.integer(source, grid)
        repeats = repeats_of(node, factors)
        if repeats is not None:
            self.forms.put_integer(made, grid, self._repeat(node, integers, before, repeats))
            return True
        inputs = [integers, None, *self._as_written(node, factors)]
        self.forms.put_integer(made, grid, self.insert("Resize", inputs, node, written(node, _RESIZE_ATTRIBUTES), ""))
        return True

    def _as_written(self, node: Node, factors: tuple[float, ...]) -> list[Value | None]:
        """Return scales, or sizes, of a Resize with channels last: whichever the node has, as the other rounds."""
        order, after = to_last(4), self.graph.shape(node.outputs[0])
        if after is not None and len(node.inputs) > _SIZES and node.inputs[_SIZES] is not None:
            sizes = np.array([after[axis] for axis in order], np.int64)
            return [None, self.graph.add_initializer(f"{node.name}_sizes", sizes)]
        scales = np.array([factors[axis] for axis in order], np.float32)
        return [self.graph.add_initializer(f"{node.name}_scales", scales)]

    def _read_grid(self, value: Value) -> Affine:
        """Return the grid on which a Concat wants the tensor if it alone reads it: there are fewer values before."""
        reader = self.graph.sole_consumer(value)
        joined = reader is not None and reader.op_type == "Concat" and self.scheme.is_integer(reader)
        return self.grid(reader.outputs[0] if reader is not None and joined else value)

    def _repeat(self, node: Node, integers: Value, before: tuple[int, ...], repeats: tuple[int, int]) -> Value:
        """Repeat rows and columns; Resize visits each byte of a nearest neighbour alone, Tile copies whole pixels."""
        (n, c, h, w), (down, across) = before, repeats
        add = self.graph.add_initializer
        apart = add(f"{node.name}_apart", np.array([n * h, 1, w, 1, c]))
        often = add(f"{node.name}_repeats", np.array([1, down, 1, across, 1]))
        together = add(f"{node.name}_shape", np.array([n, h * down, w * across, c]))
        rows = self.insert("Reshape", [integers, apart], node, domain="")
        tiled = self.insert("Tile", [rows, often], node, domain="")
        return self.insert("Reshape", [tiled, together], node, domain="")

    def _global_pool(self, node: Node) -> bool:
        source, made = node.inputs[0], node.outputs[0]
        if source is None or not self.forms.is_lowered(source) or self.graph.rank(made) != 4:
            return False
        inputs: list[Value | None] = [self.forms.nhwc(source)]
        kept: dict[str, AttributeValue] = {"keepdims": 1}
        if self.graph.opset < _OPSET_OF_AXES_AS_INPUT:
            kept["axes"] = _POSITIONS
        else:
            inputs.append(self.graph.add_initializer(f"{node.name}_axes", np.array(_POSITIONS)))
        self.forms.put_float(made, self.insert("ReduceMean", inputs, node, kept, ""))
        return True

    def _same(self, node: Node) -> bool:
        source, made = node.inputs[0], node.outputs[0]
        if source is None or not self.scheme.is_integer(node) or not self.forms.is_lowered(source):
            return False
        for grid in self.forms.grids_of(source):
            self.forms.put_integer(made, grid, self.forms.integer(source, grid))
        if not self.forms.grids_of(source):
            self.forms.put_float(made, self.forms.nhwc(source))
        return True


def lowered_layers(graph: Graph) -> set[Node]:
    """Return the weighted nodes that the engine has integer ops for: convolutions of pictures and plain products."""
    return {*plain_products(graph), *(node for node in graph.nodes("Conv") if has_kernel(graph, node))}


def place_nhwc(graph: Graph, scheme: Scheme) -> Mapping[str, int]:
    """Rewrite the integer nodes, in place; return how many of each op were rewritten.

    Args:
        graph: The float model; it is edited.
        scheme: What runs on integers, and which of several ways to write.
    """
    products = place_matrices(graph, scheme)
    lowering = _Lowering(graph, scheme)
    counts = lowering.walk()
    lowering.finish()
    return {**products, **counts, **guarded_layers(graph)}


def rounded_tensors(graph: Graph, scheme: Scheme) -> set[str]:
    """Return the names of the tensors that `place_nhwc` rounds to integers, learned from a copy with empty weights."""
    copy = graph.copy()
    names = {
        value: name_of(value) for value in (*copy.inputs, *(output for node in copy.nodes() for output in node.outputs))
    }
    lowering = _Lowering(copy, replace(scheme, weights=_empty_weights(copy, scheme)))
    with kept_in(None):  # zeros that nothing reads take no memory
        lowering.walk()
    read = (node.inputs[0] for node in plain_products(graph) if scheme.is_integer(node))
    products = {name_of(value) for value in read if value is not None}
    return products | {name for value, name in names.items() if lowering.forms.grids_of(value)}


def _empty_weights(graph: Graph, scheme: Scheme) -> dict[str, QuantizedWeight]:
    quantized_weights = {}
    for node in candidates(graph, scheme.rules):
        weight = graph.constant(node.inputs[1])
        assert weight is not None
        quantized_weights[key(node)] = QuantizedWeight(np.zeros(weight.shape, np.int8), np.ones(1, np.float32), 0)
    return quantized_weights
