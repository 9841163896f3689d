"""An absent package is one error, with the command that brings it and what to know before."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from edgeopt.errors import MissingDependencyError
from edgeopt.system.declared.optional import how_to_install, require, require_torch

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def test_without_torch_one_line_names_the_extra_and_the_cpu_build(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError) as raised:
        require_torch("training")
    problem, remedy = str(raised.value).splitlines()
    assert problem.endswith(": training needs it")
    assert remedy.startswith("  -> pip install 'edgeopt[train]'; ")
    assert "gigabytes of CUDA" in remedy
    assert remedy.endswith("pip install torch --index-url https://download.pytorch.org/whl/cpu")


def test_other_extras_are_a_command_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError) as raised:
        require("openvino", extra="openvino", purpose="the executor openvino")
    assert raised.value.remedy == how_to_install("openvino") == "pip install 'edgeopt[openvino]'"


def test_only_the_extras_that_train_export_and_run_executorch_bring_torch():
    brings = {name for name, packages in EXTRAS.items() if any("torch>" in package for package in packages)}
    assert brings == {"train", "export", "executorch"}
    assert "train" not in " ".join(EXTRAS["test"])


def test_torch_that_is_there_is_what_import_gives():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert require_torch("training") is torch


def test_listing_the_steps_imports_no_torch():
    code = "import sys; from edgeopt.optimization.plan import all_steps; all_steps(); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
