"""Which targets run here: every one is somewhere, and what is missing says what brings it."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import Missing
from edgeopt.executors.onnxruntime.providers import DIRECTML, PROVIDERS
from edgeopt.executors.openvino import EXECUTOR
from edgeopt.report.formats import Paper, render
from edgeopt.runtime.devices import checkup
from edgeopt.runtime.devices.reach import Where, family, find_reach
from edgeopt.system.declared.target import TargetChoice, read_target, target_names
from edgeopt.system.disk import assets
from edgeopt.system.machine.environment import cpu_architecture


@pytest.fixture(scope="module")
def found():
    return {one.name: one for one in find_reach()}


def test_every_target_is_somewhere_and_says_why(found):
    assert list(found) == target_names()
    for one in found.values():
        assert bool(one.reason) == (one.where is not Where.HERE), one
        assert bool(one.executor) == (one.where in (Where.HERE, Where.SIMULATED)), one


def test_the_processor_is_here_and_another_one_is_not(found):
    assert found["cpu"].where is Where.HERE
    other = found["cpu-x86-avx2" if cpu_architecture() == "arm64" else "cpu-arm64"]
    assert (other.where, other.remedy) == (Where.ELSEWHERE, "")


@pytest.mark.skipif(sys.platform == "win32", reason="DirectML may be here")
def test_what_no_build_for_this_system_has_is_of_another_machine(found):
    assert found["directml"].where is Where.ELSEWHERE
    assert found["directml"].reason == f"{PROVIDERS[DIRECTML].title} exists on Windows only"


def test_what_is_missing_says_what_brings_it(found):
    missing = [one for one in found.values() if one.where is Where.MISSING and one.name not in ("gpu", "npu")]
    assert missing
    assert all(one.remedy for one in missing)


def test_a_family_is_told_by_its_head():
    assert family(["qualcomm-htp-v68", "qualcomm-htp-v73", "qualcomm-htp-v81"]) == "qualcomm-htp-* (3)"
    assert family(["nvidia-cuda", "nvidia-tensorrt"]) == "nvidia-cuda, nvidia-tensorrt"
    assert family(["intel-npu", "openvino-cpu", "openvino-gpu"]) == "intel-npu, openvino-cpu, openvino-gpu"


def test_what_is_missing_is_one_text_and_its_parts():
    one = Missing("it is not installed", "pip install it")
    assert one == "it is not installed (pip install it)"
    assert (one.reason, one.remedy, Missing("gone")) == ("it is not installed", "pip install it", "gone")


def test_a_checkup_fits_a_screen():
    examined = checkup.examine()
    lines = render(checkup.summarize(examined), "terminal", Paper(80)).splitlines()
    here = [name for name, why_not in examined.executors.items() if not why_not]
    assert len(lines) <= 34 + len(here) + len(examined.notes)
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", ["targets", "models"])
def test_lists_fit_a_screen(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(cli, [command]).output.splitlines()
    assert len(lines) <= 34
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("name", target_names())
def test_every_target_is_shown_by_name(name, found):
    shown = CliRunner().invoke(cli, ["targets", name])
    assert shown.exit_code == 0, shown.output
    command = f"edgeopt optimize MODEL --target {name}"
    assert (command in shown.output) == found[name].takes_models


@pytest.mark.parametrize("name", ["npu", "gpu", "nvidia-cuda", "qualcomm-htp-v73", "rockchip-rk3588", "directml"])
def test_no_target_is_told_to_do_what_fails(name, found):
    """A command that a target's page ends with must run, and what it lacks must be told before."""
    if found[name].takes_models:
        pytest.skip("it runs here")
    shown = CliRunner().invoke(cli, ["targets", name]).output
    refused = CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", name, "-o", "never-written"])
    assert refused.exit_code == 1
    assert f"--target {name}" not in shown
    named = read_target(assets.folder("targets") / f"{name}.toml")
    members = named.choose if isinstance(named, TargetChoice) else ()
    assert all(f"\n{each} " in shown for each in members)
    assert members or found[name].where is Where.ELSEWHERE or "get it" in shown


def test_an_npu_that_is_not_there_is_not_told_to_install_what_is_installed(monkeypatch):
    """OpenVINO may be installed where the NPU or its driver is not."""
    monkeypatch.setattr(type(EXECUTOR), "devices", lambda self: ("CPU",))
    monkeypatch.setattr(type(EXECUTOR), "has_cpu", lambda self: True)
    npu = next(one for one in find_reach() if one.name == "intel-npu")
    assert npu.where is Where.MISSING
    assert npu.reason == "OpenVINO is here and finds no NPU"
    assert npu.remedy == "install the driver of the NPU"


def test_every_recipe_is_shown_by_name():
    for one in CliRunner().invoke(cli, ["models", "--json"]).output.split('"name": "')[1:]:
        shown = CliRunner().invoke(cli, ["models", one.partition('"')[0]])
        assert shown.exit_code == 0, shown.output
        assert "edgeopt optimize " in shown.output


def test_an_unknown_target_is_told_with_the_nearest():
    shown = CliRunner().invoke(cli, ["targets", "qualcomm-htp-v7"])
    assert shown.exit_code == 1
    assert "did you mean 'qualcomm-htp-v7" in shown.output
