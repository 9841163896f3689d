"""An engine whose conversions take long, beside a target's own: tried where time allows, else told in one line."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_models import activation

from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime import EXECUTOR, OnnxRuntime
from edgeopt.optimization.candidates import engines
from edgeopt.optimization.candidates.heavy_engines import is_tried, within_its_time
from edgeopt.steps._context import Context, Engine
from edgeopt.system.declared.target import find_target
from edgeopt.system.processes.time_limit import require_time

MODEL = activation("y = Relu(x)")


class Converting(OnnxRuntime):
    """ONNX Runtime as an engine that would take so long for a conversion."""

    heavy = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def conversion_s(self, _source: object) -> float:
        return self.seconds


def run_of(
    limit_s: float | None, conversion_s: float, fault: str = "", spent_s: float = 0.0, emit: tuple[str, ...] = ()
) -> SimpleNamespace:
    """Return the state of a run with one heavy engine, of which so much time is over."""
    other = Engine(replace(find_target("openvino-cpu"), name="slow-cpu", needs={}), Converting(conversion_s), 1)
    rest: dict[str, Any] = dict.fromkeys(("recipe", "target", "frames", "files", "listener"))
    context = Context(
        **rest,
        original=MODEL,
        quantizes=True,
        may_quantize=True,
        threads=1,
        time_limit_s=limit_s,
        engine=Engine(find_target("cpu-x86-vnni"), EXECUTOR, 1),
        ends_at=monotonic() + limit_s - spent_s if limit_s else float("inf"),
        alternatives=(other,),
    )
    looked = list[str]()

    def fault_of(target: Any) -> str:
        looked.append(target.name)
        require_time()
        return fault

    state: dict[str, Any] = {"plan": SimpleNamespace(emit=emit)}
    state |= {"looked_at": frozenset(), "left_out": frozenset(), "replay": None, "looked": looked}
    return SimpleNamespace(context=context, fault_of=fault_of, other=other, **state)


@pytest.mark.parametrize(("limit_s", "is_room"), [(None, True), (600.0, True), (60.0, False)])
def test_a_conversion_of_half_a_minute_is_for_runs_of_ten_minutes(limit_s, is_room):
    run = run_of(limit_s, 30.0)
    assert is_tried(run, run.other, MODEL) is is_room
    assert run.looked == ["slow-cpu"] * is_room, "nothing is converted where there is no room"
    told = [str(note) for note in run.context.notes]
    assert len(told) == (not is_room)
    if told:
        assert "slow-cpu not tried: a conversion takes about 30 s, and 48 s are left for making candidates" in told[0]
        assert "give --time-limit 120s or more" in told[0]


def test_files_that_were_asked_for_are_made_as_long_as_there_is_time():
    run = run_of(60.0, 30.0, emit=("openvino",))
    assert is_tried(run, run.other, MODEL)


def test_the_targets_own_engine_and_quick_ones_are_not_asked():
    run = run_of(1.0, 1e9, spent_s=2.0)
    assert is_tried(run, run.context.engine, MODEL)
    assert is_tried(run, replace(run.other, executor=EXECUTOR), MODEL)
    assert run.context.notes == []


def test_what_it_computes_wrong_is_told_once_and_it_is_left_out_for_pruned_models_too():
    run = run_of(600.0, 1.0, fault="the engine changes what the model answers, by 40%")
    assert [is_tried(run, run.other, MODEL) for _ in range(2)] == [False, False]
    assert run.looked == ["slow-cpu"]
    (note,) = run.context.notes
    assert note.detail == "slow-cpu not tried: the engine changes what the model answers, by 40%"


def test_a_first_conversion_that_took_longer_than_expected_ends_it():
    run = run_of(600.0, 10.0)
    run.fault_of = lambda _target: setattr(run.other.executor, "seconds", 300.0) or ""
    assert not is_tried(run, run.other, MODEL)
    assert "a conversion takes about 300 s" in run.context.notes[0].detail


def test_one_that_does_not_end_costs_half_of_the_time_that_was_left_and_one_line():
    run = run_of(600.0, 10.0)

    def hang(_target: Any) -> str:
        require_time(245.0)  # half of 480 s
        return ""

    run.fault_of = hang
    assert not is_tried(run, run.other, MODEL)
    (note,) = run.context.notes
    assert "did not end in half of the time that was left" in note.detail
    assert note.hint == "give --time-limit 1200s or more"


def test_time_that_is_over_while_it_is_tried_loses_nothing_else():
    run = run_of(100.0, 1.0, spent_s=90.0)
    with within_its_time(run, run.other):
        require_time()
    (note,) = run.context.notes
    assert "slow-cpu" in note.detail
    assert note.hint == "give --time-limit 200s or more"


def test_searches_for_others_keep_time_for_it_only_where_it_has_enough():
    for conversion_s, left_s in ((5.0, 30), (11.0, 60)):
        context = run_of(100.0, conversion_s).context
        assert context.search_seconds(context.engine) == pytest.approx(left_s, abs=1)


def test_a_run_that_is_replayed_makes_its_forms_again_and_no_others():
    run = run_of(1.0, 1e9)
    run.replay = SimpleNamespace(candidates={"a": SimpleNamespace(profile="slow-cpu")})
    assert is_tried(run, run.other, MODEL)
    run.replay = SimpleNamespace(candidates={"a": SimpleNamespace(profile="")})
    assert not is_tried(run, run.other, MODEL)


def test_its_numbers_are_not_looked_at_before_its_turn(monkeypatch):
    asked = list[str]()
    monkeypatch.setattr(engines, "load_executor", lambda name: Converting(1.0) if name == "executorch" else EXECUTOR)
    monkeypatch.setattr(engines, "why_unavailable", lambda target: None)
    monkeypatch.setattr(engines, "open_engine", lambda target, threads, cores: target.name)
    made, _ = engines._alternatives(
        find_target("cpu"), 1, "", engines.Correction(), lambda target: asked.append(target.name) or ""
    )
    assert made[-1] == "executorch-cpu", "the last"
    assert asked == made[:-1]


def test_a_model_that_it_cannot_hold_is_one_line():
    run = run_of(600.0, 1.0)

    def refuse(_target: Any) -> str:
        raise EdgeoptError("it has no such op", remedy="choose another")

    run.fault_of = refuse
    assert not is_tried(run, run.other, MODEL)
    assert run.context.notes[0].detail == "slow-cpu not tried: it has no such op"
