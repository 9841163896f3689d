"""Wide layers of neurons in parts: the same numbers, and narrower tensors between the products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from first_outputs import signal_db
from onnx import TensorProto, helper, numpy_helper

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.graph.model import Model, load_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.neuron_parts import split_neurons
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

TINY = Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx"
TOKENS = np.random.default_rng(0).integers(1, 1000, 60).tolist()


def logits(model: Model) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(threads=1))
    return Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True).run(TOKENS)


def perceptron(*, is_read: bool = False) -> Model:
    """Return 8 -> 100 -> 8 with biases and GELU; its neurons may be an output too."""
    chance = np.random.default_rng(1)
    stored = {"a": (8, 100), "b": (100,), "c": (100, 8), "d": (8,)}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["before"]),
        helper.make_node("Gelu", ["before"], ["neurons"], approximate="tanh"),
        helper.make_node("MatMul", ["neurons", "c"], ["back"]),
        helper.make_node("Add", ["back", "d"], ["y"]),
    ]
    sizes = {"y": 8, "neurons": 100} if is_read else {"y": 8}
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "rows", 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "rows", size]) for name, size in sizes.items()],
        [numpy_helper.from_array(chance.standard_normal(n).astype(np.float32), name) for name, n in stored.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return Model(made, "perceptron")


def test_a_decoder_in_parts_gives_the_same_logits():
    model = load_model(TINY)
    parts = split_neurons(model, 128)
    assert parts.changes == {"layers in parts": 4}
    widest = max(
        one.dims[-1] for one in parts.model.proto.graph.initializer if len(one.dims) == 2 and one.dims[0] == 128
    )
    assert widest <= 1024, "the head"
    np.testing.assert_allclose(logits(parts.model), logits(model), atol=1e-4)
    assert split_neurons(parts.model, 128).changes == {}


def test_rounded_activations_lose_no_more_in_parts():
    model, rules = load_model(TINY), find_device("cpu").rules_here
    expected = logits(model)
    whole, parts = (make_dynamic(one, rules).model for one in (model, split_neurons(model, 128).model))
    assert signal_db(logits(parts), expected) > signal_db(logits(whole), expected) - 0.5


@pytest.mark.parametrize("width", [64, 99])
def test_biases_and_widths_that_do_not_divide_evenly(width):
    model = perceptron()
    made = split_neurons(model, width)
    assert made.changes == {"layers in parts": 1}
    onnx.checker.check_model(made.model.proto)
    x = np.random.default_rng(2).standard_normal((1, 5, 8)).astype(np.float32)
    found, expected = (EXECUTOR.open(one.data, SessionOptions()).run({"x": x})["y"] for one in (made.model, model))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_neurons_that_others_read_and_narrow_layers_stay_whole():
    assert split_neurons(perceptron(is_read=True), 64).changes == {}
    assert split_neurons(perceptron(), 100).changes == {}
    assert split_neurons(load_model(TINY)).changes == {}


def test_a_layer_that_is_not_many_times_as_wide_as_what_it_reads_stays_whole():
    assert split_neurons(perceptron(), 64, 13).changes == {}
    assert split_neurons(perceptron(), 64, 12).changes == {"layers in parts": 1}
