"""A target file with a value that no device can have is refused in one line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.runtime.devices.availability import find_device
from edgeopt.system.disk import assets

WHOLE = (assets.folder("targets") / "cpu-x86-avx2.toml").read_text("utf-8")
DEEP = "[" * 10_000 + "]" * 10_000

WRONG = {
    "no provider": ('providers = ["CPUExecutionProvider"]', "providers = []", "providers are not empty"),
    "unknown precision": ("precisions = [", 'precisions = ["banana", ', "precision 'banana' is none of"),
    "no precision": ('precisions = ["fp32", "w8a8", "w8", "w4"]', "precisions = []", "precisions are one or more"),
    "unknown device": ('device = "cpu"', 'device = "toaster"', "device 'toaster' is not cpu, gpu, npu"),
    "negative threads": ("threads = 0", "threads = -5", "threads is -5"),
    "threads beyond 64 bits": ("threads = 0", f"threads = {2**70}", "no finite number of 64 bits"),
    "a million threads": ("threads = 0", "threads = 1000000", "threads is 1000000"),
    "6,000 digits": ("threads = 0", "threads = " + "9" * 6000, "thousands of digits"),
    "nested": ("threads = 0", f"threads = {DEEP}", "nests deeper than 32"),
    "negative budget": ("threads = 0", "budget_ms = -1", "budget_ms is -1"),
    "NaN budget": ("threads = 0", "budget_ms = nan", "budget_ms is nan"),
    "opset of the future": ("threads = 0", "opset = 99", "opset is 99"),
    "unknown rewrite": ("threads = 0", 'rewrites = ["paint_it_red"]', "no pass named 'paint_it_red'"),
    "options of numbers": ("threads = 0", "options = { a = 1 }", "options is 1"),
    "unknown option": ("threads = 0", 'options = { "session.intra_op.alow_spinning" = "0" }', "alow_spinning'"),
    "a provider's option that is not there": ("threads = 0", 'options = { trt_fp16_enable = "1" }', "trt_fp16_enable"),
    "an option's value": ("threads = 0", 'options = { "session.intra_op.allow_spinning" = "yes" }', "is 'yes'"),
    "found grids on an engine without": (
        'executor = "onnxruntime"\n',
        'executor = "ncnn"\n',
        "ncnn on CPUExecutionProvider has no products on grids",
    ),
    "no TOML": ("threads = 0", "threads = ", "is not TOML"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_no_device_has_is_refused(tmp_path, name):
    old, new, told = WRONG[name]
    assert old in WHOLE
    path = tmp_path / "own.toml"
    path.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(EdgeoptError) as caught:
        find_device(str(path))
    assert told in caught.value.problem
    assert "\n" not in caught.value.problem
    assert len(caught.value.problem) < 600


def test_a_wrong_option_is_told_before_anything_runs(tmp_path):
    """Also for another engine, and where nothing but the plan is asked for."""
    path = tmp_path / "own.toml"
    wrong = WHOLE.replace("threads = 0", 'options = { "session.intra_op.alow_spinning" = "0" }', 1)
    path.write_text(wrong)
    model = str(assets.folder("models") / "digits_detector" / "model.onnx")
    for words in (["inspect", model], ["optimize", model, "--dry-run"]):
        told = CliRunner().invoke(cli, [*words, "-t", str(path)])
        assert told.exit_code == 1
        assert "did you mean 'session.intra_op.allow_spinning'" in told.output
    other = (assets.folder("targets") / "openvino-cpu.toml").read_text("utf-8")
    path.write_text(other.replace("[options]\n", '[options]\nCACHE_DIR = "/tmp"\n', 1))
    with pytest.raises(EdgeoptError, match="property of OpenVINO that a bundle or a target may set"):
        find_device(str(path))


def test_a_target_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(EdgeoptError, match="does not exist"):
        find_device(str(tmp_path / "none.toml"))
    with pytest.raises(EdgeoptError, match="too long"):
        find_device("n" * 5000 + ".toml")
