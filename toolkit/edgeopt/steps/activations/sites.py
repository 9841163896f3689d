"""Where a model computes a smooth activation, whatever the exporter wrote it as."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.quantize.activations import hard_swish, silu
from edgeopt.steps.quantize.patterns import has_weights, name_of, silu_sigmoid, weight_axis

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_ERF = np.vectorize(math.erf, otypes=[np.float64])


def gelu(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x (1 + erf(x / sqrt 2)) / 2; Hendrycks and Gimpel, 2016."""
    return np.asarray(0.5 * values * (1 + _ERF(values * math.sqrt(0.5))))


def tanh_gelu(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the approximation of GELU with tanh; ONNX Gelu-20, `approximate`."""
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
    return np.asarray(0.5 * values * (1 + np.tanh(inner)))


def mish(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x tanh(ln(1 + exp(x))); Misra, 2019."""
    return np.asarray(values * np.tanh(np.logaddexp(0, values)))


@dataclass(frozen=True, slots=True)
class Site:
    """One activation, behind a layer that can take a slope and a shift for each channel."""

    name: str
    """Name of the tensor that it makes."""
    kind: str
    function: Function
    node: Node
    """The last of its nodes."""
    x: Value
    maker: Node
    """The weighted node, or the Add of a bias behind a product, that makes `x` for it alone."""
    axis: int
    """Axis of the channels."""
    channels: int
    elements: int
    """Numbers that it computes for one input."""

    @property
    def y(self) -> Value:
        """The activation's output."""
        return self.node.outputs[0]


@dataclass(frozen=True, slots=True)
class Sites:
    """The activations that may be replaced, in the order of the graph, and why others may not."""

    sites: tuple[Site, ...]
    refused: tuple[tuple[str, str], ...]
    """Tensor and reason."""


def find_sites(graph: Graph) -> Sites:
    """Return every SiLU, QuickGelu, Mish, GELU and HardSwish of a graph with shapes."""
    sites, refused = list[Site](), list[tuple[str, str]]()
    for node in graph.nodes():
        known = _recognised(graph, node)
        if known is None:
            continue
        kind, function, x, between = known
        name = name_of(node.outputs[0])
        reason, maker, axis = _maker_of(graph, x)
        shape = graph.shape(x)
        if not reason and not set(graph.consumers(x)) <= {node, *between}:
            reason = "what it reads is read elsewhere too"
        if not reason and (shape is None or graph.is_output(x)):
            reason = "no fixed shape" if shape is None else "what it reads is an output"
        if reason or maker is None or shape is None:
            refused.append((name, reason))
            continue
        site = Site(name, kind, function, node, x, maker, axis, shape[axis], math.prod(shape))
        sites.append(site)
    return Sites(tuple(sites), tuple(refused))


def _recognised(graph: Graph, node: Node) -> tuple[str, Function, Value, tuple[Node, ...]] | None:
    """Return name, function, input and the nodes between input and `node`, the last of an activation."""
    op, x = node.op_type, node.inputs[0] if node.inputs else None
    if x is None:
        return None
    if node.domain == "com.microsoft":
        if op == "QuickGelu":
            alpha = float(attribute(node, "alpha", 1.702))
            return "QuickGelu", lambda values: silu(alpha * values) / alpha, x, ()
        return ("Gelu", gelu, x, ()) if op == "Gelu" else None
    if node.domain not in ("", "ai.onnx"):
        return None
    if op == "Gelu":
        return "Gelu", tanh_gelu if attribute(node, "approximate", "none") == "tanh" else gelu, x, ()
    if op == "HardSwish":
        return "HardSwish", hard_swish, x, ()
    if op == "Swish":
        alpha = float(attribute(node, "alpha", 1.0))
        return "Swish", lambda values: values * silu(alpha * values) / np.where(values == 0, 1, values), x, ()
    if op == "Mish":
        return "Mish", mish, x, ()
    return _written_out(graph, node) if op == "Mul" else None


def _written_out(graph: Graph, node: Node) -> tuple[str, Function, Value, tuple[Node, ...]] | None:
    gate = silu_sigmoid(graph, node)
    if gate is not None and gate.inputs[0] is not None and graph.is_used_once(gate.outputs[0]):
        return "SiLU", silu, gate.inputs[0], (gate,)
    return _mish(graph, node) or _gelu(graph, node)


def _mish(graph: Graph, node: Node) -> tuple[str, Function, Value, tuple[Node, ...]] | None:
    for x, other in (node.inputs, node.inputs[::-1]):
        tanh = graph.producer(other, "Tanh")
        softplus = graph.producer(tanh.inputs[0], "Softplus") if tanh is not None else None
        if tanh is None or softplus is None or x is None or softplus.inputs[0] is not x:
            continue
        if graph.is_used_once(tanh.outputs[0]) and graph.is_used_once(softplus.outputs[0]):
            return "Mish", mish, x, (softplus, tanh)
    return None


def _gelu(graph: Graph, node: Node) -> tuple[str, Function, Value, tuple[Node, ...]] | None:
    """Recognise x (1 + Erf(x / sqrt 2)) / 2 in any order of its products; `node` is the last of them."""
    factors, between, number = list[Value](), list[Node](), 1.0
    pending = [input_ for input_ in node.inputs if input_ is not None]
    erf: Node | None = None
    while pending:
        value = pending.pop()
        product, total = graph.producer(value, "Mul"), graph.producer(value, "Add")
        constant = graph.constant(value)
        if constant is not None and constant.size == 1:
            number *= float(constant.reshape(-1)[0])
            continue
        scalar = graph.split_scalar(total) if total is not None else None
        inside = graph.producer(scalar[0], "Erf") if scalar is not None and scalar[1] == 1 else None
        if total is not None and inside is not None and erf is None:
            erf = inside
            between += [total, inside]
        elif product is not None and len(between) < 8 and graph.is_used_once(value):
            between.append(product)
            pending += [input_ for input_ in product.inputs if input_ is not None]
        else:
            factors.append(value)
    if erf is None or len(factors) != 1 or not math.isclose(number, 0.5, rel_tol=1e-4):
        return None
    scaled = erf.inputs[0].producer() if erf.inputs[0] is not None else None
    found = graph.split_scalar(scaled) if scaled is not None and scaled.op_type in ("Mul", "Div") else None
    if scaled is None or found is None or found[0] is not factors[0]:
        return None
    factor = found[1] if scaled.op_type == "Mul" else 1 / found[1]
    if not math.isclose(factor, math.sqrt(0.5), rel_tol=1e-4):
        return None
    return "Gelu", gelu, factors[0], (*between, scaled)


def _maker_of(graph: Graph, x: Value) -> tuple[str, Node | None, int]:
    """Return why nothing can take a slope for each channel, what can, and the axis of the channels."""
    maker = graph.producer(x)
    if maker is None:
        return "an input of the model", None, 0
    if maker.op_type == "Add":
        product, bias = bias_of(graph, maker)
        if product is None or bias is None:
            return "an Add of two tensors makes what it reads", None, 0
        return "", maker, (graph.rank(x) or 1) - 1
    if maker.op_type not in ("Conv", "Gemm", "MatMul", "ConvTranspose") or not has_weights(graph, maker):
        return f"{maker.op_type} makes what it reads", None, 0
    if maker.op_type == "ConvTranspose" and attribute(maker, "group", 1) != 1:
        return "a grouped ConvTranspose makes what it reads", None, 0
    if maker.op_type == "Gemm" and (attribute(maker, "alpha", 1.0) != 1 or attribute(maker, "beta", 1.0) != 1):
        return "a Gemm with factors makes what it reads", None, 0
    rank = graph.rank(x) or 4
    if maker.op_type in ("MatMul", "Gemm"):
        return "", maker, rank - 1
    return "", maker, 1


def bias_of(graph: Graph, add: Node) -> tuple[Node | None, Value | None]:
    """Return the product with constant weights and the constant of an Add that is its bias; None, None otherwise."""
    for value, constant in (add.inputs, add.inputs[::-1]):
        product, bias = graph.sole_producer(value, "MatMul"), graph.constant(constant)
        if product is None or bias is None or not has_weights(graph, product):
            continue
        weight = graph.constant(product.inputs[1])
        if weight is not None and weight.ndim == 2 and bias.size in (1, weight.shape[1]) and bias.ndim <= 1:
            return product, constant
    return None, None


def scale_maker(graph: Graph, site: Site, slope: NDArray[np.float64], shift: NDArray[np.float64]) -> None:
    """Let the maker of a site's input make slope * x + shift, in place.

    Args:
        graph: The float model.
        site: One of its activations.
        slope: Shape (channels,).
        shift: Shape (channels,).
    """
    maker = site.maker
    product, biased = (maker, None) if maker.op_type != "Add" else bias_of(graph, maker)
    assert product is not None
    weight = graph.constant(product.inputs[1])
    assert weight is not None
    axis = weight_axis(product) % weight.ndim
    shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
    graph.set_input(product, 1, (weight * slope.reshape(shape)).astype(weight.dtype))
    if biased is not None:
        old, place = graph.constant(biased), list(maker.inputs).index(biased)
        assert old is not None
        graph.set_input(maker, place, (slope * old.reshape(-1) + shift).astype(np.float32))
    elif product.op_type == "MatMul":
        offset = graph.add_initializer(f"{site.name}_shift", shift.astype(np.float32))
        added = graph.insert("Add", [site.x, offset], name=f"{site.name}_shifted", after=product)
        for node in graph.consumers(site.x):
            if node is not added:
                for index, value in enumerate(node.inputs):
                    if value is site.x:
                        graph.set_input(node, index, added.outputs[0])
    else:
        old = graph.constant(product.inputs[2]) if len(product.inputs) > 2 else None
        graph.set_input(product, 2, (slope * (0 if old is None else old.reshape(-1)) + shift).astype(np.float32))
