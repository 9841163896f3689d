"""Two profiles of one executor on one device, as a GPU with and without recorded graphs: names, choice, bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from few_labels import write_few
from fixture_brief import briefly

import edgeopt
from edgeopt.optimization import Options
from edgeopt.system.declared.target import find_target

DIGITS = Path(__file__).parents[2] / "models" / "digits_detector"
SLOW = """
name = "slow"
device = "cpu"
executor = "onnxruntime"
description = "the processor, held back"
providers = ["CPUExecutionProvider"]
precisions = ["fp32"]
threads = 1
alternatives = ["cpu-xnnpack"]

[options]
graph_optimization_level = "disable"
"""
QUICK = """
name = "cpu-xnnpack"
device = "cpu"
executor = "onnxruntime"
description = "the same processor"
providers = ["CPUExecutionProvider"]
precisions = ["fp32"]
threads = 1
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A run whose target has another profile of its own executor beside it."""
    folder = tmp_path_factory.mktemp("profiles")
    (folder / "slow.toml").write_text(SLOW)
    (folder / "quick.toml").write_text(QUICK)

    def find(name: str, *more: object):
        return find_target(str(folder / "quick.toml") if name == "cpu-xnnpack" else name, *more)

    few = write_few(DIGITS / "eval" / "instances.json", 16, folder / "few.json")
    with briefly(), pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_PROCESSES", "MOST_PROCESSES"):
            patch.setattr(f"edgeopt.optimization.candidates.measure.{name}", 6)  # fewer prove nothing
        patch.setattr("edgeopt.optimization.candidates.engines.find_target", find)
        return edgeopt.optimize(
            "digits_detector",
            target=str(folder / "slow.toml"),
            out=folder / "out",
            options=Options(steps=("simplify", "fuse"), eval=few),
        )


def test_its_candidates_are_called_by_the_profile(report):
    names = [candidate.name for candidate in report.candidates]
    assert "cpu-xnnpack-fp32" in names
    assert len({*names}) == len(names)


def test_a_bundle_runs_with_the_options_of_the_profile_that_was_measured(report):
    artefacts = json.loads((report.bundle / "manifest.json").read_text())["artefacts"]
    held_back = {"graph_optimization_level": "disable"}
    wanted = {} if report.best.profile else held_back
    assert artefacts[0]["options"] == wanted
    with edgeopt.Runtime.load(report.bundle) as runtime:
        assert runtime.artefact.options == wanted
