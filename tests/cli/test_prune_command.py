"""`edgeopt prune`: one file, an exit code, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from fixture_brief import briefly
from onnx import TensorProto, helper, numpy_helper
from small_nets import Net

from edgeopt.cli import cli
from edgeopt.graph.model import load_model, save_model
from edgeopt.system.machine.processor import cpu_architecture

ELSEWHERE = "raspberry-pi-5" if cpu_architecture() != "arm64" else "cpu-x86-vnni"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small net and tensors for it."""
    folder = tmp_path_factory.mktemp("prune")
    net = Net(size=16, channels=8, seed=1)
    x = net.op("Relu", net.conv("x", 8, 32, 3))
    x = net.op("Relu", net.conv(x, 32, 32, 3))
    save_model(net.model(net.conv(x, 32, 8)), folder / "net.onnx")
    np.savez(folder / "in.npz", x=np.random.default_rng(0).normal(0, 1, (8, 8, 16, 16)).astype(np.float32))
    return folder


def ask(case: Path, *more: str, model: str = "net.onnx") -> Result:
    given = ["prune", str(case / model), "-r", "tensors", "--calib", str(case / "in.npz"), "--threads", "1"]
    with briefly():
        return CliRunner(env={"COLUMNS": "80"}).invoke(cli, [*given, *more])


def test_a_share_that_was_asked_for_is_written_and_what_it_loses_is_the_exit_code(case, tmp_path):
    out = tmp_path / "small.onnx"
    shown = ask(case, "-t", ELSEWHERE, "--prune", "0.4", "-o", str(out))
    small, dense = load_model(out), load_model(case / "net.onnx")
    assert small.size_bytes < dense.size_bytes
    report = tmp_path / "small" / "report.html"
    assert report.is_file()
    assert "of those that can be removed" in shown.output
    if shown.exit_code == 2:
        assert "FAIL" in shown.output
        assert "does not pay as it is" in shown.output
        assert f"edgeopt finetune {out} --teacher {case / 'net.onnx'}" in " ".join(shown.output.split())
    else:
        assert shown.exit_code == 0, shown.output
        assert "DONE" in shown.output
        assert f"edgeopt compare {case / 'net.onnx'} {out}" in " ".join(shown.output.split())


def test_where_the_dense_model_stays_no_file_is_written_and_the_reason_is_one_sentence(case, tmp_path):
    shown = ask(case, "-o", str(tmp_path / "none.onnx"), "--json")
    assert shown.exit_code == 2
    found = json.loads(shown.stdout)
    assert (found["written"], found["file"], found["exit_code"]) == (None, None, 2)
    assert not (tmp_path / "none.onnx").exists()
    again = ask(case, "-o", str(tmp_path / "none.onnx"), "--resume", "--format", "markdown")
    assert "the dense model stays: no pruned one pays" in again.output
    assert "the shortest run takes 0." in again.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--prune", "much"], "--prune 'much' is no amount of pruning"),
        (["--prune", "2"], "--prune '2' is not a share above 0 and up to 0.95"),
        (["--prune", "0.5x"], "--prune '0.5x' is not a speed above 1"),
        (["--prune", "off"], "nothing is left to do where --prune is off"),
        (["--keep-layers", "node_conv_9"], "no layer named 'node_conv_9'"),
        (["-t", ELSEWHERE, "--prune", "1.5x"], "needs times that cannot be measured here"),
    ],
)
def test_a_wrong_wish_is_one_clear_line_before_any_work(case, tmp_path, options, told):
    shown = ask(case, "-o", str(tmp_path / "x.onnx"), *options)
    assert shown.exit_code == 1, shown.output
    assert told in " ".join(shown.output.split())
    assert "Traceback" not in shown.output
    assert not [*tmp_path.iterdir()]


def quantized(folder: Path) -> str:
    scale, zero = numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(0), "z")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    shape = [1, 8, 4, 4]
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [scale, zero],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "q.onnx")
    return "q.onnx"


def without_channels(folder: Path) -> str:
    net = onnx.load(folder / "net.onnx")
    net.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"
    onnx.save(net, folder / "free.onnx")
    return "free.onnx"


def outside(folder: Path) -> str:
    onnx.save(
        onnx.load(folder / "net.onnx"),
        folder / "far.onnx",
        save_as_external_data=True,
        location="far.bin",
        size_threshold=0,
    )
    (folder / "far.bin").unlink()
    return "far.onnx"


def test_a_number_of_channels_that_is_given_counts(case, tmp_path):
    asked = ["-t", ELSEWHERE, "--prune", "0.4", "--shape", "x=1x8x16x16", "-o", str(tmp_path / "x.onnx")]
    shown = ask(case, *asked, model=without_channels(case))
    assert shown.exit_code in (0, 2), shown.output
    assert (tmp_path / "x.onnx").is_file()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (quantized, "is quantized already"),
        (without_channels, "the number of channels of input 'x' is not fixed"),
        (outside, "far.bin"),
    ],
)
def test_a_model_that_cannot_be_pruned_is_refused_with_a_remedy(case, tmp_path, make, told):
    shown = ask(case, "-o", str(tmp_path / "x.onnx"), model=make(case))
    assert shown.exit_code == 1, shown.output
    assert told in shown.output
    assert "  -> " in shown.output
    assert not [*tmp_path.iterdir()]
