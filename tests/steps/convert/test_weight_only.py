"""Matrices in blocks of 4 or 8 bits."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from encoders import encoder
from first_outputs import answers, signal_db
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_nets import ALL, Net, frames

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.convert import blocks
from edgeopt.steps.convert.blocks import k_quant, nearest_with_zeros, to_nearest
from edgeopt.steps.convert.weight_only import BLOCK, is_mostly_matrices, make_weight_only


def perceptron(inputs: int, outputs: int, *, again: bool = False) -> Model:
    net = Net(size=inputs, channels=1)
    weight = net.constant("w", net.chance.standard_t(4, (inputs, outputs)).astype(np.float32))
    bias = net.constant("b", net.chance.normal(0, 1, outputs).astype(np.float32))
    made = [net.op("Add", net.op("MatMul", "x", weight), bias) for _ in range(1 + again)]
    return net.model(*made, name="perceptron")


def on_the_grid(shape: tuple[int, ...]) -> np.ndarray:
    """Return whole numbers of which every block holds a 127: rounding them to 8 bits changes nothing."""
    numbers = np.random.default_rng(1).integers(-126, 127, shape).astype(np.float32)
    numbers[..., ::BLOCK] = 127
    return numbers


@pytest.mark.parametrize("rounding", [to_nearest, k_quant])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inputs", [64, 100])
def test_the_kernel_multiplies_by_what_the_integers_stand_for(bits, inputs, rounding):
    model = perceptron(inputs, 24)
    graph = Graph.from_model(model)
    weight, bias = graph.constant(graph.value("w")), graph.constant(graph.value("b"))
    real = rounding("", weight.T, bits, BLOCK).real(inputs)
    x = on_the_grid((1, 1, inputs, inputs))
    made = answers(make_weight_only(model, bits, rounding=rounding).model, [{"x": x}])[0]
    assert signal_db(made, x @ real.T + bias) > 60


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([4, 8]), st.integers(1, 70))
def test_choosing_a_range_never_costs_more_than_taking_the_largest_weight(seed, bits, inputs):
    columns = np.random.default_rng(seed).standard_t(3, (3, inputs)).astype(np.float32)
    half = 1 << (bits - 1)
    for row, kept in zip(columns, to_nearest("", columns, bits, BLOCK).real(inputs), strict=True):
        for start in range(0, inputs, BLOCK):
            block = row[start : start + BLOCK]
            step = block[np.abs(block).argmax()] / -half
            plain = np.clip(np.rint(block / step), -half, half - 1) * step
            error, of_plain = (np.square(one - block).sum() for one in (kept[start : start + BLOCK], plain))
            assert error <= of_plain * 1.001 + 1e-9


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([4, 8]))
def test_a_zero_of_its_own_keeps_more_of_weights_of_one_sign(seed, bits):
    columns = np.random.default_rng(seed).uniform(0.2, 1.0, (3, 64)).astype(np.float32)
    own, shared = (np.square(f("", columns, bits, BLOCK).real(64) - columns).sum() for f in (k_quant, to_nearest))
    assert own < 0.5 * shared


@pytest.mark.parametrize("rounding", [to_nearest, k_quant])
def test_a_column_of_zeros_stays_zero(rounding):
    made = rounding("", np.zeros((2, 64), np.float32), 4, BLOCK)
    assert np.isfinite(made.scale).all()
    assert (made.real(64) == 0).all()


@pytest.mark.parametrize(("bits", "bytes_each"), [(4, 1.9), (8, 1.2)])
def test_a_table_in_eight_bits_that_is_the_head_too_is_stored_once(bits, bytes_each):
    chance = np.random.default_rng(0)
    table = chance.standard_normal((300, 64)).astype(np.float32)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 300])
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="look"),
        helper.make_node("MatMul", ["rows", "head"], ["logits"], name="head"),
    ]
    stored = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(table.T.copy(), "head")]
    graph = helper.make_graph(nodes, "tied", [ids], [out], stored)
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), "tied")
    made = make_weight_only(model, bits, tables=True)
    assert made.changes == {f"matrices in {bits} bits": 1, "tables in blocks": 1}
    assert made.model.size_bytes < bytes_each * table.size + 1000
    head = to_nearest("", table, bits, BLOCK).real(64)
    rows = head if bits == 8 else k_quant("", table, 8, BLOCK).real(64)
    found = answers(made.model, [{"ids": np.array([3, 299, 0])}])[0]
    assert signal_db(found, rows[[3, 299, 0]] @ head.T) > 38
    assert make_weight_only(model, bits).model.op_counts["Gather"] == 1


def test_eight_bits_keep_more_than_four_and_four_are_the_smallest():
    model = encoder()
    seen = list(frames(model))
    wanted = answers(model, seen)
    four, eight = (make_weight_only(model, bits).model for bits in (4, 8))
    assert signal_db(answers(eight, seen), wanted) > signal_db(answers(four, seen), wanted) + 2
    assert four.size_bytes < eight.size_bytes < model.size_bytes / 2


def test_a_matrix_that_two_nodes_read_is_stored_once():
    once, twice = (make_weight_only(perceptron(64, 24, again=again)).model for again in (False, True))
    assert twice.op_counts["MatMulNBits"] == 2
    assert twice.size_bytes < once.size_bytes + 500


def test_a_small_matrix_stays_real():
    made = make_weight_only(ALL["residual"]())
    assert made.changes == {}
    assert made.model.op_counts["Gemm"] == 1


@pytest.mark.parametrize("name", [name for name in ALL if name != "vision_transformer"])
def test_a_convolutional_network_is_not_mostly_matrices(name):
    assert not is_mostly_matrices(Graph.from_model(ALL[name]()))


def test_a_transformer_is_mostly_matrices():
    assert is_mostly_matrices(Graph.from_model(encoder()))


@pytest.mark.parametrize("rounding", [to_nearest, nearest_with_zeros, k_quant])
def test_a_large_table_is_rounded_some_rows_at_a_time(rounding, monkeypatch):
    """The trials of a block are several times as large as its weights: those of a whole head would take gigabytes."""
    monkeypatch.setattr(blocks, "_TOGETHER", 1 << 18)
    columns = np.random.default_rng(0).standard_normal((8192, 512), dtype=np.float32)
    tracemalloc.start()
    rounding("", columns, 4, 32)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < columns.nbytes
