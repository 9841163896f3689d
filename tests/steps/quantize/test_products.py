"""Matrix products in all the ways that ONNX lets them be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_nets import HERE, Net, frames, sqnr_db

from edgeopt.graph.model import Model
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.patterns import multiplications
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant

RULES = HERE
Product = Callable[[Net, str], str]


def number(net: Net, *shape: int) -> str:
    return net.constant(f"c{len(net.weights)}", np.asarray(net.chance.normal(0, 1, shape), np.float32))


def gemm(rows: int, columns: int, *bias: int, **attributes: Any) -> Product:
    """A Gemm of 8 x 8 numbers that adds a constant of the shape `bias`."""
    return lambda net, x: net.op("Gemm", x, number(net, rows, columns), number(net, *bias), **attributes)


def matmul(*shape: int) -> Product:
    return lambda net, x: net.op("MatMul", x, number(net, *shape))


def added(*shape: int) -> Product:
    return lambda net, x: net.op("Add", net.op("MatMul", x, number(net, 8, 16)), number(net, *shape))


def both_sides(net: Net, x: str) -> str:
    w = number(net, 8, 8)
    return net.op("MatMul", net.op("Tanh", net.op("MatMul", w, x)), w)


def both_ways(net: Net, x: str) -> str:
    w = number(net, 8, 8)
    return net.op("MatMul", net.op("Tanh", net.op("Gemm", x, w, transB=1)), w)


def shared(net: Net, x: str) -> str:
    w = number(net, 8, 8)
    return net.op("Add", net.op("MatMul", x, w), w)


def of_constants(net: Net, x: str) -> str:
    return net.op("Add", net.op("MatMul", number(net, 8, 8), number(net, 8, 8)), x)


ON_INTEGERS: dict[str, tuple[tuple[int, ...], Product]] = {
    "a number a column": ((8, 8), gemm(8, 16, 16)),
    "a row": ((8, 8), gemm(8, 16, 1, 16)),
    "one number": ((8, 8), gemm(8, 16)),
    "one number in a matrix": ((8, 8), gemm(8, 16, 1, 1)),
    "weights turned": ((8, 8), gemm(16, 8, 16, transB=1)),
    "a stack of data": ((2, 4, 8), matmul(8, 16)),
    "a stack of stacks": ((2, 2, 2, 8), matmul(8, 16)),
    "a vector": ((64,), matmul(64, 16)),
    "one added to all": ((8, 8), added(1)),
    "a column added": ((8, 8), added(8, 1)),
    "weights on both sides": ((8, 8), both_sides),
    "weights that are also added": ((8, 8), shared),
}
"""Inputs of the product, and the product, which every form can have on integers."""
IN_FLOAT: dict[str, tuple[tuple[int, ...], Product]] = {
    "a matrix": ((8, 8), gemm(8, 16, 8, 16)),
    "a square matrix": ((8, 8), gemm(8, 8, 8, 8)),
    "a column": ((8, 8), gemm(8, 16, 8, 1)),
    "a column as high as wide": ((8, 8), gemm(8, 8, 8, 1)),
    "a stack of matrices": ((2, 4, 8), matmul(2, 8, 16)),
    "a stack of one": ((2, 4, 8), matmul(1, 8, 16)),
    "a stack for one matrix": ((8, 8), matmul(3, 8, 16)),
    "of constants": ((8, 8), of_constants),
}
SOMETIMES: dict[str, tuple[tuple[int, ...], Product]] = {
    "data turned": ((8, 8), gemm(8, 16, 16, transA=1)),
    "data turned, not square": ((4, 16), gemm(4, 8, 8, transA=1)),
    "data turned, a column": ((8, 8), gemm(8, 8, 8, 1, transA=1)),
    "with factors": ((8, 8), gemm(8, 16, 16, alpha=0.5, beta=2.0)),
    "with factors, all turned": ((8, 8), gemm(16, 8, 16, alpha=0.5, beta=2.0, transA=1, transB=1)),
    "weights both ways": ((8, 8), both_ways),
}
"""Q/DQ pairs write them; ONNX Runtime's integer product does not."""
ALL = {**ON_INTEGERS, **IN_FLOAT, **SOMETIMES}


def net_of(shape: tuple[int, ...], product: Product) -> Model:
    """The product between an activation and two further products."""
    net = Net(size=8, channels=1)
    x = net.op("Tanh", net.op("Reshape", "x", net.constant("shape", np.array(shape))))
    y = net.op("Tanh", product(net, x))
    graph = open_graph(net.model(y))
    columns = (graph.shape(graph.outputs[0]) or (0,))[-1]
    for _ in range(2):
        y = net.op("MatMul", net.op("Tanh", y), number(net, columns, columns))
    return net.model(y)


@pytest.mark.parametrize("name", ALL)
def test_a_product_answers_as_in_float_however_it_is_written(name: str) -> None:
    model = net_of(*ALL[name])
    findings = study(model, open_graph(model), frames(model), RULES)
    for form in Form:
        for rounding in (False, True):
            variant = replace(first_variant(form), least_db=-200).repaired(gptq=rounding)
            made = make_variant(model, findings, RULES, variant)[0].model
            assert sqnr_db(made, model) > 22, (form, rounding)


@pytest.mark.parametrize("name", [*ON_INTEGERS, *IN_FLOAT])
def test_a_product_is_on_integers_where_a_kernel_for_it_exists(name: str) -> None:
    model = net_of(*ALL[name])
    findings = study(model, open_graph(model), frames(model), RULES)
    made = make_variant(model, findings, RULES, replace(first_variant(Form.DYNAMIC), least_db=-200))[0].model
    further = 1  # of the two behind it; the last makes the answer
    assert made.op_counts["MatMulIntegerToFloat"] >= further + (name in ON_INTEGERS)
    products = made.op_counts.get("MatMul", 0) + made.op_counts.get("Gemm", 0)
    assert products == (name in IN_FLOAT) + (name == "weights on both sides")


@pytest.mark.parametrize("bias", [(64,), (1, 64), (64, 1), (64, 64)])
def test_a_matrix_in_blocks_keeps_what_is_added_to_it(bias: tuple[int, ...]) -> None:
    net = Net(size=64, channels=1)
    x = net.op("Reshape", "x", net.constant("shape", np.array([64, 64])))
    model = net.model(gemm(64, 64, *bias)(net, x))
    made = make_weight_only(model, 8, 32).model
    assert made.op_counts.get("MatMulNBits", 0) == (bias[0] != 64 or len(bias) == 1)
    assert sqnr_db(made, model) > 35


def test_the_work_of_a_stack_of_matrices_is_that_of_all_of_them() -> None:
    net = Net(size=8, channels=1)
    x = net.op("Reshape", "x", net.constant("shape", np.array([2, 4, 8])))
    graph = open_graph(net.model(matmul(2, 8, 16)(net, x)))
    assert multiplications(graph, graph.nodes("MatMul")[0]) == 2 * 4 * 8 * 16
