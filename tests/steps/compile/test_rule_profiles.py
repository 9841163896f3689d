"""Targets whose toolchain cannot run here: their rules judge, the verdict says so, and the CPU never stands in."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_models import activation, conv_batchnorm, inputs_of, model, numbers
from onnx import numpy_helper

from edgeopt.cli import cli
from edgeopt.errors import UnavailableError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, save_model
from edgeopt.steps.compile._placement import CPU, check_rules, explain_placement
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.target import find_target

PROFILES = ("amd-ryzen-ai", "apple-coreml", "android-nnapi")
TABLES = {
    "apple-coreml": "coreml_supported_mlprogram_ops.md",
    "android-nnapi": "nnapi_supported_ops.md",
}


@pytest.fixture(params=PROFILES)
def target(request):
    found = find_target(request.param)
    if EXECUTOR.why_no_provider(found.providers) is None:
        pytest.skip(f"this ONNX Runtime has {found.providers[0]}: it is asked, not judged by rule")
    return found


def plain() -> Model:
    return model(
        "plain (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w, b)  y = Relu(c) }",
        w=numbers(4, 3, 3, 3),
        b=numbers(4),
    )


def test_the_rules_judge_and_the_verdict_names_what_would_compile(target):
    found = explain_placement(plain(), target)
    assert found.verdict == f"all 2 nodes on the NPU (by rule; not compiled: {target.package})"


def test_a_free_shape_is_refused_and_fixing_it_mends_it(target):
    found = explain_placement(model("free (float[n,8] x) => (float[n,8] y) { y = Relu(x) }"), target)
    assert [one.provider for one in found.nodes] == [CPU]
    assert set(found.mends.values()) == {"fixed shapes"}
    assert "not compiled" in found.verdict


def test_opening_is_an_error_and_never_a_run_on_the_cpu(target):
    with pytest.raises(UnavailableError, match=target.providers[0]):
        EXECUTOR.open(plain().data, SessionOptions(target.providers, 1, target.options))


def test_inspect_prints_the_verdict(target, tmp_path):
    file = tmp_path / "plain.onnx"
    save_model(plain(), file)
    shown = CliRunner().invoke(cli, ["inspect", str(file), "--target", target.name])
    assert shown.exit_code == 0, shown.output
    assert f"not compiled: {target.package}" in shown.output


@pytest.mark.parametrize("name", TABLES)
def test_the_ops_of_a_profile_are_those_of_onnx_runtimes_own_table(name):
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    table = Path(spec.origin).parent / "tools" / "mobile_helpers" / TABLES[name]
    documented = {op.replace("Argmax", "ArgMax") for op in re.findall(r"ai\.onnx:(\w+)\|", table.read_text("utf-8"))}
    assert set(find_target(name).taken_ops) <= documented


def test_an_op_outside_the_list_is_refused_and_one_of_another_domain_too():
    coreml = find_target("apple-coreml")
    foreign = model("foreign (float[1,8] x) => (float[1,8] y) { r = Relu(x)  y = com.microsoft.Gelu(r) }")
    reasons = [one.reason for one in check_rules(foreign, coreml)]
    assert reasons == ["", "Gelu is not among the ops that the target takes"]
    celu = activation("y = Celu(x)")
    assert check_rules(celu, coreml)[0].reason == "Celu is not among the ops that the target takes"


def test_coreml_refuses_pairs_of_q_and_dq_and_nnapi_takes_them():
    pairs = model(
        "pairs (float[1,8] x) => (float[1,8] y) { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }",
        s=np.array(0.1, np.float32),
        z=np.array(128, np.uint8),
    )
    assert all(one.provider == CPU for one in check_rules(pairs, find_target("apple-coreml")))
    assert not any(one.reason for one in check_rules(pairs, find_target("android-nnapi")))


def test_ryzen_ai_refuses_what_kills_its_process():
    recurrent = model(
        "recurrent (float[4,1,3] x) => (float[4,1,1,2] y) { y = LSTM<hidden_size = 2>(x, w, r) }",
        w=numbers(1, 8, 3),
        r=numbers(1, 8, 2),
    )
    assert check_rules(recurrent, find_target("amd-ryzen-ai"))[0].reason == "the target has no LSTM"


def test_ryzen_ais_integers_are_symmetric_and_their_scales_powers_of_two():
    target = find_target("amd-ryzen-ai")
    before = fuse(simplify(net(), {}, [inputs_of(net())]).model, [inputs_of(net())]).model
    made = quantize(before, [inputs_of(before, seed) for seed in range(4)], target.int8, form=Form.QDQ).model
    stored = {one.name: numpy_helper.to_array(one) for one in made.proto.graph.initializer}
    pairs = [one for one in made.proto.graph.node if one.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    for node in pairs:
        assert (np.frexp(stored[node.input[1]])[0] == 0.5).all()
        assert len(node.input) < 3 or not stored[node.input[2]].any()
    expected, actual = (EXECUTOR.open(one.data, SessionOptions()).run(inputs_of(before)) for one in (before, made))
    assert np.corrcoef(expected["y"].ravel(), actual["y"].ravel())[0, 1] > 0.99


def net() -> Model:
    """Three convolutions, the last of which predicts."""
    layers = "".join(f"c{i} = Conv<pads = [1,1,1,1]>(r{i}, w{i}, b{i}) r{i + 1} = Relu(c{i}) " for i in range(3))
    return model(
        f"net (float[1,4,8,8] x) => (float[1,4] y) {{ r0 = Identity(x) {layers} p = GlobalAveragePool(r3) "
        "f = Flatten(p) y = Gemm(f, g) }",
        **{f"w{i}": numbers(4, 4, 3, 3, seed=i) / np.float32(6) for i in range(3)},
        **{f"b{i}": numbers(4, seed=9 + i) for i in range(3)},
        g=numbers(4, 4, seed=20),
    )


def test_a_target_that_names_no_ops_takes_all():
    assert not any(one.reason for one in check_rules(conv_batchnorm(), find_target("amd-ryzen-ai")))
