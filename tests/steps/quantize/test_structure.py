from __future__ import annotations

import numpy as np
import pytest
from small_nets import Net, detector, residual, u_net

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.activations import hard_swish, relu, sigmoid, silu
from edgeopt.steps.quantize.api import open_graph
from edgeopt.steps.quantize.patterns import (
    channel_axis,
    following_activation,
    has_weights,
    head_tail,
    limits,
    multiplications,
    predictions,
    reads_along,
    weight_axis,
)


def names(nodes: object) -> list[str]:
    return sorted(node.op_type for node in nodes)


def test_a_detector_keeps_its_prediction_layers_and_all_behind_them() -> None:
    assert names(head_tail(open_graph(detector()))) == sorted(
        ["Conv"] * 4 + ["Sigmoid"] * 2 + ["Concat"] * 3 + ["Reshape"] * 2 + ["Transpose"]
    )


def test_a_classifier_keeps_only_what_follows_its_last_layer() -> None:
    graph = open_graph(residual())
    assert names(predictions(graph)) == ["Conv", "Gemm"]  # so small a Gemm computes no features
    assert names(head_tail(graph)) == ["Flatten", "GlobalAveragePool", "Relu"]


def test_a_tiny_convolution_in_a_decoder_does_not_hide_the_prediction_layers() -> None:
    net = Net(size=64)
    x = net.op("Relu", net.conv("x", 3, 64, 3))
    x = net.op("Relu", net.conv(x, 64, 64, 3))
    shares = net.op("Softmax", net.conv(x, 64, 16), axis=1)
    distance = net.conv(net.op("MaxPool", shares, kernel_shape=[8, 8], strides=[8, 8]), 16, 1)
    scores = net.conv(x, 64, 5)
    graph = open_graph(net.model(distance, scores))
    assert len(predictions(graph)) == 3
    assert sum(node.op_type == "Conv" for node in head_tail(graph)) == 3


@pytest.mark.parametrize(
    ("op", "attributes", "function"),
    [("Relu", {}, relu), ("Sigmoid", {}, sigmoid), ("HardSwish", {}, hard_swish)],
)
def test_the_only_reader_of_a_tensor_is_its_activation(op: str, attributes: dict, function: object) -> None:
    net = Net()
    made = net.conv("x", 3, 4)
    graph = open_graph(net.model(net.op(op, made, **attributes)))
    assert following_activation(graph, graph.value(made)) is function


def test_silu_is_seen_behind_its_two_readers() -> None:
    net = Net()
    made = net.conv("x", 3, 4)
    graph = open_graph(net.model(net.silu(made)))
    assert following_activation(graph, graph.value(made)) is silu


def test_a_tensor_that_is_also_an_output_has_no_activation_behind_it() -> None:
    net = Net()
    made = net.conv("x", 3, 4)
    graph = open_graph(net.model(net.op("Relu", made), made))
    assert following_activation(graph, graph.value(made)) is None


@pytest.mark.parametrize(("op", "alpha"), [("LeakyRelu", 0.3), ("HardSigmoid", 0.1)])
def test_an_activation_with_attributes_is_the_function_that_onnx_says(op: str, alpha: float) -> None:
    net = Net()
    made = net.conv("x", 3, 4)
    graph = open_graph(net.model(net.op(op, made, alpha=alpha)))
    function = following_activation(graph, graph.value(made))
    values = np.linspace(-3, 3, 7)
    expected = (
        np.where(values < 0, alpha * values, values) if op == "LeakyRelu" else np.clip(alpha * values + 0.5, 0, 1)
    )
    np.testing.assert_allclose(function(values), expected)


def test_clip_limits_are_read_and_a_missing_one_is_no_limit() -> None:
    net = Net()
    high = net.op("Clip", net.conv("x", 3, 4), "", net.constant("six", np.float32(6)))
    node = open_graph(net.model(high)).nodes("Clip")[0]
    assert limits(open_graph(net.model(high)), node) == (-np.inf, 6.0)


def test_a_convolution_with_dynamic_weights_has_none() -> None:
    net = Net(channels=4, size=4)
    dynamic = net.op("Conv", "x", net.op("Relu", net.constant("w", np.ones((4, 4, 1, 1), np.float32))))
    graph = open_graph(net.model(dynamic))
    assert not has_weights(graph, graph.nodes("Conv")[0])


def test_axes_and_work_follow_the_op() -> None:
    graph: Graph = open_graph(u_net())
    up = graph.nodes("ConvTranspose")[0]
    assert (weight_axis(up), multiplications(graph, up)) == (1, 16 * 16 * 32 * 16 * 4)
    first = graph.nodes("Conv")[0]
    assert (weight_axis(first), multiplications(graph, first)) == (0, 32 * 32 * 16 * 27)


def test_channels_are_last_where_matrices_are_multiplied() -> None:
    graph = open_graph(residual())
    gemm = graph.nodes("Gemm")[0]
    assert channel_axis(graph, gemm.inputs[0]) == -1
    assert channel_axis(graph, graph.inputs[0]) == 1


def between(maker: str, *readers: str, channels: int = 8, places: int = 8) -> Graph:
    """A tensor of three dimensions between convolutions, which sum over channels, and products, over places."""
    net = Net(size=8, channels=channels * places // 64)
    x = net.op("Reshape", "x", net.constant("shape", np.array([1, channels, places])))
    net.constant("kernel", net.chance.normal(0, 0.3, (channels, channels, 3)).astype(np.float32))
    net.constant("matrix", net.chance.normal(0, 0.3, (places, places)).astype(np.float32))

    def layer(op: str, x: str) -> str:
        return net.op("Conv", x, "kernel", pads=[1, 1]) if op == "Conv" else net.op("MatMul", x, "matrix")

    middle = net.op("Relu", layer(maker, x))
    made = [layer(reader, middle) for reader in readers]
    return open_graph(net.model(*made))


@pytest.mark.parametrize(
    ("maker", "readers", "axis"),
    [
        ("MatMul", ["Conv"], 1),
        ("Conv", ["MatMul"], -1),
        ("MatMul", ["MatMul"], -1),
        ("Conv", ["Conv", "MatMul"], 1),
        ("Conv", ["MatMul", "Conv"], -1),
    ],
)
def test_channels_are_where_the_first_layer_that_reads_them_sums(maker: str, readers: list[str], axis: int) -> None:
    graph = between(maker, *readers)
    value = graph.nodes("Relu")[0].outputs[0]
    assert channel_axis(graph, value) == axis
    for node in graph.consumers(value):
        assert reads_along(graph, node, axis) == ((node.op_type == "Conv") == (axis == 1))


def test_an_axis_counted_from_the_end_is_the_same_axis() -> None:
    graph = between("Conv", "Conv")
    reader = graph.nodes("Conv")[1]
    assert reads_along(graph, reader, 1)
    assert reads_along(graph, reader, -2)
    assert not reads_along(graph, reader, -1)
    assert not reads_along(graph, reader, 2)


def test_the_first_matrix_of_a_product_that_turns_it_is_summed_over_its_rows() -> None:
    net = Net(size=8, channels=1)
    x = net.op("Relu", net.op("Reshape", "x", net.constant("shape", np.array([4, 16]))))
    w = net.constant("w", net.chance.normal(0, 0.3, (4, 8)).astype(np.float32))
    graph = open_graph(net.model(net.op("Gemm", x, w, transA=1)))
    assert channel_axis(graph, graph.value(x)) == 0


def test_reading_a_graph_leaves_the_model_as_it_was() -> None:
    model: Model = detector()
    before = model.fingerprint
    head_tail(open_graph(model))
    assert Model(model.proto, "again").fingerprint == before
