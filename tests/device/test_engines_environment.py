"""Engines that are not installed beside the tests: their tests run in an environment of their own."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from fixture_arm64 import TARGET
from fixture_environment import make_environment, run_apart

ENGINES = {"openvino": "openvino", "ncnn": "ncnn", "litert": "ai_edge_litert", "mnn": "MNN"}
"""Extras, and what each imports as. ExecuTorch is left out: with torch it takes a gigabyte, and minutes to convert."""

ON_ARM = {"ncnn", "litert"}


def is_arm_to_be_had() -> bool:
    """Whether there is a Python for Arm, and numbers there are those of this processor."""
    return Path(os.environ.get("EDGEOPT_ARM64", "none"), "python").is_file() and not TARGET.saturates_here


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that holds this checkout with the engines."""
    return make_environment(tmp_path_factory.mktemp("engines") / "environment", ",".join(ENGINES))


@pytest.mark.slow
def test_the_tests_of_engines_pass_in_an_environment_of_their_own(python):
    """All in one process: a start, and what every test imports, takes as long as an engine's own tests."""
    absent = [engine for engine, package in ENGINES.items() if find_spec(package) is None]
    if not absent:
        pytest.skip("all of them are here: their tests run in this environment")
    folder = Path(__file__).parent
    files = [file for engine in absent for file in sorted(folder.glob(f"test_{engine}*.py"))]
    files += [folder / "test_engines_alone.py", folder / "test_arm64_engines.py"]
    files.append(folder.with_name("executors") / "test_held_cores.py")
    done = run_apart([python, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files, "-k", " or ".join(absent)])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for engine in absent:
        assert re.search(rf"test_{engine}\.py::\S+ PASSED", done.stdout), engine
        assert f"[{engine}]'" not in done.stdout, f"{engine}: skipped for want of the package"
    for engine in ON_ARM.intersection(absent) if is_arm_to_be_had() else ():
        assert re.search(rf"test_arm64_engines\.py::\S+{engine}\S+ PASSED", done.stdout), f"{engine} on Arm"
