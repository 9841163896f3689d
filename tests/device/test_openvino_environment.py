"""Where OpenVINO is not installed beside the tests, its tests run in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from fixture_environment import make_environment, run_apart


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that holds this checkout with OpenVINO."""
    return make_environment(tmp_path_factory.mktemp("openvino") / "environment", "openvino")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("openvino") is not None, reason="openvino is here: its tests run in this environment")
def test_the_tests_of_openvino_pass_in_an_environment_of_their_own(python):
    done = run_apart([python, "-m", "pytest", "-p", "no:cacheprovider", Path(__file__).with_name("test_openvino.py")])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    assert "passed" in last
    assert "openvino'" not in done.stdout, f"skipped for want of the package: {last}"
