"""Models as people bring them: each comes in, or ends in one line that names the node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from edgeopt.cli import cli
from edgeopt.graph.model import load_model

WEIGHTS = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
BROUGHT = {
    "float16": """(float16[n, 4] x) => (float16[n, 4] y) <float16[4] b = {1, 2, 3, 4}> { y = Add(x, b) }""",
    "already quantized": """(float[n, 4] x) => (float[n, 4] y) <float s = {0.5}, uint8 o = {3}> {
        q = QuantizeLinear(x, s, o)
        d = DequantizeLinear(q, s, o)
        y = MatMul(d, w)
    }""",
    "a branch": """(float[n, 4] x, bool c) => (float[n, 4] y) {
        y = If (c) <then_branch = a () => (float[n, 4] t) { t = MatMul(x, w) },
                    else_branch = b () => (float[n, 4] e) { e = Identity(x) }>
    }""",
    "a loop": """(float[1, 4] x, int64 turns, bool go) => (float[1, 4] y) {
        y = Loop (turns, go, x) <body = l (int64 i, bool c, float[1, 4] v) => (bool k, float[1, 4] r) {
            k = Identity(c)
            r = Add(v, v)
        }>
    }""",
    "a sequence inside": """(float[2, 4] x) => (float[2, 4] y) {
        parts = SplitToSequence <axis = 0> (x)
        y = ConcatFromSequence <axis = 0> (parts)
    }""",
    "an optional inside": """(float[2, 4] x) => (float[2, 4] y) {
        maybe = Optional(x)
        y = OptionalGetElement(maybe)
    }""",
    "several inputs and outputs": """(int64[n, m] ids, float[n, 4] x) => (int64[n, m] same, float[n, 4] y) {
        same = Identity(ids)
        y = MatMul(x, w)
    }""",
    "texts": """(string[n] words) => (string[n] same) { same = Identity(words) }""",
    "a size from the values": """(float[n, 4] x) => (int64[2, k] places) { places = NonZero(x) }""",
}


def write(body: str, path: Path) -> Path:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\nbrought {body}')
    if "w)" in body:
        proto.graph.initializer.append(WEIGHTS)
    onnx.save(proto, str(path))
    return path


@pytest.mark.parametrize("kind", BROUGHT)
def test_each_is_shown_and_gets_a_recipe_that_optimize_takes(kind, tmp_path):
    model, runner = write(BROUGHT[kind], tmp_path / "brought.onnx"), CliRunner()
    shown = runner.invoke(cli, ["inspect", str(model)])
    assert shown.exit_code == 0, shown.output
    drafted = runner.invoke(cli, ["recipe", str(model), "--json"])
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout)["task"] == "tensors"
    planned = runner.invoke(cli, ["optimize", str(model), "-t", "cpu", "--dry-run"])
    assert planned.exit_code == 0, planned.output


def test_more_than_2_gb_is_refused_by_node_before_any_of_it_is_read(tmp_path, monkeypatch):
    """The file is sparse: no byte of it lies on the disk, and it is never opened."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> large (float[1, 24000] x) => (float[1, 24000] y) { y = MatMul(x, w) }'
    )
    proto.graph.node[0].name = "project"
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(24000, 24000))
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "0", "length": str(4 * 24000**2)}.items():
        weights.external_data.add(key=key, value=value)
    proto.graph.initializer.append(weights)
    onnx.save(proto, str(tmp_path / "large.onnx"))
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4 * 24000**2)
    monkeypatch.setattr(onnx, "load_external_data_for_model", lambda *_: pytest.fail("its weights are read"))
    for command in (["inspect"], ["recipe"], ["optimize", "-t", "cpu"]):
        shown = CliRunner().invoke(cli, [*command, str(tmp_path / "large.onnx")])
        assert shown.exit_code == 1, shown.output
        assert "has 2.3 GB with its external data" in shown.output
        assert "'w' of MatMul 'project', 2.3 GB" in " ".join(shown.output.split())


def test_external_data_below_that_comes_in_whole(tmp_path):
    proto = onnx.load(str(write(BROUGHT["already quantized"], tmp_path / "small.onnx")))
    onnx.save(proto, str(tmp_path / "outside.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    found = load_model(tmp_path / "outside.onnx").proto.graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(next(one for one in found if one.name == "w")), np.ones((4, 4)))
