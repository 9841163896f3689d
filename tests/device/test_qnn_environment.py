"""Qualcomm's path in an environment of its own, where this one lacks the package: CI runs it for real."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fixture_environment import ROOT, make_environment, run_apart

DATA = ROOT.parent / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("onnxruntime_qnn") is not None, reason="onnxruntime-qnn is here: the tests run as they are"
    ),
    pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="onnxruntime-qnn has no wheel for this system"),
]
FILES = sorted(file for file in (ROOT / "tests" / "device").glob("test_qnn*.py") if file != Path(__file__))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Output of the tests with Qualcomm's package, all in one process; without data no real model is tested."""
    python = make_environment(tmp_path_factory.mktemp("qnn") / "environment", "qnn")
    which = () if DATA.is_dir() else ("-m", "not slow")
    tested = run_apart([python, "-m", "pytest", "-v", "-p", "no:cacheprovider", *which, *FILES])
    assert tested.returncode == 0, tested.stdout[-5000:] + tested.stderr[-2000:]
    assert " SKIPPED" not in tested.stdout
    return tested.stdout


def passed(file: str, lines: str) -> int:
    """Return how many tests of a file passed."""
    return len(re.findall(rf"{file}\.py::.* PASSED", lines))


def test_qualcomms_tests_pass_in_an_environment_of_their_own(lines):
    quick = [file.stem for file in FILES if file.stem != "test_qnn_real_models"]
    assert all(passed(file, lines) > 5 for file in quick), {file: passed(file, lines) for file in quick}


def test_two_real_models_pass_there_too(lines, data):
    assert passed("test_qnn_real_models", lines) > 5
