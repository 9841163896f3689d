"""The whole choice of `optimize` on scripted machines whose noise is known: what is called faster is faster."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_models import activation

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Null
from edgeopt.measurement.accuracy.judgement import judge_agreement, judge_pairs
from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.resources.anchor import AnchorTimes
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.resources.trust import TrustLevel
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.measurement.turns.interleaved import Pace, TurnsMachine, take_turns
from edgeopt.measurement.turns.one_open import proof_seconds, take_turns_one_open
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.measure import Bench, gated, measure_and_choose
from edgeopt.optimization.choice.selection import Wish
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Prefer
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.processes.time_limit import OutOfTime, limited, time_left_s
from edgeopt.tasks import Accuracy

AGREES = judge_agreement(1.0, np.ones(400), 0.9)
"""Only time differs here."""
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "choice_truth.py"


@pytest.fixture(scope="module")
def truth():
    """The benchmark of the same name, as a module."""
    spec = importlib.util.spec_from_file_location("choice_truth", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["choice_truth"] = module
    spec.loader.exec_module(module)
    return module


def test_of_identical_candidates_at_most_one_run_in_twenty_calls_one_faster(truth):
    decisions = [truth.decide(seed, (1.0, 1.0, 1.0)) for seed in range(200)]
    assert sum(bool(truth.called_faster(one)) for one in decisions) <= 10
    assert sum(any(one.speed.verdict == "SLOWER" for one in each.candidates[1:]) for each in decisions) <= 10
    stays = next(one for one in decisions if one.chosen.name == BASELINE)
    assert stays.chosen.reason.startswith("the original stays: no candidate is proven faster")


def test_one_that_is_truly_a_tenth_faster_is_found_in_most_runs(truth):
    decisions = [truth.decide(seed, (1.0, 1.1, 1.0)) for seed in range(40)]
    assert sum(one.chosen.name == "candidate-2" for one in decisions) > 20
    assert sum(bool(set(truth.called_faster(one)) - {"candidate-2"}) for one in decisions) <= 2


def quiet(
    truth,
    speeds,
    *,
    fresh=True,
    wish=None,
    change=None,
    read=None,
    limit_s=math.inf,
    left_out=(),
    judge=None,
    start_s=0.0,
    open_s=0.0,
    speed_there=0.0,
    seconds=1.0,
    **told,
):
    """Return the decision on a machine without noise.

    Args:
        truth: The benchmark.
        speeds: By name, of `execute`, and what `upload` takes in ns.
        fresh: How a fresh process runs; True: as a scripted one, False: there is none.
        wish: What is wanted.
        change: Edits the candidates before they are measured.
        read: Sensors.
        limit_s: Of the machine's clock.
        left_out: Candidates that are not measured.
        judge: Of their accuracy.
        start_s: What a fresh process takes before it opens a model.
        open_s: What a model takes to open for the turns.
        speed_there: Of `execute` of all forms in fresh processes; 0: the same as here.
        seconds: Of the turns.
        **told: What else the bench is told: `one_open`, `time_limit_s`.
    """
    clock = ScriptedClock()
    machine = TurnsMachine(clock, read or (lambda: CounterReading(clock(), clock())), lambda: AnchorTimes((1, 1)))
    known = {BASELINE: (1.0, 0), **speeds}

    def open_one(name, takes_s=0.0):
        clock.advance(int(takes_s * 1e9))
        speed, upload_ns = known[name]
        script = replace(truth.SCRIPT, execute_ns=(int(truth.EXECUTE_NS / speed),), upload_ns=upload_ns)
        return truth.NoTask(), Null(clock.advance).open(script.to_bytes(), SessionOptions())

    def opened(names):
        return {name: partial(open_one, name) for name in names}

    def in_a_process(names, pace, seed):
        clock.advance(int(start_s * 1e9))
        known.update({name: (speed_there or known[name][0], known[name][1]) for name in names})
        return take_turns(opened((BASELINE, *names)), frames, pace, seed=seed, machine=machine)

    frames = Frames(("a", "b"), lambda index: np.zeros(1, np.uint8), Path("scripted"))
    candidates = [
        Candidate(name, "", (), "fp32", f"{name}.onnx", 1000, agreement=1.0, judgement=AGREES) for name in known
    ]
    candidates = [change(one) for one in candidates] if change else candidates
    run = fresh if callable(fresh) else in_a_process if fresh else None
    measured = [name for name in known if name not in left_out]
    openers = {name: partial(open_one, name, open_s) for name in measured}
    bench = Bench(openers, frames, 100.0, 1, run, seconds, machine=machine, **told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeopt.system.processes.time_limit.monotonic", lambda: clock() / 1e9)
        with limited(clock() / 1e9 + limit_s):
            return measure_and_choose(candidates, bench, wish or Wish(max_drop=0.01), judge)


def test_the_whole_frame_decides_and_not_execution_alone(truth):
    """The first executes 1.4 times as fast and loses all of it by upload; the second is a tenth faster in all."""
    decision = quiet(truth, {"uploads": (1.4, 9_000_000), "even": (1.1, 0)})
    assert decision.chosen.name == "even"
    uploads = decision.candidates[1]
    assert uploads.execute.speedup == pytest.approx(1.4, rel=0.01)
    assert uploads.speed.speedup < 1
    assert "execution alone 1.10x" in decision.chosen.reason


def test_a_proof_names_its_processes_and_its_interval(truth):
    decision = quiet(truth, {"fast": (1.5, 0)})
    speed = decision.candidates[1].speed
    assert (speed.verdict, speed.processes) == ("FASTER", 6)
    assert "1.50x [1.50, 1.50] the original's speed over whole frames in 6 fresh processes" in decision.chosen.reason
    assert set(decision.confirmed) == {BASELINE, "fast"}


def test_the_kinder_of_two_stays_unless_the_other_is_proven_faster_than_it(truth):
    def lossy(one: Candidate) -> Candidate:
        judged = judge_pairs(30 if one.name == "lossy" else 10, 10, 5000, 0.01)
        return replace(one, judgement=judged, score=Accuracy("AP", 0.5, 5000))

    assert quiet(truth, {"lossy": (1.51, 0), "kind": (1.5, 0)}, change=lossy).chosen.name == "kind"
    assert quiet(truth, {"lossy": (1.8, 0), "kind": (1.5, 0)}, change=lossy).chosen.name == "lossy"


def test_where_no_fresh_process_runs_nothing_is_chosen_and_the_reason_is_told(truth):
    def fails(names, pace, seed):
        raise EdgeoptError("a fresh process ended with code 1: out of memory", remedy="run edgeopt doctor")

    decision = quiet(truth, {"fast": (1.5, 0)}, fresh=fails)
    assert decision.chosen.name == BASELINE
    assert decision.candidates[1].speed.verdict == "UNCONFIRMED"
    assert "out of memory" in decision.notes[0].detail
    assert "UNCONFIRMED" in decision.chosen.reason


def test_a_device_whose_sessions_open_here_only_is_judged_by_its_turns(truth):
    decision = quiet(truth, {"fast": (1.5, 0)}, fresh=False)
    assert decision.chosen.name == "fast"
    assert decision.candidates[1].speed.processes == 1


@pytest.mark.parametrize(("one_open", "limit_s"), [(False, 0.6), (True, 2.0)])
def test_rounds_that_a_time_limit_cuts_short_prove_nothing(truth, one_open, limit_s):
    fast = {"fast": (1.5, 0)}
    assert quiet(truth, fast, fresh=False, one_open=one_open).chosen.name == "fast"
    cut = quiet(truth, fast, fresh=False, one_open=one_open, limit_s=limit_s)
    assert (cut.chosen.name, cut.candidates[1].speed.verdict) == (BASELINE, "UNCONFIRMED")
    assert "no speed is confirmed: the time limit left 3 of" in cut.notes[0].detail


@pytest.mark.parametrize("count", [2, 4])
def test_what_a_proof_of_large_models_takes_is_known_before(truth, count):
    """The first takes 2 s to open, the others 0.5 s."""
    clock, opened_ns = ScriptedClock(), {f"{i}": 500_000_000 + (i == 0) * 1_500_000_000 for i in range(count)}
    machine = TurnsMachine(clock, lambda: CounterReading(clock(), clock()), lambda: AnchorTimes((1, 1)))

    def open_one(opening_ns):
        clock.advance(opening_ns)
        return truth.NoTask(), Null(clock.advance).open(truth.SCRIPT.to_bytes(), SessionOptions())

    openers = {name: partial(open_one, one) for name, one in opened_ns.items()}
    frames = Frames(("a", "b"), lambda index: np.zeros(1, np.uint8), Path("scripted"))
    turns = take_turns_one_open(openers, frames, Pace(0.0, least_block=3), machine=machine)
    turns_s = [(one + 4 * truth.EXECUTE_NS) / 1e9 for one in opened_ns.values()]
    assert turns.seconds == pytest.approx(proof_seconds(turns_s), rel=0.2)


def test_a_limit_that_leaves_too_few_rounds_is_told_with_the_one_that_would_do(truth):
    cut = quiet(truth, {"fast": (1.5, 0)}, fresh=False, one_open=True, limit_s=2.0, time_limit_s=10.0)
    (note,) = cut.notes
    assert "left 3 of 4 rounds" in note.detail
    assert note.hint == "give --time-limit 20s or more"
    unlimited = quiet(truth, {"fast": (1.5, 0)}, fresh=False, one_open=True, limit_s=2.0)
    assert unlimited.notes[0].hint == "give --time-limit more"


def test_what_the_bench_does_not_open_is_not_measured(truth):
    kept = quiet(truth, {"fast": (1.5, 0), "left": (3.0, 0)}, fresh=False, one_open=True, left_out={"left"})
    assert kept.chosen.name == "fast"
    assert kept.candidates[2].speed is None
    assert set(kept.samples) == {BASELINE, "fast"}


def test_the_smallest_that_is_not_proven_slower_may_be_asked_for(truth):
    def sized(one: Candidate) -> Candidate:
        return replace(one, size_bytes={"small": 300, "smallest": 200, "fast": 900}.get(one.name, 1000))

    speeds = {"fast": (1.5, 0), "small": (1.0, 0), "smallest": (0.8, 0)}
    decision = quiet(truth, speeds, change=sized, wish=Wish(0.01, prefer=Prefer.SIZE))
    assert decision.chosen.name == "small"
    assert "the smallest that is not proven slower (300 B, the original 1000 B)" in decision.chosen.reason
    assert "smallest slower than the original: 0.80x" in decision.chosen.reason
    assert quiet(truth, speeds, change=sized).chosen.name == "fast"


def test_a_clock_that_was_set_proves_nothing(truth):
    readings = iter(range(100))

    def read() -> CounterReading:
        at = next(readings)
        return CounterReading(at * 10**9, at * 10**9 * (3 if at > 2 else 1))

    decision = quiet(truth, {"fast": (1.5, 0)}, read=read)
    assert decision.trust.level is TrustLevel.INVALID
    assert decision.chosen.name == BASELINE


def test_of_what_runs_the_same_graph_no_speed_is_claimed_and_none_is_proven(truth):
    found = quiet(truth, {"twin": (1.5, 0), "fast": (1.3, 0)}, same=frozenset({"twin"}))
    twin = next(one for one in found.candidates if one.name == "twin")
    assert (str(twin.speed.verdict), twin.speed.speedup) == ("EQUIVALENT", 1.0)
    assert twin.latency is not None
    assert "twin" not in found.confirmed
    assert found.chosen.name == "fast"


def test_a_rewrite_of_which_the_engine_makes_the_same_graph_is_equivalent(tmp_path, brief):
    model = tmp_path / "net.onnx"
    onnx.save(activation("i = Identity(x) y = Relu(i)").proto, str(model))
    given = {"calib": "synthetic", "recipe": "tensors", "threads": 1, "steps": ("simplify",)}
    report = optimize(model, target="cpu", out=tmp_path / "out", **given)
    _, simplified = report.candidates
    assert simplified.changes
    assert simplified.speed.verdict is Change.EQUIVALENT
    assert any("simplify: the engine makes the original's own graph of it" in one.detail for one in report.notes)


def test_turns_and_processes_leave_time_for_judging(truth):
    left = list[float]()

    def judge(marked):
        left.append(time_left_s())
        return marked

    began_s = ScriptedClock()() / 1e9
    found = quiet(truth, {"fast": (1.5, 0)}, limit_s=600.0, until_s=began_s + 60.0, judge=judge)
    assert found.candidates[1].speed.processes > 1
    assert left[0] > 500.0, "the limit around it holds again"
    with pytest.raises(OutOfTime):
        quiet(truth, {"fast": (1.5, 0)}, limit_s=600.0, until_s=began_s - 1.0, judge=judge)


def test_a_form_of_fewer_bits_that_answers_alike_on_sure_samples_is_no_rewrite(tmp_path, brief):
    """A classifier that is sure of one class answers so with any weights: equal numbers prove nothing of INT8."""
    chance = np.random.default_rng(0)
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        sure (float[1,3,16,16] x) => (float[1,4] y) {
            c = Conv<kernel_shape = [3,3]>(x, k)
            r = Relu(c)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            z = Gemm(f, w, b)
            y = Softmax(z)
        }"""
    )
    stored = {
        "k": chance.normal(0, 0.1, (8, 3, 3, 3)).astype(np.float32),
        "w": chance.normal(0, 0.1, (8, 4)).astype(np.float32),
        "b": np.array([90, 0, 0, 0], np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in stored.items())
    onnx.save(proto, str(tmp_path / "sure.onnx"))
    samples = chance.normal(0, 1, (24, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=samples)
    given = {"calib": str(tmp_path / "calib.npz"), "recipe": "tensors", "threads": 1, "steps": ("simplify", "quantize")}
    report = optimize(tmp_path / "sure.onnx", target="cpu", out=tmp_path / "out", **given)
    forms = [one for one in report.candidates if one.precision != report.candidates[0].precision]
    assert forms
    assert all(one.is_lossy and not one.is_rewrite and one.word != "KEPT" for one in forms)
    assert not any(one.is_lossy for one in report.candidates if one.steps == ("simplify",))


def test_turns_of_many_forms_leave_the_time_of_the_processes_that_prove_the_best(truth):
    """The turns of ten forms would take 12 s of 18; six processes take 10."""
    speeds = {f"form-{i}": (1.0 + i / 100, 0) for i in range(9)} | {"best": (1.3, 0)}
    began_s = ScriptedClock()() / 1e9
    late = quiet(truth, speeds, limit_s=18.0, start_s=0.7, seconds=12.0)
    assert (late.chosen.name, late.candidates[-1].speed.verdict) == (BASELINE, "UNCONFIRMED")
    kept = quiet(truth, speeds, limit_s=18.0, start_s=0.7, seconds=12.0, turns_until_s=began_s + 6.0)
    assert (kept.chosen.name, kept.candidates[-1].speed.processes) == ("best", 6)


@pytest.mark.parametrize(("limit_s", "proven"), [(18.0, 4), (9.5, 1)])
def test_models_that_open_slower_than_was_seen_are_opened_once(truth, limit_s, proven):
    """Three openings take 7.5 s of the 6 s that the turns have; a process takes 2 s and its frames."""
    decision = quiet(
        truth, {"fast": (4.0, 0)}, limit_s=limit_s, time_limit_s=limit_s, start_s=2.0, open_s=2.5,
        turns_until_s=ScriptedClock()() / 1e9 + 6.0, process_s=lambda names: 2.5,
    )  # fmt: skip
    assert decision.candidates[1].speed.processes == proven
    assert bool(decision.unproven) == (proven < 3)


def test_what_looks_much_faster_is_proven_by_as_few_processes_as_there_is_time_for(truth):
    """A process takes 2 s and its frames, the turns 2.6 s: 11 s leave time for three, 25 s for six."""
    for speed, limit_s, proven in ((4.0, 11.0, 3), (4.0, 25.0, 6), (1.2, 11.0, 0), (1.2, 25.0, 6)):
        decision = quiet(truth, {"fast": (speed, 0)}, limit_s=limit_s, start_s=2.0, time_limit_s=limit_s)
        assert (decision.chosen.name == "fast") == bool(proven)
        assert decision.candidates[1].speed.processes == max(proven, 1)
        assert bool(decision.unproven) == (not proven)


def test_where_the_time_is_short_the_best_is_proven_and_the_others_are_told(truth):
    """Each form costs a process a second: six processes with the best alone fit, with all five none does."""

    def takes(names):
        return 1.0 * len(names)

    forms = {"best": (1.30, 0), "second": (1.29, 0), "third": (1.28, 0)}
    whole = quiet(truth, forms, process_s=takes)
    assert set(whole.confirmed) == {BASELINE, *forms}
    short = quiet(truth, forms, process_s=takes, limit_s=12.0, time_limit_s=12.0)
    assert short.chosen.name == "best"
    assert "third" not in short.confirmed


@pytest.mark.parametrize("start_s", [0.5, 1.5])
def test_the_limit_that_is_told_for_an_unconfirmed_form_proves_it(truth, start_s):
    cut = quiet(truth, {"fast": (1.2, 0)}, start_s=start_s, limit_s=5.0, time_limit_s=5.0)
    assert cut.candidates[1].speed.verdict == "UNCONFIRMED"
    (note,) = cut.notes
    enough_s = float(note.hint.removeprefix("give --time-limit ").removesuffix("s or more"))
    more_s = int(cut.unproven.rpartition("; ")[2].partition(" s more")[0])
    assert 0 < more_s <= enough_s - 5.0
    assert quiet(truth, {"fast": (1.2, 0)}, start_s=start_s, limit_s=5.0 + more_s).chosen.name == "fast"


@pytest.mark.parametrize("limit_s", [3.0 + 0.25 * i for i in range(13)])
def test_where_no_process_fits_the_limit_that_would_do_is_told(truth, limit_s):
    decided = quiet(
        truth, {"fast": (4.0, 0)}, limit_s=limit_s, start_s=2.0, time_limit_s=limit_s, process_s=lambda names: 3.0
    )
    assert decided.chosen.name in (BASELINE, "fast")
    if decided.chosen.name == BASELINE:
        assert any("--time-limit" in note.hint for note in decided.notes)


@pytest.mark.parametrize("limit_s", [9.0, 12.0, 14.0, 20.0])
def test_forms_that_are_proven_in_different_processes_are_compared(truth, limit_s):
    def smaller(candidate):
        return replace(candidate, size_bytes=900) if candidate.name == "small" else candidate

    decided = quiet(
        truth, {"big": (4.0, 0), "small": (1.06, 0)}, change=smaller, start_s=0.3, limit_s=limit_s,
        time_limit_s=limit_s, process_s=lambda names: 1 + 1.2 * len(names),
    )  # fmt: skip
    assert decided.chosen.name == "big"


def test_a_form_that_fresh_processes_show_slower_is_not_told_to_need_more_time(truth):
    """In turns it looks 4 times as fast, in processes it is half as fast."""
    told = list[str]()
    decided = quiet(
        truth, {"fast": (4.0, 0)}, limit_s=11.0, time_limit_s=11.0, start_s=2.0, speed_there=0.5,
        tell=lambda what, done, of: told.append(what),
    )  # fmt: skip
    assert decided.candidates[1].speed.verdict is Change.SLOWER
    assert (decided.unproven, decided.notes) == ("", ())
    assert "confirm fast in fresh processes" in told
    assert not [what for what in told if "  " in what]


def test_few_processes_prove_large_gains_alone():
    def word(speedup: float, processes: int) -> Change:
        ratio = Ratio(speedup, 0.99 * speedup, 1.01 * speedup, Change.FASTER)
        return gated(ratio, processes).verdict

    assert [word(1.06, count) for count in (3, 5, 6)] == [Change.UNCONFIRMED, Change.UNCONFIRMED, Change.FASTER]
    assert [word(4.0, count) for count in (2, 3)] == [Change.UNCONFIRMED, Change.FASTER]


def test_a_form_that_was_not_measured_is_not_chosen_where_others_were(truth):
    decided = quiet(truth, {"slow": (0.5, 0), "other": (2.0, 0)}, fresh=False, one_open=True, left_out=("other",))
    assert decided.chosen.name == BASELINE
    refused = {one.name: one.refused for one in decided.candidates}
    assert "not measured" in refused["other"]
