from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from fixture_models import activation, dynamic_conv

from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.measurement.turns.interleaved import TurnsMachine
from edgeopt.optimization import start
from edgeopt.optimization.candidates import other_engines
from edgeopt.optimization.candidates.measure import Bench
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.result import ModelReport
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps._context import Context, Engine
from edgeopt.steps._pruning import Pruning
from edgeopt.steps.prune import step as prune_step
from edgeopt.system.declared.target import find_target
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited, require_pace


def trial(limit_s: float | None, *alternatives: Engine) -> Context:
    """Return a run that has its whole time before it."""
    rest: dict[str, Any] = dict.fromkeys(("recipe", "target", "original", "frames", "files", "listener"))
    ends_at = monotonic() + limit_s if limit_s else float("inf")
    return Context(
        **rest,
        quantizes=True,
        may_quantize=True,
        threads=1,
        time_limit_s=limit_s,
        engine=Engine(find_target("cpu-x86-vnni"), EXECUTOR, 1),
        ends_at=ends_at,
        alternatives=alternatives,
    )


def test_the_time_that_checking_the_reading_takes_counts(monkeypatch, tmp_path):
    clock = [1000.0]

    def read(*_):
        clock[0] += 30
        return ()

    monkeypatch.setattr(start, "monotonic", lambda: clock[0])
    monkeypatch.setattr(start, "with_states", lambda frames, *_: frames)
    monkeypatch.setattr(start, "notes_of_reading", read)
    monkeypatch.setattr(Context, "open", lambda *_: None)
    monkeypatch.setattr(Context, "task", lambda *_, **__: None)
    context = replace(trial(100.0), listener=SimpleNamespace(progress=None))
    before = context.ends_at
    start.read_as_the_recipe_says(context, SimpleNamespace(calib=None), None, object(), tmp_path)
    assert context.ends_at == before


def engine(*precisions: str) -> Engine:
    return Engine(replace(find_target("openvino-cpu"), precisions=precisions, needs={}), EXECUTOR, 1)


def test_searches_leave_two_fifths_of_a_limit_and_share_the_rest():
    alone = trial(100.0)
    assert alone.search_seconds(alone.engine) == pytest.approx(60, abs=1)
    second = engine("fp32", "w8a8", "w8a8+bf16")
    both = trial(100.0, second)
    assert both.search_seconds(both.engine) == pytest.approx(30, abs=1)
    assert both.search_seconds(second) == pytest.approx(60, abs=1)  # of what is left, nothing follows


def test_an_engine_that_runs_no_int8_here_takes_no_time_from_another():
    without = engine("fp32", "bf16")
    run = trial(100.0, without)
    assert run.search_seconds(run.engine) == pytest.approx(60, abs=1)
    lacking = Engine(replace(without.target, precisions=("w8a8",), needs={"w8a8": ("no_such_flag",)}), EXECUTOR, 1)
    run = trial(100.0, lacking)
    assert run.search_seconds(run.engine) == pytest.approx(60, abs=1)


def test_pruning_gets_no_more_time_than_each_search_for_int8_unless_it_is_asked_for():
    run = trial(100.0, engine("fp32", "w8a8"), engine("fp32", "w8a8"), engine("fp32"))
    assert prune_step._until(run).ends_at_s - monotonic() == pytest.approx(15, abs=1)
    assert prune_step._until(replace(run, pruning=Pruning(ratio=0.3))).ends_at_s - monotonic() == pytest.approx(
        30, abs=1
    )
    assert prune_step._until(replace(run, quantizes=False)).ends_at_s - monotonic() == pytest.approx(30, abs=1)


def test_what_ends_pruning_is_said_and_no_time_limit_is_advised_where_it_would_not_help():
    own, given = prune_step._until(trial(None)), prune_step._until(trial(100.0))
    assert own.ends_at_s - monotonic() == pytest.approx(180, abs=1)
    assert "3 minutes" in own.no_look
    assert "3 minutes" in str(own.cut)
    assert "--time-limit" not in f"{own.look_remedy} {own.cut}"
    assert given.look_remedy == given.cut.hint == LONGER


def test_without_a_limit_nothing_limits_and_after_it_nothing_is_left():
    assert trial(None).search_seconds(trial(None).engine) == float("inf")
    late = trial(100.0)
    late.ends_at = monotonic() - 1
    assert late.search_seconds(late.engine) == 0


def test_a_dynamic_model_that_was_not_tried_in_float_in_time_is_told_of():
    late = trial(100.0)
    late.ends_at = monotonic() - 1
    other_engines._offer_in_float(SimpleNamespace(context=late), activation("y = Relu(x)"), None)
    assert late.notes == []
    other_engines._offer_in_float(SimpleNamespace(context=late), dynamic_conv(), None)
    assert [one.detail for one in late.notes] == ["time limit reached before float"]


FRAME_S = 3.0


class SlowFrames:
    """The real engine on a real model, and a clock that only its runs move: three seconds each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, execute = monotonic(), OnnxRuntimeSession.execute  # what is imported later has the real clock

        def slow(session: OnnxRuntimeSession, uploaded: Any) -> Any:
            self.now_s += FRAME_S
            return execute(session, uploaded)

        monkeypatch.setattr(OnnxRuntimeSession, "execute", slow)
        for name, module in [*sys.modules.items()]:
            if name.startswith("edgeopt.") and getattr(module, "monotonic", None) is monotonic:
                monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        machine = TurnsMachine(clock=lambda: int(self.now_s * 1e9))
        monkeypatch.setattr("edgeopt.optimization.choice.decide.Bench", partial(Bench, machine=machine))


def optimize_slowly(tmp_path: Path, limit_s: float) -> ModelReport:
    model = tmp_path / "slow.onnx"
    onnx.save(activation("r = Relu(x) y = Relu(r)").proto, str(model))
    wishes = {"calib": "synthetic", "recipe": "tensors", "threads": 1, "time_limit_s": limit_s}
    return optimize(model, target="cpu", out=tmp_path / "out", **wishes)


@pytest.mark.parametrize("limit_s", [15.0, 60.0])
def test_a_model_of_seconds_a_frame_ends_in_time_and_the_original_stays(limit_s, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "edgeopt.optimization.candidates.engines._alternatives", lambda *_: ([], [])
    )  # none moves the clock
    slow = SlowFrames(monkeypatch)
    began_s = slow.now_s
    report = optimize_slowly(tmp_path, limit_s)
    assert slow.now_s - began_s <= 1.1 * limit_s + 6 * FRAME_S, "within a tenth, and a few answers of the model"
    assert report.chosen == "baseline"
    assert read_bundle(report.bundle).artefacts
    told = " ".join(str(note) for note in report.notes)
    assert "a frame takes 3 s: against the time limit answers are compared on" in told
    assert "give --time-limit 580s or more" in told, "of which 16 frames are a tenth, with a fifth to spare"
    assert ("no candidate is proven faster: the time limit leaves" in told) == (report.best.latency is None)
    assert (report.best.latency is None) == (limit_s < 60), "a longer one leaves time for turns"


def test_work_that_does_not_end_at_its_pace_is_left_at_its_beginning():
    began_s = monotonic() - 5
    with limited(monotonic() + 20):
        require_pace(began_s, 3, 10)
        with pytest.raises(OutOfTime):
            require_pace(began_s, 1, 10)
        require_pace(monotonic(), 1, 1000)
        require_pace(began_s, 10, 10)
    require_pace(began_s, 1, 1000)
