"""Two models on one device: alone, beside each other and scheduled; real threads, scripted times."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import edgeopt
from edgeopt.errors import EdgeoptError
from edgeopt.executors.null import NullSession, Script
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.bench.summary import summarize
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.load import beside
from edgeopt.measurement.load.beside import Arrangement, BesideWish, Member, is_kept, parse_beside, run_beside
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.recipes.recipe import find_recipe
from edgeopt.report.formats import render
from edgeopt.system.machine.threads import usable_cores
from edgeopt.tasks import make_task
from edgeopt.workloads.frames import bench as frames_bench

INPUTS = (TensorSpec("x", "float32", (1, 4)),)
X = {"x": np.zeros((1, 4), np.float32)}


def pipeline(execute_ms: float, session_type=NullSession):
    session = session_type(Script(INPUTS, ({"y": np.zeros((1, 2), np.float32)},), (int(execute_ms * 1e6),)))
    return make_task(find_recipe("tensors"), session.inputs, session.outputs, evaluating=False), session


def member(name: str, execute_ms: float, cores=None, session_type=NullSession) -> Member:
    return Member(name, [X], pipeline(execute_ms), pipeline(execute_ms, session_type), cores)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(beside, "_ROUNDS", 2)
    monkeypatch.setattr(beside, "_LEAST_BLOCK_S", 0.15)
    monkeypatch.setattr(beside, "_WARMUP_S", 0.1)


def run(first: Member, second: Member, rate_per_s: float | None, load: str = "fps:50"):
    return run_beside(first, second, plan_load(BenchOptions(load=load)), rate_per_s, seconds=0.2, min_frames=1)


def test_every_model_has_figures_in_every_arrangement(short):
    found = run(member("a", 1), member("b", 1), 40)
    assert [(one.name, one.arrangement) for one in found.shares] == [
        (name, one) for name in "ab" for one in Arrangement
    ]
    for one in found.shares:
        assert one.frames > 0
        assert 1 <= one.p50_ms <= one.p99_ms
        assert (one.p99_ratio is None) == (one.arrangement is Arrangement.ALONE)
        assert len(one.rounds_p99_ms) == 2
        assert 15 <= one.answers_per_s <= 60
    assert found.in_turns
    assert found.to_json()["shares"][0]["name"] == "a"


def test_the_second_runs_by_patience_alone_where_it_fits_into_no_gap(short):
    found = run(member("a", 2), member("b", 60), None)
    beside_first = found.share(1, Arrangement.BESIDE).frames
    assert found.share(1, Arrangement.SCHEDULED).frames < beside_first  # 60 ms in gaps of 18: once a second


def test_models_with_cores_of_their_own_take_no_turns(short):
    found = run(member("a", 1), member("b", 60, usable_cores()), None)
    assert not found.in_turns
    assert found.share(1, Arrangement.SCHEDULED).frames >= 2


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(0.93, 1.3, True), (0.92, 0.95, True), (0.5, 0.9, False), (0.85, 1.0, None)]
)
def test_a_p99_is_kept_where_its_whole_interval_is_within_a_tenth(low, high, kept):
    assert is_kept(Ratio((low * high) ** 0.5, low, high, Change.INCONCLUSIVE)) is kept


class Failing(NullSession):
    """A session whose fourth run fails."""

    left = 3

    def execute(self, uploaded):
        type(self).left -= 1
        if self.left < 0:
            raise EdgeoptError("the engine failed", remedy="none")
        return super().execute(uploaded)


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_that_fails_ends_the_run_and_lets_the_other_go(short, place):
    Failing.left = 3
    members = [member(name, 1, session_type=Failing if i == place else NullSession) for i, name in enumerate("ab")]
    with pytest.raises(EdgeoptError, match="the engine failed"):
        run(*members, 40)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("b", BesideWish("b", None)),
        ("models/b.onnx@15fps", BesideWish("models/b.onnx", 15.0)),
        ("out@home/b@7.5fps", BesideWish("out@home/b", 7.5)),
        ("b@15", BesideWish("b@15", None)),
    ],
)
def test_a_model_is_named_with_or_without_a_rate(text, wish):
    assert parse_beside(text) == wish


@contextmanager
def refused(match: str):
    with pytest.raises(EdgeoptError, match=match):
        yield


def test_what_cannot_run_beside_is_refused_before_anything_runs():
    with refused("is no model with a rate"):
        edgeopt.bench("digits_detector", load="fps:30", beside="b@0fps")
    with refused("--beside has no meaning in a closed loop"):
        edgeopt.bench("digits_detector", beside="digits_detector")
    with refused("one worker of each model, not 2"):
        edgeopt.bench("digits_detector", load="fps:30", workers=2, beside="digits_detector")
    with refused("nothing_like_it"):
        edgeopt.bench("digits_detector", load="fps:30", beside="nothing_like_it@15fps")


def test_bench_tells_of_both_models(short, tmp_path):
    asked = "digits_detector"
    result = edgeopt.bench(
        asked, load="fps:40", beside=f"{asked}@20fps", seconds=0.4, min_frames=8, threads=1, out=tmp_path
    )
    found = result.passes.beside
    assert {one.name for one in found.shares} == {asked, f"{asked} (2)"}
    assert result.as_json()["beside"]["shares"][2]["arrangement"] == "scheduled"
    page = (tmp_path / "bench.md").read_text("utf-8")
    assert "Two models on one device" in page
    assert f"{asked} (2)" in page
    (figure,) = next(
        one for one in summarize(result, frames_bench).sections if one.title.startswith("Two models")
    ).figures
    assert [bar.tail for bar in figure.bars] == [one.p99_ms for one in found.shares]
    assert f"{asked} (2), scheduled" in (tmp_path / "bench.html").read_text("utf-8")
    told = {True: "kept within 10 %", False: "NOT kept within 10 %", None: "NOT DECIDED"}[found.is_kept]
    assert told in render(summarize(result, frames_bench), "terminal")
