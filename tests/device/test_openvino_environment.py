"""Where OpenVINO is not installed beside the tests, its tests run in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = "pytest>=8.3"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that holds this checkout with OpenVINO, and pytest."""
    place = tmp_path_factory.mktemp("openvino") / "environment"
    venv.create(place, with_pip=False)
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", f"{ROOT}[cpu,openvino]", PYTEST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.slow
@pytest.mark.skipif(find_spec("openvino") is not None, reason="openvino is here: its tests run in this environment")
def test_the_tests_of_openvino_pass_in_an_environment_of_their_own(python):
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_openvino.py"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    assert "passed" in last
    assert "openvino'" not in done.stdout, f"skipped for want of the package: {last}"
