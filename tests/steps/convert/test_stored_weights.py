"""Weights stored in 8 bits: within half a step of each channel, computed in float, the rest untouched."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.steps.convert.precisions import store_weights

CHANCE = np.random.default_rng(0)
WEIGHTS = {
    "conv": CHANCE.standard_normal((32, 6, 3, 3)).astype(np.float32),
    "up": CHANCE.standard_normal((32, 16, 2, 2)).astype(np.float32),
    "gemm": CHANCE.standard_normal((16, 64)).astype(np.float32),
    "columns": CHANCE.standard_normal((16, 80)).astype(np.float32),
    "small": CHANCE.standard_normal((80, 3)).astype(np.float32),
}
NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,6,8,8] x) => (float[1,3] y) {
  a = Conv<pads = [1,1,1,1]>(x, conv)
  b = ConvTranspose<strides = [2,2]>(a, up)
  c = GlobalAveragePool(b)
  d = Flatten(c)
  e = Gemm(d, gemm)
  f = Slice(e, zero, sixteen, axis)
  g = MatMul(f, columns)
  y = MatMul(g, small)
}"""


def net(**changed: np.ndarray) -> Model:
    proto = parser.parse_model(NET)
    places = {"zero": np.array([0]), "sixteen": np.array([16]), "axis": np.array([1])}
    tensors = {**WEIGHTS, **places, **changed}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in tensors.items())
    return Model(proto, "net")


def test_each_channel_is_within_half_a_step_and_small_layers_stay():
    outcome = store_weights(net())
    assert outcome.changes == {"weights stored in 8 bits": 4}
    stored = {one.name: numpy_helper.to_array(one) for one in outcome.model.proto.graph.initializer}
    assert stored["small"].dtype == np.float32
    axes = {"conv": 0, "up": 1, "gemm": 1, "columns": 1}
    for name, axis in axes.items():
        integers, scale = stored[f"{name}_quantized"], stored[f"{name}_scale"]
        assert integers.dtype == np.int8
        assert scale.shape == (WEIGHTS[name].shape[axis],)
        along = scale.reshape([-1 if i == axis else 1 for i in range(integers.ndim)])
        assert np.all(np.abs(integers * along - WEIGHTS[name]) <= along / 2 * (1 + 1e-5))
        assert name not in stored
    assert not [node for node in outcome.model.proto.graph.node if node.op_type == "QuantizeLinear"]
    onnx.checker.check_model(outcome.model.proto)


def test_a_session_with_its_options_computes_in_float():
    outcome, inputs = store_weights(net()), {"x": CHANCE.standard_normal((1, 6, 8, 8)).astype(np.float32)}
    wanted = EXECUTOR.open(net().data, SessionOptions()).run(inputs)["y"]
    for entries in (outcome.options, {}):
        result = EXECUTOR.open(outcome.model.data, SessionOptions(entries=entries)).run(inputs)["y"]
        np.testing.assert_allclose(result, wanted, atol=0.1 * np.abs(wanted).max())
    assert outcome.model.size_bytes < 0.4 * net().size_bytes


def test_what_is_no_number_is_refused():
    spoiled = WEIGHTS["conv"].copy()
    spoiled[0, 0, 0, 0] = np.nan
    with pytest.raises(UnsupportedError):
        store_weights(net(conv=spoiled))
