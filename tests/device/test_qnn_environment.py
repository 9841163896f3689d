"""Qualcomm's path in an environment of its own, where this one lacks the package: CI runs it for real."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fixture_environment import ROOT, make_environment, run_apart

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("onnxruntime_qnn") is not None, reason="onnxruntime-qnn is here: the tests run as they are"
    ),
    pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="onnxruntime-qnn has no wheel for this system"),
]
FILES = sorted(one for one in (ROOT / "tests" / "device").glob("test_qnn*.py") if one != Path(__file__))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that holds this checkout with Qualcomm's package."""
    return make_environment(tmp_path_factory.mktemp("qnn") / "environment", "qnn")


def test_qualcomms_tests_pass_in_an_environment_of_their_own(python):
    tested = run_apart([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *FILES])
    assert tested.returncode == 0, tested.stdout[-5000:] + tested.stderr[-2000:]
    assert "passed" in tested.stdout
    assert "skipped" not in tested.stdout


def test_two_real_models_pass_there_too(python, data):
    tested = run_apart([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow", *FILES])
    assert tested.returncode == 0, tested.stdout[-5000:] + tested.stderr[-2000:]
    assert "passed" in tested.stdout
    assert "skipped" not in tested.stdout
