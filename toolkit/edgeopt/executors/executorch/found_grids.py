"""Matrix products on integers whose input grids are found as the model runs: XNNPACK's qd8.

    MatMulIntegerToFloat(DynamicQuantizeLinear(x), weights, bias)  ->  linear(dequantize(quantize(x)), weights, bias)

as torch's own quantizer writes it, which the partitioner takes for one kernel. XNNPACK finds a grid for each row of x,
where ONNX has one for the whole tensor: its numbers are at least as near to float's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.ao.quantization.fx._decomposed  # it registers the ops used below
from torch.nn import functional

from edgeopt.errors import ELSEWHERE, UnsupportedError
from edgeopt.executors._conversion.found_grids import TABLES, FoundProduct, found_product
from edgeopt.executors._torch.ops._node import Compute, Node
from edgeopt.executors._torch.plan import NodeStep
from edgeopt.graph.graph import Graph

_GRID, _PRODUCT = "DynamicQuantizeLinear", "com.microsoft.MatMulIntegerToFloat"
_LIMITS = (-128, 127)
_WEIGHT_LIMITS = (-127, 127)


def _quantize(_node: Node, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return integers, scale and zero point, in signed integers."""
    ops = torch.ops.quantized_decomposed
    scale, zero = ops.choose_qparams.tensor(x, *_LIMITS, torch.finfo(torch.float32).eps, torch.int8)
    return ops.quantize_per_tensor.tensor(x, scale, zero, *_LIMITS, torch.int8), scale, zero


def _never(node: Node, *_values: torch.Tensor) -> torch.Tensor:
    raise node.refuse("grids of its own")


OPS: dict[str, Compute] = {_GRID: _quantize, _PRODUCT: _never}
"""Products that `with_found_grids` reads; it gives each its way of computing."""


def found_products(graph: Graph) -> dict[str, FoundProduct]:
    """Return the products of a graph whose input grids are found as it runs, by the name of what each makes."""
    nodes = graph.nodes("MatMulIntegerToFloat", domain="com.microsoft")
    read = {str(node.outputs[0].name): found_product(graph, node) for node in nodes}
    return {name: product for name, product in read.items() if product is not None}


def with_found_grids(
    steps: Sequence[NodeStep],
    constants: dict[str, torch.Tensor],
    outputs: Sequence[str],
    products: Mapping[str, FoundProduct],
) -> tuple[list[NodeStep], set[str]]:
    """Return the steps with each product as one `linear`, and the names of the weights, which stay integers.

    Args:
        steps: Of the graph.
        constants: By name; weights are added as `linear` has them, output channels first.
        outputs: Of the model.
        products: As `found_products`.

    Raises:
        UnsupportedError: If another node reads the integers, or a product has a stored grid or no such weights.
    """
    integers = {name for step in steps if step.node.op == _GRID for name in step.outputs if name}
    made, weights = list[NodeStep](), set[str]()
    for step in steps:
        if step.node.op == _PRODUCT:
            step = _linear(step, products.get(step.outputs[0]), constants)
            weights.add(step.inputs[3])
        elif integers.intersection(step.inputs):
            raise _refused(step)
        made.append(step)
    if integers.intersection(outputs):
        raise _refused(next(step for step in steps if integers.intersection(step.outputs, outputs)))
    return made, weights


def _refused(step: NodeStep) -> UnsupportedError:
    return UnsupportedError(
        f"executorch is given a DynamicQuantizeLinear only with products of {TABLES}: {step.node.name!r}",
        remedy=ELSEWHERE,
    )


def _linear(step: NodeStep, product: FoundProduct | None, constants: dict[str, torch.Tensor]) -> NodeStep:
    """Return a product as a step that reads integers, their scale, their zero point, weights and a bias or nothing."""
    if product is None:
        raise _refused(step)
    turned, bias = f"weights\n{step.outputs[0]}", ""  # no name of a model breaks the line
    constants[turned] = torch.from_numpy(product.weights.T.copy())
    if product.bias is not None:
        bias = f"bias\n{step.outputs[0]}"
        constants[bias] = torch.from_numpy(product.bias.copy())
    # made before the recording begins: what is computed within it is a node, and the partitioner wants constants
    scales = torch.from_numpy(product.scale.copy())
    zeros = torch.zeros(len(product.scale), dtype=torch.int64)
    data, scale, zero = (step.inputs[place] for place in (0, 2, 4))

    def compute(
        _node: Node,
        x: torch.Tensor,
        x_scale: torch.Tensor,
        x_zero: torch.Tensor,
        held: torch.Tensor,
        added: torch.Tensor | None,
    ) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        real = ops.dequantize_per_tensor.tensor(x, x_scale, x_zero, *_LIMITS, torch.int8)
        table = ops.dequantize_per_channel.default(held, scales, zeros, 0, *_WEIGHT_LIMITS, torch.int8)
        return functional.linear(real, table, added)

    return replace(step, compute=compute, inputs=(data, scale, zero, turned, bias))
