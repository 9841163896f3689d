from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edgeopt import executors
from edgeopt.errors import InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Null, NullSession, Script
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.measurement.clock import ScriptedClock, cost_of_reading_ns
from edgeopt.measurement.frames.attribution import check_attribution
from edgeopt.measurement.load.closed_loop import run_frames
from edgeopt.measurement.statistics.ratio import Change, ratio_of_rounds, round_logs
from edgeopt.measurement.turns.interleaved import HERE, Pace, TurnsMachine, run_interleaved, take_turns
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.labels import Labels
from edgeopt.system.declared import registry
from edgeopt.tasks import Accuracy, FrameTask

SCRIPT = Script(
    inputs=(TensorSpec("x", "float32", (1,)),),
    answers=({"y": np.array([0.5, 0.25], np.float32)},),
    execute_ns=(10_000_000,),
    upload_ns=200_000,
    download_ns=100_000,
)
PICTURE = np.zeros((4, 4, 3), np.uint8)


@dataclass
class ScriptedTask(FrameTask):
    """A task whose stages take a scripted time."""

    wait_ns: Callable[[int], None]
    preprocess_ns: int = 2_000_000
    postprocess_ns: int = 1_000_000

    def preprocess(self, frame: Frame) -> tuple[Tensors, Any]:
        self.wait_ns(self.preprocess_ns)
        return {"x": np.ones(1, np.float32)}, frame.shape

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        self.wait_ns(self.postprocess_ns)
        return outputs["y"]

    def count(self, answer: Any) -> int:
        return len(answer)

    def score(self, answers: Sequence[Any], labels: Labels) -> Accuracy:
        raise NotImplementedError

    def agreement(self, answers: Sequence[Any], reference: Sequence[Any]) -> float:
        raise NotImplementedError


def opened(clock: ScriptedClock, script: Script = SCRIPT) -> NullSession:
    return Null(clock.advance).open(script.to_bytes(), SessionOptions())


def test_each_stage_gets_its_own_time_and_they_add_up_to_the_frame():
    clock = ScriptedClock()
    samples = run_frames(
        [PICTURE], ScriptedTask(clock.advance), opened(clock), seconds=3.0, min_frames=100, clock=clock
    )
    expected = {
        "preprocess": 2_000_000,
        "upload": 200_000,
        "execute": 10_000_000,
        "download": 100_000,
        "postprocess": 1_000_000,
    }
    assert samples.stages == tuple(expected)
    assert {name: set(samples.stage(name).tolist()) for name in samples.stages} == {
        name: {time} for name, time in expected.items()
    }
    assert set(samples.frame_ns.tolist()) == {13_300_000}
    assert not samples.overhead_ns.any()
    assert check_attribution(samples).valid
    assert check_attribution(samples).residual_ns == 0.0


def test_reading_a_picture_is_the_stage_load():
    clock = ScriptedClock()

    def read() -> Frame:
        clock.advance(7_000_000)
        return PICTURE

    samples = run_frames([read], ScriptedTask(clock.advance), opened(clock), seconds=1.0, min_frames=20, clock=clock)
    assert samples.stages == ("load", "preprocess", "upload", "execute", "download", "postprocess")
    assert set(samples.stage("load").tolist()) == {7_000_000}
    assert set(samples.frame_ns.tolist()) == {20_300_000}
    assert samples.wall_ns is not None
    assert set(samples.wall_ns.tolist()) == {20_300_000}


def test_marks_that_cost_time_make_the_attribution_invalid():
    clock = ScriptedClock(reading_costs_ns=100_000)
    samples = run_frames([PICTURE], ScriptedTask(clock.advance), opened(clock), seconds=1.0, min_frames=50, clock=clock)
    found = check_attribution(samples)
    assert not found.valid
    assert found.residual_ns == 900_000.0  # eleven readings around a marked frame, two around an unmarked one
    assert samples.clock_cost_ns == 100_000
    assert set(samples.overhead_ns.tolist()) == {500_000}  # of these, between the stages


def test_it_runs_for_the_time_and_the_frames_asked_whichever_is_longer():
    clock = ScriptedClock()
    run = ScriptedTask(clock.advance), opened(clock)
    by_time = run_frames([PICTURE], *run, seconds=4.0, min_frames=1, clock=clock)
    assert by_time.steady().frame_ns.sum() >= 4e9 - 0.1e9
    by_count = run_frames([PICTURE], *run, seconds=0.01, min_frames=700, clock=clock)
    assert len(by_count.steady()) >= 700


def test_warmup_is_marked_and_kept():
    clock = ScriptedClock()
    slow_start = replace(SCRIPT, execute_ns=(*[40_000_000] * 60, *[10_000_000] * 100_000))
    session = opened(clock, slow_start)
    samples = run_frames([PICTURE], ScriptedTask(clock.advance), session, seconds=5.0, min_frames=100, clock=clock)
    assert samples.warmup[:45].all()
    assert set(samples.steady().stage("execute").tolist()) == {10_000_000}
    assert 40_000_000 in samples.stage("execute")


def test_inputs_take_turns_and_answers_are_counted():
    clock = ScriptedClock()
    pictures = [PICTURE, PICTURE, PICTURE]
    samples = run_frames(
        pictures, ScriptedTask(clock.advance), opened(clock), seconds=1.0, min_frames=30, clock=clock, variant="v"
    )
    assert samples.input_id is not None
    assert samples.input_id[:7].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert samples.n_out is not None
    assert set(samples.n_out.tolist()) == {2}
    assert samples.variant == "v"
    assert samples.started_ns is not None
    assert samples.done_ns is not None
    assert (samples.done_ns - samples.started_ns == samples.frame_ns).all()
    assert samples.started_ns[0] >= 0
    assert (np.diff(samples.started_ns) > 0).all()


def test_progress_is_told_between_blocks_at_most_four_times_a_second():
    clock, told = ScriptedClock(), []
    run_frames(
        [PICTURE],
        ScriptedTask(clock.advance),
        opened(clock),
        seconds=5.0,
        min_frames=1,
        clock=clock,
        on_progress=lambda frames, seconds: told.append((frames, seconds)),
    )
    gaps = np.diff([seconds for _, seconds in told])
    assert len(told) > 5
    assert gaps.min() >= 0.25
    assert [frames for frames, _ in told] == sorted(frames for frames, _ in told)


def test_no_frames_are_an_error_of_the_caller():
    clock = ScriptedClock()
    with pytest.raises(ValueError, match="no frame"):
        run_frames([], ScriptedTask(clock.advance), opened(clock), seconds=1.0, min_frames=1, clock=clock)


def test_interleaved_variants_get_the_same_frames_and_are_compared_by_stage():
    clock = ScriptedClock()
    fast = replace(SCRIPT, execute_ns=(5_000_000,))
    variants = {
        "base": (ScriptedTask(clock.advance), opened(clock)),
        "fast": (ScriptedTask(clock.advance), opened(clock, fast)),
    }
    runs = run_interleaved([PICTURE] * 3, variants, seconds=2.0, block=4, seed=1, clock=clock)
    base, other = runs["base"], runs["fast"]
    assert base.input_id is not None
    assert other.input_id is not None
    assert (base.input_id == other.input_id).all()
    assert base.warmup.sum() == 4
    assert base.round_id is not None
    assert (np.bincount(base.steady().round_id) == 8).all()
    ratios = {part: ratio_of_rounds(round_logs(other, base, part), pairs=10) for part in ("execute", "postprocess")}
    assert ratios["execute"].speedup == pytest.approx(2.0)
    assert ratios["execute"].verdict is Change.FASTER
    assert ratios["postprocess"].verdict is Change.EQUIVALENT
    with pytest.raises(ValueError, match="two variants"):
        run_interleaved([PICTURE], {"base": variants["base"]}, seconds=1.0, clock=clock)


@pytest.mark.parametrize("enough", [None, 40])
def test_turns_tell_between_rounds_how_much_is_over_and_end_at_all_of_it(enough):
    clock, told = ScriptedClock(), list[tuple[int, int]]()
    openers = {"base": lambda: (ScriptedTask(clock.advance), opened(clock))}
    machine = TurnsMachine(clock=clock, read=HERE.read, measure_anchor=HERE.measure_anchor)
    pace = Pace(2.0, enough=enough, most_legs=2)
    take_turns(openers, synthetic_frames((4, 4)), pace, machine=machine, tell=lambda *one: told.append(one))
    assert told == sorted(told)
    assert told[-1] == (100, 100)
    assert len(told) >= 10


def test_a_scripted_clock_moves_only_forward_and_only_when_told():
    clock = ScriptedClock(5)
    assert (clock(), clock()) == (5, 5)
    clock.advance(10)
    assert clock() == 15
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    assert cost_of_reading_ns(ScriptedClock(reading_costs_ns=70)) == 70


def test_the_null_executor_is_found_by_its_name_and_is_always_available():
    executor = registry.load(executors, "null").EXECUTOR
    assert executor.why_unavailable() is None
    session = executor.open(replace(SCRIPT, execute_ns=(0,), upload_ns=0, download_ns=0).to_bytes(), SessionOptions())
    assert session.inputs == SCRIPT.inputs
    assert session.outputs == (TensorSpec("y", "float32", (2,)),)
    np.testing.assert_array_equal(session.run({"x": np.zeros(1, np.float32)})["y"], SCRIPT.answers[0]["y"])
    assert session.placement() == ()


def test_answers_and_times_of_a_script_take_turns():
    clock = ScriptedClock()
    script = replace(SCRIPT, answers=({"y": np.array([1])}, {"y": np.array([2])}), execute_ns=(10, 20, 30))
    session, seen = opened(clock, script), []
    for _ in range(3):
        before = clock()
        answer = session.run({"x": np.zeros(1, np.float32)})["y"]
        seen.append((int(answer[0]), clock() - before - 300_000))
    assert seen == [(1, 10), (2, 20), (1, 30)]


def test_a_script_is_read_from_a_file_too(tmp_path):
    path = tmp_path / "script.json"
    path.write_bytes(SCRIPT.to_bytes())
    assert Null().open(path, SessionOptions()).script.execute_ns == SCRIPT.execute_ns
    with pytest.raises(InvalidFileError, match="cannot be read"):
        Null().open(tmp_path / "absent.json", SessionOptions())


@pytest.mark.parametrize(
    "source", [b"\x08\x09\x12\x07pytorch", b"[]", b'{"inputs": [], "answers": [], "execute_ns": [1]}']
)
def test_what_is_no_script_is_refused_with_a_remedy(source):
    with pytest.raises(InvalidFileError, match=r"is none.*\n.*--target cpu"):
        Null().open(source, SessionOptions())


def test_a_null_session_refuses_wrong_inputs_and_runs_after_closing():
    session = NullSession(SCRIPT, lambda ns: None)
    with pytest.raises(ValueError, match="inputs are z, not x"):
        session.run({"z": np.zeros(1)})
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.run({"x": np.zeros(1)})
