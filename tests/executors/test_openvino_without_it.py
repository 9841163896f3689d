"""Parts for OpenVINO that work without it: the message of its absence, its profiles, bundles with an engine a model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_bundles import packed, reseal

from edgeopt.errors import InvalidFileError, NotFoundError, UnavailableError
from edgeopt.executors import SessionOptions, arithmetic
from edgeopt.executors.openvino import EXECUTOR, _require_taken, sentence_of
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import read_bundle, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.steps.quantize.integer_types import confirmed_rules
from edgeopt.system.declared import target
from edgeopt.system.declared.target import Int8Rules, TargetChoice, find_target, read_target
from edgeopt.system.disk import assets
from edgeopt.system.machine.processor import Processor

BLOCKED = "import sys; sys.modules['openvino'] = None\n"


def run_blocked(code: str) -> str:
    command = [sys.executable, "-c", BLOCKED + code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_without_the_package_the_reason_ends_with_what_to_install():
    code = "from edgeopt.executors.openvino import EXECUTOR, _require_taken; print(EXECUTOR.why_unavailable())"
    assert run_blocked(code).strip().endswith("(pip install 'edgeopt[openvino]')")


def test_without_the_package_opening_a_model_is_one_clear_error():
    code = (
        "from edgeopt.errors import MissingDependencyError\n"
        "from edgeopt.executors import SessionOptions\n"
        "from edgeopt.executors.openvino import EXECUTOR, _require_taken\n"
        "try:\n    EXECUTOR.open(b'', SessionOptions(('CPU',)))\n"
        "except MissingDependencyError as error:\n    print(error)\n"
    )
    problem, remedy = run_blocked(code).strip().splitlines()
    assert problem.startswith("openvino is not installed: running a model by OpenVINO needs it")
    assert remedy == "  -> pip install 'edgeopt[openvino]'"


@pytest.mark.parametrize(
    ("scheme", "found"),
    [("fp32", "fp32"), ("w8a8", "fp32"), ("bf16", "bf16"), ("w8a8+bf16", "bf16"), ("fp16", "fp16"), ("", "fp32")],
)
def test_a_scheme_says_what_float_operators_are_computed_in(scheme, found):
    assert arithmetic(scheme) == found


def test_the_profile_of_the_cpu_offers_openvino_beside_onnx_runtime_and_the_explicit_ones_do_not():
    choice = read_target(assets.folder("targets") / "cpu.toml")
    assert isinstance(choice, TargetChoice)
    assert (
        find_target("cpu").alternatives
        == choice.alternatives
        == (
            "openvino-cpu",
            "ncnn-cpu",
            "litert-cpu",
            "mnn-cpu",
            "executorch-cpu",
        )
    )
    assert all(find_target(name).alternatives == () for name in choice.choose)


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({"avx2"}, {"bf16", "w8a8+bf16"}),
        ({"avx2", "avx_vnni"}, {"bf16", "w8a8+bf16"}),
        ({"avx2", "avx512_vnni", "avx512_bf16"}, set()),
    ],
)
def test_a_precision_is_offered_where_the_processor_has_its_instructions(monkeypatch, flags, missing):
    monkeypatch.setattr(target, "this_processor", lambda: Processor("x86-64", flags))
    profile = find_target("openvino-cpu")
    assert {one for one in profile.precisions if profile.why_no_precision(one)} == missing
    for one in missing:
        assert "this processor has none of" in profile.why_no_precision(one)


@pytest.mark.parametrize(("flags", "is_reduced"), [({"avx2"}, True), ({"avx2", "avx_vnni"}, False)])
def test_weights_have_fewer_steps_where_two_products_would_saturate(monkeypatch, flags, is_reduced):
    monkeypatch.setattr(target, "this_processor", lambda: Processor("x86-64", flags))
    rules, notes = confirmed_rules(find_target("openvino-cpu"))
    assert rules.reduce_range == is_reduced
    assert not notes
    assert find_target("cpu-x86-avx2").rules_here.reduce_range


def test_float_runs_in_the_first_float_precision_of_a_profile():
    names = ("openvino-cpu", "intel-npu", "cpu-x86-vnni")
    found = {Path(name).stem: find_target(name).float_precision for name in names}
    assert found == {"openvino-cpu": "fp32", "intel-npu": "fp16", "cpu-x86-vnni": "fp32"}


def test_a_form_that_does_not_exist_is_refused():
    assert Int8Rules(forms=("inputs",)).forms == ("inputs",)
    with pytest.raises(ValueError, match="forms are"):
        Int8Rules(forms=("outputs",))


@pytest.fixture
def two_engines(tmp_path):
    """A bundle whose first model is OpenVINO's, in bfloat16, and whose fallback is ONNX Runtime's."""
    path = find_model("digits_detector")
    model = load_model(path)
    recipe = choose_recipe(None, path, model.inputs, model.outputs, model.metadata).recipe
    data = path.read_bytes()
    own = replace(find_target("cpu"), threads=1)
    first = packed("model.onnx", "w8a8+bf16", data, find_target("openvino-cpu"))
    return write_bundle(tmp_path / "bundle", [first, packed("fallback.onnx", "fp32", data, own)], own, recipe, {}, {})


def test_a_bundle_keeps_the_engine_of_each_model(two_engines):
    first, second = read_bundle(two_engines.folder).artefacts
    assert (first.executor, first.providers, first.precision) == ("openvino", ("CPU",), "w8a8+bf16")
    assert first.options == find_target("openvino-cpu").options
    assert (second.executor, second.providers) == ("onnxruntime", ("CPUExecutionProvider",))


def test_a_bundle_runs_on_its_first_engine_that_is_here_and_says_which_is_not(two_engines):
    runtime = Runtime.load(two_engines.folder)
    found = runtime.predict(np.zeros((90, 120, 3), np.uint8))
    assert len(found) >= 0
    here = EXECUTOR.why_unavailable() is None and not find_target("openvino-cpu").why_no_precision("bf16")
    if here:
        assert type(runtime.session).__name__ == "OpenVinoSession"
        assert runtime.notes == ()
    else:
        assert type(runtime.session).__name__ == "OnnxRuntimeSession"
        assert "model.onnx not used" in runtime.notes[0].detail


def test_a_bundle_with_a_key_that_nobody_knows_is_refused(two_engines):
    reseal(two_engines.folder, lambda values: values["artefacts"][0].update(engine="openvino"))
    with pytest.raises(InvalidFileError, match="unknown engine"):
        read_bundle(two_engines.folder)


@pytest.mark.skipif(EXECUTOR.why_unavailable() is not None, reason="needs the list of devices")
def test_onnx_runtimes_provider_names_are_no_devices():
    with pytest.raises(UnavailableError, match="no device CPUExecutionProvider here"):
        EXECUTOR.open(b"", SessionOptions())


@pytest.mark.parametrize(
    "key",
    [
        "CACHE_DIR",
        "WEIGHTS_PATH",
        "CONFIG_FILE",
        "NPU_COMPILATION_MODE_PARAMS",
        "CACHE_ENCRYPTION_CALLBACKS",
        "cache_dir",
    ],
)
def test_a_property_that_touches_files_is_refused_before_openvino_is_looked_for(key, tmp_path):
    with pytest.raises(NotFoundError, match=key):
        EXECUTOR.open(b"", SessionOptions(("CPU",), 1, {key: str(tmp_path / "made")}))
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_profiles_set_properties_that_may_be_set():
    for name in ("openvino-cpu", "intel-npu"):
        profile = find_target(name)
        _require_taken(SessionOptions(profile.providers, 1, profile.options))


def test_of_ops_that_openvino_refuses_the_cause_is_told_not_what_follows():
    said = """Exception from src/inference/src/cpp/core.cpp:84:
Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- ReduceMean-21 with a message:
Check '(supported_types.find(type) != supported_types.end())' failed at src/op/reduce.cpp:134:
While validating ONNX node '<Node(ReduceMean): layer.0.normal.mean>':
Unsupported input type dynamic

-- com.microsoft.GatherBlockQuantized with a message:
Check '(ov::as_type<v0::Constant>(data.get_node()) != nullptr)' failed at gather_block_quantized.cpp:52:
While validating ONNX node '<Node(GatherBlockQuantized): embedded>':
GatherBlockQuantized: 'data' must be a constant

Summary:
-- Conversion is failed for: ReduceMean-21, com.microsoft.GatherBlockQuantized
"""
    cause = "com.microsoft.GatherBlockQuantized: GatherBlockQuantized: 'data' must be a constant"
    assert sentence_of(RuntimeError(said)) == cause
    head = said.partition("\n\n-- com")[0]
    assert sentence_of(RuntimeError(head)) == "ReduceMean-21: Unsupported input type dynamic"
    assert sentence_of(RuntimeError("Exception from a.cpp:1:\nno such file")) == "no such file"
    assert sentence_of(RuntimeError("")) == "RuntimeError"
