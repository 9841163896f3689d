"""Engines that are not installed beside the tests: their tests run in an environment of their own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from fixture_arm64 import python_for_arm, why_not_on_arm
from fixture_environment import make_environment, run_apart

ENGINES = {"openvino": "openvino", "ncnn": "ncnn", "litert": "ai_edge_litert", "mnn": "MNN"}
"""Extras, and what each imports as. ExecuTorch is left out: with torch it takes a gigabyte, and minutes to convert."""

ON_ARM = {"ncnn", "litert"}


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
    files += [file for engine in absent for file in sorted(folder.parent.glob(f"*/*/test_*_{engine}.py"))]
    files.append(folder.parent / "optimization" / "generation" / "test_prompts_elsewhere.py")
    files.append(folder.with_name("executors") / "test_held_cores.py")
    done = run_apart([python, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files, "-k", " or ".join(absent)])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for engine in absent:
        assert re.search(rf"test_{engine}\.py::\S+ PASSED", done.stdout), engine
        assert f"[{engine}]'" not in done.stdout, f"{engine}: skipped for want of the package"
    for engine in () if why_not_on_arm() else ON_ARM.intersection(absent):
        assert re.search(rf"test_arm64_engines\.py::\S+{engine}\S+ PASSED", done.stdout), f"{engine} on Arm"


@pytest.mark.parametrize(
    ("architecture", "reason"), [("arm64", "this machine is Arm itself"), ("", "no Python for Arm")]
)
def test_tests_of_numbers_on_arm_say_why_they_are_skipped(architecture, reason, tmp_path, monkeypatch):
    """An interpreter alone does not make them run: on an Arm machine there is nothing to compare."""
    monkeypatch.setenv("EDGEOPT_ARM64", str(tmp_path))
    if architecture:
        (tmp_path / "python").touch()
        monkeypatch.setattr("fixture_arm64.cpu_architecture", lambda: architecture)
    assert why_not_on_arm().startswith(reason)
    with pytest.raises(pytest.skip.Exception, match=reason):
        python_for_arm()
