"""`optimize` on a processor with several kinds of core: the choice, its proof, and where it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_topologies import seem_to_have, topology

from edgeopt.graph.model import Model
from edgeopt.measurement.opening import threads as measured_threads
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.opening.threads import ThreadUse, choose_threads, default_threads
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target

ONE, FAST, ALL, HELD = ThreadUse(1), ThreadUse(4), ThreadUse(8), ThreadUse(4, "fast")
pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux holds threads to cores")


def a_ratio(speed: float) -> Ratio:
    """Return a ratio as sure as it can be."""
    return Ratio(speed, speed, speed, Change.FASTER if speed > 1.02 else Change.EQUIVALENT)


@pytest.mark.parametrize(
    ("speeds", "beside_best", "chosen"),
    [
        ({FAST: 3.0, ALL: 2.0, HELD: 3.5}, 1.2, HELD),
        ({FAST: 3.0, ALL: 2.0, HELD: 3.5}, 1.01, FAST),
        ({FAST: 3.0, ALL: 4.0, HELD: 3.5}, 0.9, ALL),
        ({FAST: 1.0, ALL: 0.5, HELD: 1.0}, 1.0, ONE),
        ({FAST: 1.0, ALL: 0.5, HELD: 2.0}, 2.0, HELD),
    ],
)
def test_an_engine_is_held_only_where_that_is_proven_beside_the_best_of_the_others(
    monkeypatch, speeds, beside_best, chosen
):
    asked = []

    def scripted(runs, *, baseline, **_):
        asked.append((baseline, [*runs]))
        if len(runs) == 4:
            return {str(use): a_ratio(speed) for use, speed in speeds.items()}
        return {name: a_ratio(beside_best) for name in runs if name != baseline}

    monkeypatch.setattr(measured_threads, "compare_calls", scripted)
    given = open_given("digits_detector", "cpu-x86-vnni", None)
    shapes = {spec.name: spec.shape for spec in given.model.inputs}
    use = choose_threads(given.model, find_target("cpu-x86-vnni"), shapes, [ONE, FAST, ALL, HELD])
    assert (use.threads, use.cores) == (chosen.threads, chosen.cores)
    free = [str(ONE), str(FAST), str(ALL)]
    assert asked[0] == (str(ONE), [*free, "4 threads held to the fast cores"])
    assert asked[1][1][1] == str(HELD)
    assert use.note
    assert use.note.detail.startswith(f"4 threads held to the fast cores: {beside_best:.2f}x [")
    assert use.note.detail.endswith(", not proven") == (chosen is not HELD)


@pytest.fixture
def own(tmp_path) -> Path:
    """A profile that fits any processor."""
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\ndevice = "cpu"\nexecutor = "onnxruntime"\ndescription = "of this test"\n'
        'providers = ["CPUExecutionProvider"]\nprecisions = ["fp32"]\n'
    )
    return path


@pytest.fixture
def one_fast(tmp_path, monkeypatch) -> int:
    """Let the last core of this machine seem to be its only fast one; return its number."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("this machine lends one core")
    capacities = [1024 if number == mine[-1] else 414 for number in range(mine[-1] + 1)]
    seem_to_have(monkeypatch, topology(tmp_path / "cores", cpu_capacity=capacities), mine)
    monkeypatch.setattr(measured_threads, "physical_cores", lambda: len(mine))
    return mine[-1]


def uses_of(monkeypatch: pytest.MonkeyPatch, target: Path, asked: int = 0) -> list[ThreadUse]:
    """Return what would be measured of a target; nothing where nothing would."""
    tried = list[ThreadUse]()

    def written_down(model: Model, target: object, shapes: object, uses: list[ThreadUse]) -> ThreadUse:
        tried.extend(uses)
        return uses[0]

    monkeypatch.setattr(measured_threads, "choose_threads", written_down)
    given = open_given("digits_detector", str(target), None)
    default_threads(given.model, given.choice.recipe, given.target, asked)
    return tried


def test_held_threads_are_tried_where_the_system_tells_kinds_and_nobody_said_otherwise(
    one_fast, own, tmp_path, monkeypatch
):
    assert uses_of(monkeypatch, own)[-1] == ThreadUse(1, "fast")
    assert not uses_of(monkeypatch, own, asked=1)
    seem_to_have(monkeypatch, tmp_path / "nothing told", sorted(os.sched_getaffinity(0)))
    assert not any(use.cores for use in uses_of(monkeypatch, own)), "one kind of core"


def test_a_profile_that_says_it_is_believed(one_fast, own, monkeypatch):
    own.write_text(own.read_text("utf-8") + 'cores = "fast"\n')
    tried = uses_of(monkeypatch, own)
    assert tried
    assert not any(use.cores for use in tried), "free threads would not be what the profile says"


def test_what_is_proven_is_told_kept_and_opened_so(one_fast, own, tmp_path, monkeypatch, brief):
    use = ThreadUse(1, "fast").proven_over(ThreadUse(2), a_ratio(1.2))
    monkeypatch.setattr(measured_threads, "choose_threads", lambda *_: use)
    wishes = {"target": str(own), "steps": ("simplify",)}
    report = optimize("digits_detector", out=tmp_path / "o", **wishes)
    assert (report.threads, report.cores) == (1, "fast")
    page = (tmp_path / "o" / "report.md").read_text("utf-8")
    assert "1 thread held to the fast cores: 1.20x [1.20, 1.20] as fast as 2 threads on any core" in page
    assert "own, 1 thread held to the fast cores" in page
    assert read_report(tmp_path / "o", ModelReport).cores == "fast"
    bundle = read_bundle(report.bundle)
    assert bundle.artefacts[0].cores == "fast"
    with Runtime.load(bundle) as runtime:
        assert runtime.session.cores == (one_fast,)
    seem_to_have(monkeypatch, tmp_path / "nothing told", sorted(os.sched_getaffinity(0)))
    with Runtime.load(bundle) as runtime:
        assert runtime.opening.options.cores == "fast"
        assert runtime.session.cores == (), "a device with one kind of core"
    again = optimize("digits_detector", out=tmp_path / "p", replay=report.folder, **wishes)
    assert (again.threads, again.cores) == (1, "fast"), "a replay makes what was made"
