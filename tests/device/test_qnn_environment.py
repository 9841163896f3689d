"""Qualcomm's path in an environment of its own, where this one lacks the package: CI runs it for real."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
    """The interpreter of an environment that holds this checkout with Qualcomm's package, and pytest."""
    place = tmp_path_factory.mktemp("qnn") / "venv"
    venv.create(place, with_pip=True)
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    installed = run([python, "-m", "pip", "install", "--quiet", f"{ROOT}[cpu,qnn]", "pytest", "hypothesis"])
    assert installed.returncode == 0, installed.stderr[-3000:]
    return python


def test_qualcomms_tests_pass_in_an_environment_of_their_own(python):
    tested = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *FILES])
    assert tested.returncode == 0, tested.stdout[-5000:] + tested.stderr[-2000:]
    assert "passed" in tested.stdout
    assert "skipped" not in tested.stdout


def test_two_real_models_pass_there_too(python, data):
    tested = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow", *FILES])
    assert tested.returncode == 0, tested.stdout[-5000:] + tested.stderr[-2000:]
    assert "passed" in tested.stdout
    assert "skipped" not in tested.stdout


def run(command):
    # without the variables of this run: the new environment must find the package that was installed into it
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
