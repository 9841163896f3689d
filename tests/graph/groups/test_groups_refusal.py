"""Models from which no channels can be taken: one error each, with what to do."""

import numpy as np
import onnx
import pytest
from channel_nets import chain, net, numbers
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.graph.groups import require_prunable
from edgeopt.graph.model import Model


def told(one: Model) -> tuple[str, str]:
    with pytest.raises(EdgeoptError) as error:
        require_prunable(one)
    return error.value.problem, error.value.remedy


def test_a_float_model_is_taken():
    require_prunable(chain())
    require_prunable(net("y = MatMul(x, w)", "float[N,T,2] y", inputs="float[N,T,6] x", w=numbers(6, 2)))


def test_a_quantized_model_is_pruned_first():
    quantized = net(
        "q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) y = Conv(d, w)",
        "float[1,2,8,8] y",
        s=np.array(1, np.float32),
        w=numbers(2, 3, 1, 1),
    )
    problem, remedy = told(quantized)
    assert problem == "net is quantized already: QuantizeLinear 'q'"
    assert remedy.startswith("prune the float model first")


def test_weights_in_float16_are_not_pruned():
    half = net("y = MatMul(x, w)", "float16[1,2] y", inputs="float16[1,6] x", w=numbers(6, 2).astype(np.float16))
    problem, remedy = told(half)
    assert problem == "net has weights in float16 (w), and layers are timed and repaired in float32"
    assert remedy.startswith("prune the float32 model")


def test_an_old_opset_is_raised_first():
    problem, remedy = told(net("y = Relu(x)", "float[1,3,8,8] y", opset=6))
    assert problem == "net is of opset 6: channels are followed from opset 7"
    assert remedy.startswith("let the step simplify raise it")


def test_the_number_of_channels_must_be_fixed():
    free = net("y = Relu(x)", "float[1,C,8,8] y", inputs="float[1,C,8,8] x")
    problem, remedy = told(free)
    assert problem == "net: the number of channels of input 'x' is not fixed"
    assert "--shape x=1x3x8x8" in remedy


def test_weights_that_stay_in_files_are_not_pruned():
    outside = onnx.ModelProto()
    outside.CopyFrom(chain().proto)
    tensor = numpy_helper.from_array(numbers(6), "b0")
    onnx.external_data_helper.set_external_data(tensor, "weights.bin")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    next(one for one in outside.graph.initializer if one.name == "b0").CopyFrom(tensor)
    problem, remedy = told(Model(outside, "net"))
    assert problem == "net has more than 2 GB: b0 stay in files, and pruning holds all weights"
    assert remedy == "prune a smaller form of it"
