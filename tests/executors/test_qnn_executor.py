"""The executor `qnn` without the vendor's package: options, the plugin's log, binaries of another SoC."""

from __future__ import annotations

import pytest

from edgeopt.errors import InvalidFileError, MissingDependencyError, UnsupportedError
from edgeopt.executors import Placement, SessionOptions
from edgeopt.executors.qnn import EXECUTOR, PROVIDER, check_options, describe_refused, refusals
from edgeopt.system.declared.target import Target, find_target, target_names

LOG = """
2026-11-21 10:05:29.5 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (NonMaxSuppression) :
	Operator type: NonMaxSuppression Node name: nms Node index: 3
	REASON : NonMaxSuppression: max_output_boxes_per_class must be provided and > 0 for QNN.

2026-11-21 10:05:29.5 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation PASSED for 1 nodes in OrtNodeUnit (Relu) :
	Operator type: Relu Node name: r Node index: 1

2026-11-21 10:05:29.5 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Erf) :
	Operator type: Erf Node name:  Node index: 0
	REASON : Operators of type `Erf` are not supported by QNN EP.Erf node `` will not be assigned to QNN EP.
"""  # noqa: E501, as the plugin writes it

COMPILED = b"\x08\x0a...\x12ep_compatibility_info.QNNExecutionProvider\x12\x1av2:6:2.51.0:5.51.0:0:87:0:0"
SEVERAL = b"...ep_compatibility_info.QNNExecutionProvider\x12\x1fv2:6:2.51.0:5.51.0:0,0:43,57:0,0:0"


def test_the_reasons_of_the_log_are_read():
    assert refusals(LOG) == {
        ("NonMaxSuppression", "nms"): (
            "NonMaxSuppression: max_output_boxes_per_class must be provided and > 0 for QNN"
        ),
        ("Erf", ""): "Operators of type Erf are not supported by QNN EP",
    }


def test_a_log_without_refusals_gives_none():
    assert (
        refusals("[V:onnxruntime:] Validation PASSED for 1 nodes in OrtNodeUnit (Relu) :\n Operator type: Relu") == {}
    )


def test_many_refused_nodes_are_named_in_part():
    nodes = [Placement(f"n{i}", "Erf", "CPU", "no Erf") for i in range(7)]
    assert describe_refused(nodes[:1]) == "Erf 'n0' (no Erf)"
    assert describe_refused(nodes).endswith("Erf 'n4' (no Erf); and 2 more")


def test_what_must_hold_is_set_whether_asked_for_or_not():
    assert check_options({"soc_model": "43"}) == {
        "soc_model": "43",
        "backend_type": "htp",
        "offload_graph_io_quantization": "0",
    }


@pytest.mark.parametrize("value", ["43", "43,57", "30,36,43"])
def test_one_soc_or_several_are_allowed(value):
    assert check_options({"soc_model": value})["soc_model"] == value


@pytest.mark.parametrize("data", [COMPILED, SEVERAL])
def test_a_binary_of_another_soc_is_refused_before_anything_is_started(data, tmp_path):
    options = SessionOptions((PROVIDER,), 1, {"soc_model": "30"})
    file = tmp_path / "model.onnx"
    file.write_bytes(data)
    for source in (data, file):
        with pytest.raises(InvalidFileError, match=r"compiled for SoC (87|43,57), not 30"):
            EXECUTOR.open(source, options)


@pytest.mark.parametrize("asked", [{"precision": "bf16"}, {"profile_to": "p"}, {"save_optimized_to": "m.onnx"}])
def test_what_the_npu_does_not_offer_is_refused_and_not_ignored(asked):
    with pytest.raises(UnsupportedError, match="offers neither"):
        EXECUTOR.open(b"", SessionOptions((PROVIDER,), 1, {"soc_model": "43"}, **asked))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidFileError, match="cannot be read"):
        EXECUTOR.open(tmp_path / "absent.onnx", SessionOptions((PROVIDER,), 1, {"soc_model": "43"}))


def test_without_the_package_the_error_says_how_to_get_it():
    if EXECUTOR.why_unavailable() is None:
        pytest.skip("the package is here")
    with pytest.raises(MissingDependencyError, match=r"edgeopt\[cpu,qnn\]"):
        EXECUTOR.open(b"", SessionOptions((PROVIDER,), 1, {"soc_model": "43"}))


@pytest.mark.parametrize("name", [one for one in target_names() if one.startswith("qualcomm-htp-")])
def test_the_options_of_every_profile_are_known_to_the_library(name):
    target = find_target(name)
    assert isinstance(target, Target)
    checked = check_options(target.options)
    assert f"v{checked['htp_arch']}" == name.removeprefix("qualcomm-htp-")
    assert ("fp16" in target.precisions) == (name != "qualcomm-htp-v68")


def test_the_architecture_of_another_soc_is_refused():
    with pytest.raises(InvalidFileError, match="htp_arch is '68', SoC 43 has 73"):
        check_options({"soc_model": "43", "htp_arch": "68"})
    assert check_options({"soc_model": "999", "htp_arch": "73"})["htp_arch"] == "73"
