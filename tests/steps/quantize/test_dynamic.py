"""Matrix products on grids that are found as the model runs."""

from __future__ import annotations

import numpy as np
import pytest
from encoders import encoder
from first_outputs import answers, signal_db
from small_nets import ALL, HERE, Net, frames

from edgeopt.errors import UnsupportedError
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.steps.quantize.formats.matmul_integer import is_made_of_products


def product(weight: np.ndarray, *, transposed: bool = False, bias: np.ndarray | None = None) -> Model:
    """Return x -> flattened x times a matrix."""
    net = Net(size=4)
    rows = net.op("Reshape", "x", net.constant("rows", np.array([3, 16])))
    inputs = [rows, net.constant("w", weight), *([net.constant("b", bias)] if bias is not None else [])]
    return net.model(net.op("Gemm", *inputs, **({"transB": 1} if transposed else {})), name="product")


def test_a_transformer_in_dynamic_int8_gives_nearly_the_same_answers():
    model = ALL["vision_transformer"]()
    made = make_dynamic(model, HERE)
    seen = list(frames(model))
    assert made.changes == {"matrix products on integers": 13}
    assert signal_db(answers(made.model, seen), answers(model, seen)) > 18


def test_what_three_products_read_is_put_on_a_grid_once():
    counts = make_dynamic(encoder(depth=1), HERE).model.op_counts
    assert counts["MatMulIntegerToFloat"] == 7  # queries, keys, values, output, two of the perceptron, the head
    assert counts["DynamicQuantizeLinear"] == 5
    assert counts["MatMul"] == 2  # of two activations each


def test_a_transposed_matrix_and_a_bias_are_taken_along():
    chance = np.random.default_rng(0)
    weight, bias = (chance.normal(0, 1, shape).astype(np.float32) for shape in ((5, 16), (5,)))
    seen = list(frames(product(weight)))
    model = product(weight, transposed=True, bias=bias)
    made = make_dynamic(model, HERE).model
    assert "Gemm" not in made.op_counts
    assert signal_db(answers(made, seen), answers(model, seen)) > 35


def test_convolutions_stay_as_they_are():
    model = ALL["residual"]()
    made = make_dynamic(model, HERE).model
    assert made.op_counts["Conv"] == model.op_counts["Conv"]
    assert made.op_counts["DynamicQuantizeLinear"] == 1


@pytest.mark.parametrize("name", ALL)
def test_only_a_transformer_is_made_of_products(name):
    graph = Graph.from_model(ALL[name]())
    graph.infer_shapes()
    assert is_made_of_products(graph) == (name == "vision_transformer")


def test_a_weight_that_is_not_a_number_is_named():
    weight = np.full((16, 5), np.nan, np.float32)
    with pytest.raises(UnsupportedError, match="'w' holds NaN"):
        make_dynamic(product(weight), HERE)
