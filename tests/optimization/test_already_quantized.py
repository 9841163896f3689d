"""Models that are quantized already, by whatever tool: recognised, told, and never quantized twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from edgeopt.cli import cli
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.facts.integers import IntegerKind, Integers, read_integers
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.optimization.one_step.quantize import quantize
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.run import Silence
from edgeopt.steps.simplify import simplify

SHAPE = (1, 8, 12, 12)


def small_net() -> Model:
    """Two convolutions and two products, the last of two tensors that are both made."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        small (float[1, 8, 12, 12] x) => (float[1, 10] y) {
            a = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w0)
            b = Relu(a)
            c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(b, w1)
            d = GlobalAveragePool(c)
            e = Flatten(d)
            y = MatMul(e, w2)
        }"""
    )
    chance = np.random.default_rng(0)
    for name, shape in {"w0": (16, 8, 3, 3), "w1": (16, 16, 3, 3), "w2": (16, 10)}.items():
        weight = chance.normal(0, 0.2, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return Model(proto, "small")


class Pictures(CalibrationDataReader):
    """Eight inputs of random numbers."""

    def __init__(self) -> None:
        chance = np.random.default_rng(1)
        self.left = [{"x": chance.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(8)]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantized(folder: Path, kind: str, activations: QuantType = QuantType.QUInt8) -> Path:
    """Return the small net as ONNX Runtime's own tool quantizes it."""
    source, path = folder / "small.onnx", folder / f"{kind}.onnx"
    save_model(small_net(), source)
    if kind == "dynamic":
        quantize_dynamic(source, path)
        return path
    form = QuantFormat.QDQ if kind == "QDQ" else QuantFormat.QOperator
    quantize_static(
        source, path, Pictures(), quant_format=form, activation_type=activations, weight_type=QuantType.QInt8
    )
    return path


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_a_model_of_another_tool_is_recognised_by_kind_and_share(kind, tmp_path):
    found = read_integers(load_model(quantized(tmp_path, kind)))
    assert found.kind == kind
    assert (found.count, found.layers) == (3, 3)


def test_a_float_model_has_no_kind():
    assert read_integers(small_net()) == Integers(3, {})


def test_rounded_weights_of_training_count_as_integers_and_those_alone_as_weight_only():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        trained (float[1, 4] x) => (float[1, 4] y, float[1, 4] z, float[1, 4] u)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}, float s = {0.1}, int8 o = {0}> {
            wq = QuantizeLinear(w, s, o)
            wf = DequantizeLinear(wq, s, o)
            moved = Transpose(wf)
            xq = QuantizeLinear(x, s, o)
            xf = DequantizeLinear(xq, s, o)
            y = MatMul(xf, moved)
            z = MatMul(x, wf)
            u = MatMul(x, w)
        }"""
    )
    found = read_integers(Model(proto, "trained"))
    assert found.by_kind == {IntegerKind.QDQ: 1, IntegerKind.WEIGHT_ONLY: 1}
    assert (found.kind, found.layers) == (IntegerKind.MIXED, 3)
    assert str(found) == "mixed, 2 of 3 weighted layers in integers (QDQ 1, weight-only 1)"


def test_layers_of_branches_count_too():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        branches (float[1, 2] x, bool c) => (float[1, 2] y)
        <uint8[2, 2] w = {1, 2, 3, 4}, float s = {0.1}, uint8 o = {0}> {
            y = If (c) <
                then_branch = rounded () => (float[1, 2] a) {
                    xq, xs, xo = DynamicQuantizeLinear(x)
                    p = MatMulInteger(xq, w, xo, o)
                    f = Cast<to=1>(p)
                    a = Mul(f, xs)
                },
                else_branch = real () => (float[1, 2] b) {
                    wf = DequantizeLinear(w, s, o)
                    b = MatMul(x, wf)
                }
            >
        }"""
    )
    assert read_integers(Model(proto, "branches")).by_kind == {IntegerKind.DYNAMIC: 1, IntegerKind.WEIGHT_ONLY: 1}


def test_inspect_says_what_is_in_integers(tmp_path):
    path = quantized(tmp_path, "QDQ")
    shown = CliRunner().invoke(cli, ["inspect", str(path)]).output
    assert "integers   QDQ, 3 of 3 weighted layers in integers" in shown
    facts = json.loads(CliRunner().invoke(cli, ["inspect", str(path), "--json"]).output)
    assert facts["integers"] == {"layers": 3, "by_kind": {"QDQ": 3}}


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_quantize_refuses_what_is_quantized(kind, tmp_path):
    arguments = ["quantize", quantized(tmp_path, kind), "-t", "cpu", "-r", "tensors", "-o", tmp_path / "twice.onnx"]
    shown = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert shown.exit_code == 1
    assert f"{kind} is quantized already ({kind}, 3 of 3 weighted layers in integers)" in shown.output
    assert "edgeopt optimize -t cpu" in shown.output
    assert not (tmp_path / "twice.onnx").exists()


def test_optimize_says_so_at_the_start_and_calls_no_unchanged_file_a_step(tmp_path, brief):
    path, said = quantized(tmp_path, "QDQ"), list[str]()
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(2).normal(0, 1, (4, *SHAPE[1:])).astype(np.float32))

    class Ear(Silence):
        def say(self, text):
            said.append(text)

    report = optimize(path, recipe="tensors", calib=tmp_path / "x.npz", out=tmp_path / "out", threads=1, listener=Ear())
    assert any("no search for INT8: QDQ is quantized already (QDQ, 3 of 3" in one for one in said)
    files = [(tmp_path / "out" / one.file).read_bytes() for one in report.candidates]
    assert len(set(files)) == len(files)
    assert not any("quantize" in one.steps for one in report.candidates)


def test_convolutions_that_round_as_they_run_are_offered_in_float(tmp_path, brief):
    path = quantized(tmp_path, "dynamic")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(2).normal(0, 1, (8, *SHAPE[1:])).astype(np.float32))
    given = {"recipe": "tensors", "calib": tmp_path / "x.npz", "out": tmp_path / "out", "threads": 1}
    report = optimize(path, **given)
    offered = next(one for one in report.candidates if one.name == "float")
    assert offered.changes["make_dynamic_float"] == 2
    assert offered.agreement > 0.99
    assert offered.speed
    assert "2 convolutions in float: answers differ by the original's rounding" in str(offered.notes)
    made, inputs = load_model(tmp_path / "out" / offered.file), {"x": np.load(tmp_path / "x.npz")["x"][:1]}
    assert (made.op_counts["Conv"], made.op_counts["MatMulInteger"]) == (2, 1)
    expected, found, before = (
        EXECUTOR.open(one.data, SessionOptions()).run(inputs)["y"] for one in (small_net(), made, load_model(path))
    )
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
    assert np.linalg.norm(found - expected) < 1.5 * np.linalg.norm(before - expected)
    again = optimize(path, **given, resume=True)
    assert [one.sha256 for one in again.candidates] == [one.sha256 for one in report.candidates]


def test_a_step_that_finds_nothing_is_no_candidate(tmp_path, brief):
    done = simplify(small_net(), {})
    save_model(done.model, tmp_path / "done.onnx")
    report = optimize(
        tmp_path / "done.onnx", recipe="tensors", steps=("simplify", "fuse"), out=tmp_path / "out", threads=1
    )
    assert [one.name for one in report.candidates] == ["baseline"]
    assert [str(note) for note in report.notes if "nothing to do" in str(note)] == [
        "simplify: nothing to do",
        "fuse: nothing to do",
    ]


def test_a_float_model_is_still_quantized(tmp_path, brief):
    save_model(small_net(), tmp_path / "small.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(2).normal(0, 1, (4, *SHAPE[1:])).astype(np.float32))
    result = quantize(
        tmp_path / "small.onnx", recipe="tensors", calib=tmp_path / "x.npz", out=tmp_path / "q.onnx", time_limit_s=1
    )
    assert result.tried
