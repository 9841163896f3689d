"""Write matrix products on integers whose input grids are found as the model runs: no calibration, one grid a picture.

DynamicQuantizeLinear is one pass over a tensor, so what several products read is quantized once for all of them.
For convolutions the pass costs more than integers gain (0.1 to 0.5 times float's speed), so they stay as they are.
Source: ONNX DynamicQuantizeLinear-11; com.microsoft.MatMulIntegerToFloat of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from edgeopt.graph.facts.mixtures import routers
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.findings import require_finite_weights
from edgeopt.steps.quantize.formats.matmul_integer import GridTensor, place_products, plain_products
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.scheme import Scheme
from edgeopt.system.declared.target import Int8Rules


def make_dynamic(model: Model, rules: Int8Rules, left_out: Collection[str] = ()) -> Outcome:
    """Return the model with all products of constant matrices on integers, but for those that choose experts.

    Args:
        model: A float model, opset 11 or later.
        rules: How weights are stored.
        left_out: Names of products that stay as they are.

    Raises:
        UnsupportedError: If a weight is NaN or infinite.
    """
    graph = Graph.from_model(model)
    exact = routers(graph)
    products = [node for node in plain_products(graph) if node not in exact and node.name not in left_out]
    require_finite_weights(products, graph)
    changes = place_dynamic(graph, Scheme(frozenset(key(node) for node in products), {}, rules))
    return Outcome(graph.to_model(), changes)


def place_dynamic(graph: Graph, scheme: Scheme) -> Mapping[str, int]:
    """Rewrite the integer MatMul and Gemm nodes, in place; return how many. Grids of the scheme are not used.

    Args:
        graph: The float model; it is edited.
        scheme: What runs on integers; other ops stay float.
    """

    def quantized(source: Value) -> GridTensor:
        made = graph.insert("DynamicQuantizeLinear", [source], outputs=3, name=f"{source.name}_quantize")
        return GridTensor(*made.outputs)

    return place_products(graph, scheme, quantized)
