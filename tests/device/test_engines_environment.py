"""Engines that are not installed beside the tests: their tests run in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from fixture_environment import make_environment, run_apart

ENGINES = {"openvino": "openvino", "ncnn": "ncnn", "litert": "ai_edge_litert"}
"""Extras, and what each imports as. ExecuTorch is left out: with torch it takes a gigabyte, and minutes to convert."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that holds this checkout with the engines."""
    return make_environment(tmp_path_factory.mktemp("engines") / "environment", ",".join(ENGINES))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "package"), ENGINES.items())
def test_the_tests_of_an_engine_pass_in_an_environment_of_their_own(python, engine, package):
    if find_spec(package) is not None:
        pytest.skip(f"{engine} is here: its tests run in this environment")
    tests = Path(__file__).with_name(f"test_{engine}.py")
    held = Path(__file__).parents[1] / "executors" / "test_held_cores.py"
    done = run_apart([python, "-m", "pytest", "-p", "no:cacheprovider", tests, held, "-k", engine])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    assert "passed" in last
    assert f"[{engine}]'" not in done.stdout, f"skipped for want of the package: {last}"
