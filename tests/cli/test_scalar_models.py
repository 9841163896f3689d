"""Nets that end in a scalar, or do not tell how many dimensions a tensor has, go through every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from small_nets import Net

from edgeopt.cli import cli
from edgeopt.graph.model import Model, load_model, save_model

SCALARS = ("scalar", "undeclared scalar", "scores beside a scalar", "a whole number")
UNKNOWN = ("undeclared scores", "a computed shape", "branches of two ranks")

WHOLE = ("scores beside a scalar", "branches of two ranks")
"""Models with which commands that write are tried too: prune, optimize and what it makes."""


def declared(name: str, shape: tuple[int, ...] | None, kind: int = onnx.TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def make(kind: str) -> Model:
    """A picture of 32 x 32 in, ten features or one of them out."""
    net = Net()
    features = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv("x", 3, 10, 3, stride=4))))
    axes = net.constant("axes", np.array([1], np.int64))
    age = net.op("ReduceMax", features, keepdims=0)
    outputs = [declared(age, ())]
    if kind == "undeclared scalar":
        outputs = [declared(age, None)]
    elif kind == "scores beside a scalar":
        outputs = [declared(age, ()), declared(features, (1, 10))]
    elif kind == "a whole number":
        outputs = [declared(net.op("Cast", age, to=onnx.TensorProto.INT64), (), onnx.TensorProto.INT64)]
    elif kind == "undeclared scores":
        outputs = [declared(net.op("Softmax", features), None)]
    elif kind == "a computed shape":
        batch = net.op("Cast", net.op("Shape", "x", start=0, end=1), to=onnx.TensorProto.FLOAT)
        sizes = net.op("Mul", batch, net.constant("sizes", np.array([1, 10], np.float32)))
        kept = net.op("Compress", sizes, net.constant("kept", np.array([True, True])))
        outputs = [declared(net.op("Reshape", features, net.op("Cast", kept, to=onnx.TensorProto.INT64)), None)]
    elif kind == "branches of two ranks":
        is_large = net.op("Greater", age, net.constant("least", np.float32(-1e9)))
        same = onnx.helper.make_node("Identity", [features], ["then"])
        deep = onnx.helper.make_node("Unsqueeze", [features, axes], ["else"])
        branches = {
            f"{name}_branch": onnx.helper.make_graph([node], name, [], [declared(name, None)])
            for name, node in (("then", same), ("else", deep))
        }
        outputs = [declared(net.op("If", is_large, **branches), None)]
    model = net.model(age)
    del model.proto.graph.output[:]
    model.proto.graph.output.extend(outputs)
    return Model(model.proto, "net")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    for i in range(4):
        cv2.imwrite(str(folder / f"{i}.png"), chance.integers(0, 256, (40, 40, 3), np.uint8))
    return folder


def call(*words: Any, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.mark.parametrize("kind", [*SCALARS, *UNKNOWN])
def test_each_goes_through_inspect_recipe_bench_compare_prune_optimize_and_run(kind, tmp_path, pictures, brief):
    model, recipe = tmp_path / "net.onnx", tmp_path / "recipe.toml"
    save_model(make(kind), model)
    assert "output" in call("inspect", model)
    drafted = json.loads(call("recipe", model, "--picture", pictures, "--json"))
    assert drafted["task"] == ("classification" if kind == "undeclared scores" else "tensors")
    assert kind not in UNKNOWN or " float32 1x10." in recipe.read_text()  # the shape that a run gave
    told = ["-t", "cpu", "-r", recipe, "--threads", "1"]
    call("bench", model, *told, "--source", pictures, "--frames", "3", "--seconds", "0.05")
    compared = CliRunner().invoke(
        cli, ["compare", str(model), str(model), *map(str, told), "-s", str(pictures), "--seconds", "0.1"]
    )
    assert isinstance(compared.exception, SystemExit | None), compared.output  # the verdict is the machine's
    if kind not in WHOLE:
        return
    out, told = tmp_path / "out", [*told, "--calib", pictures]
    call("optimize", model, *told, "-o", out, "--prune", "off", "--time-limit", "30s", "--skip", "quantize")
    answers = [json.loads(line) for line in call("run", out / "bundle", pictures, "--json").splitlines()]
    assert len(answers) == 4
    assert not any("problem" in one for one in answers)
    pruned = CliRunner().invoke(cli, ["prune", str(model), *map(str, told), "-o", str(tmp_path / "p.onnx")])
    assert isinstance(pruned.exception, SystemExit), pruned.output


def test_an_input_that_tells_no_shape_takes_that_of_arrays_or_of_the_command_line(tmp_path, brief):
    body = "(float[1, 4] x) => (float[1, 4] y) { y = Exp(x) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> net {body}')
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    model, arrays, out = tmp_path / "net.onnx", tmp_path / "x.npz", tmp_path / "out"
    onnx.save(proto, str(model))
    np.savez(arrays, x=np.ones((3, 2, 5), np.float32))
    assert "x float32 of unknown shape" in call("inspect", model)
    assert load_model(model).outputs[0].is_unranked
    refused = CliRunner().invoke(cli, ["bench", str(model), "-t", "cpu", "-r", "tensors"])
    assert "give every size: --shape x=1x3x224x224 (an example)" in refused.stderr
    call("optimize", model, "-t", "cpu", "-r", "tensors", "--calib", arrays, "--threads", "1", "-o", out)
    ran = json.loads(call("run", out / "bundle", arrays, "--limit", "1", "--json"))
    assert ran["outputs"]["y"]["shape"] == [1, 2, 5]
    given = ["--shape", "x=1x7", "--frames", "3", "--seconds", "0.05", "--threads", "1"]
    call("bench", model, "-t", "cpu", "-r", "tensors", *given)


def test_scalar_inputs_are_fed_beside_others(tmp_path, brief):
    body = "(float[1, 4] x, float least) => (float[1, 4] y) { y = Max(x, least) }"
    model, arrays, out = tmp_path / "net.onnx", tmp_path / "x.npz", tmp_path / "out"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> net {body}'), str(model))
    np.savez(arrays, x=np.arange(8, dtype=np.float32).reshape(2, 4), least=np.float32([2, 5]))
    call("bench", model, "-t", "cpu", "-r", "tensors", "-s", arrays, "--frames", "3", "--seconds", "0.05")
    call("optimize", model, "-t", "cpu", "-r", "tensors", "--calib", arrays, "--threads", "1", "-o", out)
    answers = [json.loads(line)["outputs"]["y"] for line in call("run", out / "bundle", arrays, "--json").splitlines()]
    assert [one["values"] for one in answers] == [[2, 2, 2, 3], [5, 5, 6, 7]]
