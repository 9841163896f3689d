"""Weights that OpenVINO holds once: those in blocks stay in their file, those in 16 bits stay in 16 bits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.executors.openvino.memory import held_bytes
from edgeopt.executors.openvino.short_weights import keep_short
from edgeopt.executors.openvino.weights_in_file import WeightsInFile
from edgeopt.graph.facts.constants import Constant, constants_of
from edgeopt.system.machine.processor import cpu_architecture

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
_INPUTS, _OUTPUTS, _BLOCK = 256, 512, 64


@pytest.fixture(params=["beside", "inside"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A product with weights in blocks, in a file beside the graph or in its own."""
    rng, blocks = np.random.default_rng(3), _INPUTS // _BLOCK
    weights = rng.integers(0, 256, (_OUTPUTS, blocks, _BLOCK), np.uint8)
    scales = rng.uniform(0.001, 0.01, (_OUTPUTS, blocks)).astype(np.float32)
    facts = {"K": _INPUTS, "N": _OUTPUTS, "bits": 8, "block_size": _BLOCK, "domain": "com.microsoft"}
    graph = helper.make_graph(
        [helper.make_node("MatMulNBits", ["x", "weights", "scales"], ["y"], **facts)],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None, _INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, _OUTPUTS])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "model.onnx"
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    is_beside = request.param == "beside"
    onnx.save(model, path, save_as_external_data=is_beside, location="weights.bin", size_threshold=1024)
    return path


def read(file: Path):
    import openvino

    return openvino, openvino.Core().read_model(str(file))


def weights_of(model) -> np.ndarray:
    return next(node.data for node in model.get_ordered_ops() if node.get_friendly_name() == "weights")


def answer(openvino, model, hint: str = "f32") -> np.ndarray:
    x = np.random.default_rng(5).normal(size=(1, 7, _INPUTS)).astype(np.float32)
    return openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})([x])[0].copy()


def rss_kib(file: Path) -> int:
    """Return how much of a mapped file this process holds."""
    held, is_of_file = 0, False
    for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
        if "-" in line.split()[0]:
            is_of_file = line.endswith(str(file.resolve()))
        elif is_of_file and line.startswith("Rss:"):
            held += int(line.split()[1])
    return held


def test_weights_stay_in_their_file_and_no_number_changes(file):
    openvino, model = read(file)
    wanted = answer(openvino, model)
    stored = WeightsInFile(file)
    stored.put_in(openvino, model)
    (mapped,) = stored._mapped.values()
    assert np.shares_memory(weights_of(model), mapped)
    np.testing.assert_array_equal(answer(openvino, model), wanted)
    for tokens in (7, 7, 1):
        stored.ran(tokens)
        if sys.platform.startswith("linux"):
            assert rss_kib(next(iter(stored._mapped))) == 0
    np.testing.assert_array_equal(answer(openvino, model), wanted)


def moved(file: Path) -> Constant:
    """Return the weights a byte away from where they lie."""
    stored = next(each for each in constants_of(file) if each.name == "weights")
    return replace(stored, offset=stored.offset + 1)


def test_weights_that_the_reader_changed_stay_as_it_made_them(file, monkeypatch):
    openvino, model = read(file)
    wanted = weights_of(model).copy()
    stored = WeightsInFile(file)
    monkeypatch.setattr("edgeopt.executors.openvino.weights_in_file.constants_of", lambda _: [moved(file)])
    stored.put_in(openvino, model)
    np.testing.assert_array_equal(weights_of(model), wanted)


@pytest.mark.parametrize("hint", ["f32", "bf16"])
def test_weights_of_products_in_bfloat16_are_not_widened_and_no_number_changes(hint, tmp_path):
    import openvino

    if hint == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor does not compute in bfloat16")
    file = tmp_path / "model.onnx"
    floats = np.random.default_rng(3).normal(size=(_INPUTS, _OUTPUTS)).astype(np.float32)
    short = (floats.view(np.uint32) >> 16).astype(np.uint16)
    stored = {
        "bf16": (TensorProto.BFLOAT16, floats.shape, short),
        "f16": (TensorProto.FLOAT16, floats.shape, floats.astype(np.float16)),
        "bias": (TensorProto.BFLOAT16, floats.shape[1:], short[0]),
    }
    graph = helper.make_graph(
        [helper.make_node("Cast", [name], [f"{name}_floats"], to=TensorProto.FLOAT) for name in stored]
        + [helper.make_node("MatMul", ["x", f"{name}_floats"], [f"{name}_y"]) for name in ("bf16", "f16")]
        + [helper.make_node("Sum", ["bf16_y", "f16_y", "bias_floats"], ["y"])],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None, _INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, _OUTPUTS])],
        [
            helper.make_tensor(name, kind, shape, made.tobytes(), raw=True)
            for name, (kind, shape, made) in stored.items()
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    openvino, model = read(file)
    wanted = answer(openvino, model, hint)
    keep_short(openvino, model)
    marked = {
        node.input_value(0).get_node().get_friendly_name()
        for node in model.get_ops()
        if node.get_type_name() == "Convert" and [*node.get_rt_info()] == ["decompression_0"]
    }
    assert marked == {"bf16"}
    np.testing.assert_array_equal(answer(openvino, model, hint), wanted)


def test_what_is_held_is_foreseen_by_types_and_readers(tmp_path):
    """A table stays in the file, weights of products are packed once; all that lies inside is read twice."""
    kinds = {"table": TensorProto.BFLOAT16, "short": TensorProto.BFLOAT16, "whole": TensorProto.FLOAT}
    kinds["half"] = TensorProto.FLOAT16
    sizes = {"table": 2, "short": 2, "whole": 4, "half": 2}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Cast", ["rows"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["short"], ["short_floats"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["x", "short_floats"], ["z"]),
            helper.make_node("Cast", ["half"], ["half_floats"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["z", "whole"], ["v"]),
            helper.make_node("MatMul", ["v", "half_floats"], ["y"]),
        ],
        "products",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, _BLOCK])],
        [
            helper.make_tensor(name, kind, [_BLOCK, _BLOCK], bytes(_BLOCK * _BLOCK * sizes[name]), raw=True)
            for name, kind in kinds.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    beside, inside, count = tmp_path / "beside.onnx", tmp_path / "inside.onnx", _BLOCK * _BLOCK
    onnx.save(model, inside)
    onnx.save(model, beside, save_as_external_data=True, location="w.bin", size_threshold=1024)
    packed, stored = 0 + 2 + 4 + 3 * 2, 2 + 2 + 4 + 2
    assert held_bytes(beside, is_alone=False) == packed * count
    assert held_bytes(beside, is_alone=True) == (packed - stored) * count
    assert held_bytes(inside, is_alone=True) == stored * count


@pytest.mark.skipif(cpu_architecture() != "x86-64", reason="this processor does not read numbers at any place")
@pytest.mark.parametrize("pad", ["", "a"])  # three bytes before the graph: one of both lies at an odd place
def test_weights_inside_a_graph_stay_there_wherever_they_lie(pad, tmp_path):
    file, shape = tmp_path / "model.onnx", [_INPUTS, _OUTPUTS]
    short = np.random.default_rng(3).normal(size=shape).astype(np.float32).view(np.uint32) >> 16
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["weights"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["x", "floats"], ["y"]),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None, _INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, _OUTPUTS])],
        [helper.make_tensor("weights", TensorProto.BFLOAT16, shape, short.astype(np.uint16).tobytes(), raw=True)],
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, doc_string=pad), file)
    openvino, model = read(file)
    wanted = answer(openvino, model)
    stored = WeightsInFile(file)
    stored.put_in(openvino, model)
    assert [*stored._mapped] == [file]
    np.testing.assert_array_equal(answer(openvino, model), wanted)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lists what is mapped")
def test_the_processor_needs_no_library_of_other_devices():
    code = (
        "from pathlib import Path\n"
        "from edgeopt.executors.openvino import EXECUTOR\n"
        "assert EXECUTOR.why_unavailable() is None\n"
        "assert EXECUTOR.why_no_provider(('CPU',)) is None\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "assert 'libopenvino.so' in maps and 'intel_gpu' not in maps\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
