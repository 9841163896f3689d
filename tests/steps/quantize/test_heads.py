"""Prediction layers may read integers where ONNX Runtime's own ops write floats; decoders never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_nets import Net, detector, frames, sqnr_db

from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.search.choose import feature_readers
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules()


def in_nhwc(model: Model, **changes: object) -> Outcome:
    findings = study(model, open_graph(model), frames(model), RULES)
    return make_variant(model, findings, RULES, replace(first_variant(Form.NHWC), **changes))[0]


def float_convolutions(outcome: Outcome) -> set[str]:
    return {node.output[0] for node in outcome.model.proto.graph.node if node.op_type == "Conv"}


def two_heads(activation: str, spread: float) -> tuple[Model, str, list[str]]:
    """Two prediction layers that read channels of different size, and make them alike."""
    net = Net(size=64)
    x = net.conv(net.silu(net.conv("x", 3, 16, 3, stride=2)), 16, 32, 3)
    factors = np.geomspace(1 / spread, spread, 32, dtype=np.float32)
    weight, bias = [*net.weights][-2:]
    net.weights[weight] = net.weights[weight] * factors.reshape(-1, 1, 1, 1)
    net.weights[bias] = net.weights[bias] * factors
    features, heads = net.op(activation, x), []
    for out in (4, 5):
        heads.append(net.conv(features, 32, out))
        net.weights[[*net.weights][-2]] /= factors.reshape(1, -1, 1, 1)
    return net.model(*heads), features, heads


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu"])
def test_prediction_layers_read_no_integers_that_one_grid_cannot_hold(activation: str) -> None:
    model, features, heads = two_heads(activation, 200)
    made = in_nhwc(model)
    assert sqnr_db(made.model, model) > 25
    assert float_convolutions(made) >= set(heads)
    said = " ".join(note.detail for note in made.notes)
    assert "INT8 covers 1 of 4 weighted layers" in said
    assert "the outputs of 2 prediction layers stay in float" in said
    assert repr(features) in said


def test_prediction_layers_read_integers_unless_what_they_read_is_kept_or_float_is_faster() -> None:
    model, features, heads = two_heads("LeakyRelu", 1)
    made = in_nhwc(model)
    assert float_convolutions(made) == set()
    assert "INT8 covers 4 of 4 weighted layers" in made.notes[0].detail
    assert float_convolutions(in_nhwc(model, kept=frozenset({features}))) >= set(heads)
    fast = in_nhwc(model, front=frozenset(heads[:1]))
    assert float_convolutions(fast) == {heads[0]}
    assert any("1 layer stays in float because integers are slower" in note.detail for note in fast.notes)


def distances(net: Net, x: str, fan: int) -> tuple[str, str]:
    """The expected distance of distribution focal loss: a prediction layer, and the convolution that decodes it."""
    boxes = net.conv(x, fan, 64)
    apart = net.op("Reshape", boxes, net.constant("apart", np.array([1, 4, 16, -1])))
    shares = net.op("Softmax", net.op("Transpose", apart, perm=[0, 2, 1, 3]), axis=1)
    weight = net.constant("distances", np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    return boxes, net.op("Conv", shares, weight, kernel_shape=[1, 1])


def test_the_convolution_of_a_decoder_reads_real_numbers() -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.op("Relu", net.conv("x", 3, 32, 3)), 32, 32, 3))
    scores = net.conv(net.op("Relu", net.conv(x, 32, 32, 3)), 32, 20)
    _, decoded = distances(net, x, 32)
    model = net.model(decoded, scores)
    assert {key(node) for node in feature_readers(open_graph(model))} == {scores}  # so small a net's decoder counts
    made = in_nhwc(model)
    assert float_convolutions(made) == {decoded}
    assert sqnr_db(made.model, model) > 18


def test_predictions_too_small_to_count_as_features_read_features_all_the_same() -> None:
    net = Net(size=64)
    x = net.silu(net.conv("x", 3, 128, 3))
    fine = net.conv(x, 128, 5)
    tower = net.op("MaxPool", net.silu(net.conv(x, 128, 128, 3)), kernel_shape=[16, 16], strides=[16, 16])
    tower = net.silu(net.conv(tower, 128, 128, 3))
    small = net.conv(net.silu(net.conv(tower, 128, 128)), 128, 4)
    decoder = net.op("Slice", small, *(net.constant(f"at{i}", np.array([n])) for i, n in enumerate((0, 2, 1))))
    decoded = net.conv(decoder, 2, 2)
    found = {key(node) for node in feature_readers(open_graph(net.model(fine, decoded)))}
    assert {fine, small} <= found
    assert decoded not in found


def test_a_single_prediction_layer_is_no_head() -> None:
    net = Net()
    assert feature_readers(open_graph(net.model(net.conv(net.op("Relu", net.conv("x", 3, 16, 3)), 16, 8)))) == set()
    assert len(feature_readers(open_graph(detector()))) == 4
