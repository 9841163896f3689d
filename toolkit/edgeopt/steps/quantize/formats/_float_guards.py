"""Keep ONNX Runtime from quantizing the float layers of a quantized model.

Between a DequantizeLinear and a QuantizeLinear ONNX Runtime rounds the float weights of Conv, ConvTranspose and Gemm
itself, with one scale for all channels, so that a layer left in float for its speed or its accuracy loses both. It
does so only where the layer, or the Relu or Clip behind it, is read by the QuantizeLinear. A LeakyRelu in between, of
slope 1 or of slope 0 in the place of a Relu, prevents it, and is computed in the convolution's own kernel.

Source: onnxruntime, WeightBiasQuantization (pull requests 22969 and 24537; a part of the basic optimizations).
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeopt.graph.graph import Graph, Node
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.patterns import LIMITERS, SAME_GRID, has_weights, readers_through
from edgeopt.steps.quantize.scheme import absorbs

_ROUNDED_BY_ENGINE = ("Conv", "ConvTranspose", "Gemm")


def guarded_layers(graph: Graph) -> Mapping[str, int]:
    """Guard the float layers, in place; return how many, under the name that a report has for it."""
    count = guard_float_layers(graph)
    return {"float layers kept from the engine": count} if count else {}


def guard_float_layers(graph: Graph) -> int:
    """Put a LeakyRelu behind each float layer between integers, in place; return how many.

    Args:
        graph: A model with QuantizeLinear and DequantizeLinear in it, opset 13 or later.
    """
    layers = [node for node in graph.nodes(*_ROUNDED_BY_ENGINE) if has_weights(graph, node)]
    nodes = [node for node in layers if _reads_integers(graph, node) and _makes_integers(graph, node)]
    for node in nodes:
        _guard(graph, node)
    graph.remove_unused()
    return len(nodes)


def _reads_integers(graph: Graph, node: Node) -> bool:
    maker = graph.producer(node.inputs[0])
    while maker is not None and maker.op_type in SAME_GRID:
        maker = graph.producer(maker.inputs[0])
    return maker is not None and maker.op_type == "DequantizeLinear"


def _limiter(graph: Graph, node: Node) -> Node | None:
    reader = graph.sole_consumer(node.outputs[0])
    return reader if reader is not None and reader.op_type in LIMITERS else None


def _makes_integers(graph: Graph, node: Node) -> bool:
    """Whether a QuantizeLinear reads what a layer makes, or what its Relu or Clip does."""
    made = (_limiter(graph, node) or node).outputs[0]
    return any(reader.op_type == "QuantizeLinear" for reader in readers_through(graph, made, SAME_GRID))


def _guard(graph: Graph, node: Node) -> None:
    limiter = _limiter(graph, node)
    gone = limiter is not None and (limiter.op_type == "Relu" or _is_saturated(graph, limiter))
    slope = 0.0 if limiter is not None and limiter.op_type == "Relu" else 1.0
    replaced = limiter.outputs[0] if limiter is not None and gone else node.outputs[0]
    guard = graph.insert("LeakyRelu", [node.outputs[0]], {"alpha": slope}, after=node, name=f"{node.name}_guard")
    for reader in graph.consumers(replaced):
        for i, value in enumerate(reader.inputs):
            if value is replaced and reader is not guard:
                graph.set_input(reader, i, guard.outputs[0])


def _is_saturated(graph: Graph, limiter: Node) -> bool:
    """Whether all that reads a Relu or Clip is integers that end where it does."""
    if graph.is_output(limiter.outputs[0]):
        return False
    grids = [_grid(graph, node) for node in readers_through(graph, limiter.outputs[0], SAME_GRID)]
    return all(grid is not None and absorbs(graph, limiter, grid) for grid in grids)


def _grid(graph: Graph, node: Node) -> Affine | None:
    """Return the grid of a QuantizeLinear, None of another op."""
    if node.op_type != "QuantizeLinear":
        return None
    scale, zero = (graph.constant(value) for value in (*node.inputs[1:3], None)[:2])
    if scale is None or zero is None or scale.size != 1:
        return None
    return Affine(float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]), str(zero.dtype))
