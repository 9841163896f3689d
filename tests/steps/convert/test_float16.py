"""A model in float16, with float32 where 16 bits do not reach."""

from __future__ import annotations

import numpy as np
import pytest
from encoders import encoder
from first_outputs import answers, signal_db
from small_nets import ALL, Net, frames

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.convert.float16 import as_float16, make_float16

NETS = {**ALL, "encoder": encoder}
FP16 = SessionOptions(precision="fp16")


def loud(loudness: float) -> Model:
    """Return a net whose second convolution makes numbers of about `loudness`, and whose third takes them back."""
    net = Net(size=8)
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    made = net.conv(x, 8, 8)
    large = net.op("Mul", made, net.constant("loudness", np.float32(loudness)))
    again = net.op("Mul", net.op("Relu", large), net.constant("quietness", np.float32(1 / loudness)))
    return net.model(net.conv(again, 8, 4), name="loud")


@pytest.mark.parametrize("name", NETS)
def test_half_the_size_gives_the_same_answers_and_casts_only_at_the_ends(name):
    model = NETS[name]()
    seen = list(frames(model, 2))
    made = make_float16(model, seen)
    require_valid(made.model.proto, name)
    assert (made.model.inputs, made.model.outputs) == (model.inputs, model.outputs)
    assert made.model.op_counts["Cast"] == 2
    assert made.model.size_bytes < 0.7 * model.size_bytes
    assert signal_db(answers(made.model, seen), answers(model, seen)) > 50


def test_what_exceeds_float16_stays_float32_with_its_neighbours():
    model = loud(1e6)
    seen = list(frames(model, 2))
    made = make_float16(model, seen)
    graph = Graph.from_model(made.model)
    kinds = [(node.op_type, str(graph.dtype(node.outputs[0]))) for node in graph.nodes("Mul", "Relu")]
    assert kinds == [("Relu", "float16"), ("Mul", "float32"), ("Relu", "float32"), ("Mul", "float32")]
    assert made.model.op_counts["Cast"] == 4  # at both ends, into the loud part and out of it
    assert "3 nodes in float32" in made.notes[0].detail
    assert signal_db(answers(made.model, seen), answers(model, seen)) > 50


def test_a_quiet_model_has_nothing_in_float32():
    model = loud(10.0)
    made = make_float16(model, list(frames(model, 2)))
    assert made.notes == ()
    assert made.changes["nodes in float16"] == len(model.proto.graph.node)


def test_blocked_ops_read_and_make_float32_and_pass_it_on_uncast():
    net = Net(size=8)
    x = net.op("Relu", net.conv("x", 3, 4))
    first = net.op("Max", x, net.constant("least", np.float32(0.5)))
    both = net.op("Add", net.op("Min", first, net.constant("most", np.float32(2))), x)
    model = net.model(both, first, name="blocked")
    seen = list(frames(model, 2))
    made = make_float16(model, seen).model
    graph = Graph.from_model(made)
    assert {str(graph.dtype(node.outputs[0])) for node in graph.nodes("Max", "Min")} == {"float32"}
    assert made.op_counts["Cast"] == 4  # of the input, behind Relu, behind Min, of the sum; none between Max and Min
    assert signal_db(answers(made, seen), answers(model, seen)) > 50


def test_scales_of_a_resize_stay_float32():
    net = Net(size=8)
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    model = net.model(net.op("Resize", net.conv("x", 3, 4), "", scales, mode="nearest"), name="resize")
    seen = list(frames(model, 2))
    made = make_float16(model, seen).model
    resize = Graph.from_model(made).nodes("Resize")[0]
    assert Graph.from_model(made).constant(resize.inputs[2]) is not None
    assert signal_db(answers(made, seen), answers(model, seen)) > 50


def test_a_tiny_divisor_does_not_become_zero():
    numbers = as_float16(np.array([1e-12, -1e-12, 0.0, 1.0], np.float32))
    assert numbers[0] > 0 > numbers[1]
    assert numbers[2:].tolist() == [0.0, 1.0]


def test_onnx_runtime_runs_fp16_only_where_the_model_was_converted():
    model = loud(10.0)
    with pytest.raises(UnsupportedError, match="the model's own types"):
        EXECUTOR.open(model.data, FP16)
    EXECUTOR.open(make_float16(model, list(frames(model, 1))).model.data, FP16).close()
