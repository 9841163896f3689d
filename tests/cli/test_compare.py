"""`edgeopt compare`: what its verdicts prove, stored results, the command on the shipped model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_bundles import bundle_with_test
from fixture_models import model
from hypothesis import given
from hypothesis import strategies as st

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Null, Script
from edgeopt.graph.model import save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.bench.stored import read_stored, require_comparable
from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.compare.result import Compared
from edgeopt.measurement.compare.run import mark_front
from edgeopt.measurement.compare.summary import summarize
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Quality, SideFacts
from edgeopt.measurement.slo.run import plan_from
from edgeopt.measurement.statistics.ratio import (
    Change,
    Ratio,
    block_medians,
    decide,
    parts_worth_judging,
    ratio_of_rounds,
    ratio_of_series,
    round_logs,
)
from edgeopt.measurement.turns.interleaved import AGAIN, join_legs, run_interleaved
from edgeopt.measurement.turns.side_by_side import distinct_labels
from edgeopt.recipes.recipe import find_recipe
from edgeopt.report.formats import render
from edgeopt.system.machine.environment import Environment
from edgeopt.tasks import FrameTask

VERDICTS = {"FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE"}


def interleaved(execute_ns: np.ndarray, *, rounds: int = 10, load_ns: int = 500_000) -> Samples:
    """An interleaved run of `rounds` whose frames take `execute_ns` beside loading; the first row is warm-up."""
    n = len(execute_ns)
    times = np.zeros((n, 3), np.int64)
    times[:, 0], times[:, 2] = load_ns, execute_ns
    return Samples(
        stages=("load", "preprocess", "execute"),
        times_ns=times,
        frame_ns=times.sum(axis=1),
        warmup=np.arange(n) < 1,
        round_id=np.repeat(np.arange(rounds), n // rounds),
        input_id=np.arange(n) % 7,
    )


def noisy_machine(seed: int, slowdown: float, rounds: int = 40, block: int = 8) -> tuple[Samples, Samples, Samples]:
    """A model, its copy and a variant on a machine that drifts by 8 % and is 2.5 times slower in a third of rounds."""
    rng = np.random.default_rng(seed)
    busy = np.where(rng.random((rounds, 1)) < 0.33, 2.5, 1.0) * (1 + 0.08 * np.linspace(0, 1, rounds)[:, None])

    def run(factor: float) -> Samples:
        noise = np.exp(0.05 * rng.standard_normal((rounds, block)) + 0.4 * (rng.random((rounds, block)) < 0.1))
        return interleaved((1e6 * factor * busy * noise).ravel().astype(np.int64), rounds=rounds)

    return run(1.0), run(1.0), run(1 + slowdown)


def verdict_on(seed: int, slowdown: float) -> Change:
    base, again, variant = noisy_machine(seed, slowdown)
    null = ratio_of_rounds(round_logs(again, base, "execute"), pairs=80)
    return ratio_of_rounds(round_logs(variant, base, "execute"), pairs=80, null=null).verdict


def test_a_model_against_itself_on_a_noisy_machine_is_never_faster_or_slower():
    assert not {verdict_on(seed, 0.0) for seed in range(200)} & {Change.FASTER, Change.SLOWER}


def test_a_tenth_more_work_is_slower_on_a_noisy_machine():
    found = [verdict_on(seed, 0.10) for seed in range(100)]
    assert found.count(Change.SLOWER) >= 90
    assert Change.FASTER not in found


@pytest.mark.parametrize("rounds", [6, 12, 40, 70])
def test_the_interval_of_ranks_covers_the_truth_as_often_as_it_says(rounds):
    rng = np.random.default_rng(rounds)
    held = 0
    for _ in range(400):
        ratio = ratio_of_rounds(0.05 + 0.02 * rng.laplace(size=rounds), pairs=2 * rounds)
        held += ratio.low <= np.exp(0.05) <= ratio.high
    assert held / 400 >= 0.93


def test_a_few_spoilt_rounds_move_neither_the_ratio_nor_its_interval():
    logs = 0.001 * np.random.default_rng(0).standard_normal(30)
    logs[:4] = 1.5
    ratio = ratio_of_rounds(logs, pairs=60)
    assert ratio.speedup == pytest.approx(1.0, abs=0.002)
    assert ratio.high < 1.01
    assert ratio.verdict is Change.EQUIVALENT


def test_few_rounds_get_students_interval_and_one_round_none():
    ratio = ratio_of_rounds(np.log([1.01, 1.02, 1.03]), pairs=6)
    assert ratio.low < 1.01
    assert ratio.high > 1.03
    with pytest.raises(ValueError, match="one round"):
        ratio_of_rounds(np.zeros(1), pairs=2)


def null_of(deviation: float) -> Ratio:
    return Ratio(1.0, 1 - deviation, 1 + deviation, Change.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("low", "high", "null", "verdict"),
    [
        (0.90, 0.95, 0.01, Change.SLOWER),
        (1.04, 1.06, 0.01, Change.FASTER),
        (0.99, 1.01, 0.01, Change.EQUIVALENT),
        (0.97, 1.05, 0.01, Change.INCONCLUSIVE),
        (1.04, 1.06, 0.05, Change.INCONCLUSIVE),
        (0.93, 0.96, 0.05, Change.INCONCLUSIVE),
        (0.97, 1.03, 0.05, Change.INCONCLUSIVE),
    ],
)
def test_what_the_machine_does_by_itself_is_no_difference_and_no_equality(low, high, null, verdict):
    found = decide((low + high) / 2, low, high, pairs=40, margin=0.02, null=null_of(null))
    assert found.verdict is verdict
    assert (found.pairs_needed == 0) == (verdict is not Change.INCONCLUSIVE)


def test_how_much_longer_is_told_and_never_for_a_ratio_on_the_margin():
    twice = decide(1.0, 0.96, 1.04, pairs=40, margin=0.02, null=None)
    assert twice.pairs_needed == pytest.approx(3 * 40, abs=1)  # half the width takes four times the pairs
    assert decide(1.0201, 1.0, 1.04, pairs=40, margin=0.02, null=None).pairs_needed is None
    beside = decide(1.06, 1.03, 1.09, pairs=40, margin=0.02, null=null_of(0.05))
    assert 0 < beside.pairs_needed < 400


def test_frames_are_paired_by_picture():
    pictures = np.tile([1_000_000, 9_000_000, 4_000_000, 2_000_000], 10)
    logs = round_logs(interleaved(pictures * 11 // 10), interleaved(pictures), "execute")
    np.testing.assert_allclose(logs, -np.log(1.1), rtol=1e-6)


def test_only_runs_in_turns_have_twins():
    run = interleaved(np.full(40, 1000))
    with pytest.raises(ValueError, match="twin"):
        round_logs(replace(run, round_id=None), run, "frame")
    with pytest.raises(ValueError, match="twin"):
        round_logs(interleaved(np.full(60, 1000)), run, "frame")


def test_stages_that_take_next_to_nothing_are_not_judged_and_execution_comes_first():
    runs = {"a": interleaved(np.full(40, 1_000_000)), "b": interleaved(np.full(40, 1_000_000), load_ns=10)}
    assert parts_worth_judging(runs) == ("execute", "frame", "load")
    assert parts_worth_judging({"b": runs["b"]}) == ("execute", "frame")


def test_many_rounds_are_joined_before_they_are_ranked():
    run = interleaved(np.full(1000, 1000), rounds=500)
    assert len(round_logs(run, run, "frame")) <= 200


class Nothing(FrameTask):
    """A task without work, so that a scripted clock tells the times."""

    def preprocess(self, frame):
        return {"x": frame}, None

    def postprocess(self, outputs, geometry):
        return []

    def count(self, answer):
        return 0


def test_a_scripted_engine_that_takes_a_twentieth_longer_is_slower_by_that():
    clock = ScriptedClock()

    def variant(execute_ns: int):
        script = Script((TensorSpec("x", "uint8", (1,)),), ({"y": np.zeros(1)},), execute_ns=(execute_ns,))
        return Nothing(), Null(clock.advance).open(script.to_bytes(), SessionOptions())

    variants = {"a": variant(1_000_000), "b": variant(1_050_000), "a" + AGAIN: variant(1_000_000)}
    frames = [np.zeros(1, np.uint8)]
    samples = run_interleaved(frames, variants, seconds=1.0, block=4, clock=clock)
    null = ratio_of_rounds(round_logs(samples["a" + AGAIN], samples["a"], "execute"), pairs=20)
    ratio = ratio_of_rounds(round_logs(samples["b"], samples["a"], "execute"), pairs=20, null=null)
    assert (null.speedup, null.verdict) == (1.0, Change.EQUIVALENT)
    assert ratio.speedup == pytest.approx(1 / 1.05)
    assert ratio.verdict is Change.SLOWER


def test_legs_are_joined_with_their_rounds_numbered_through():
    leg = interleaved(np.full(20, 1000), rounds=5)
    joined = join_legs([leg, leg, leg])
    assert len(joined) == 60
    assert joined.round_id.tolist() == np.repeat(np.arange(15), 4).tolist()
    assert joined.warmup.sum() == 3


@given(st.lists(st.sampled_from(["a", "b", "c", "a (2)"]), min_size=2, max_size=6))
def test_labels_are_distinct_unless_typed_to_deceive(names):
    labels = distinct_labels(names, names)
    assert len(labels) == len(names)
    if "a (2)" not in names:
        assert len(set(labels)) == len(names)


def test_two_models_of_one_name_are_told_apart_by_what_was_typed():
    assert distinct_labels(["model", "model", "other"], ["a/model.onnx", "b/model.onnx", "o.onnx"]) == (
        "a/model.onnx",
        "b/model.onnx",
        "other",
    )


def row(label: str, value: float | None = None, size: int = 100) -> Compared:
    facts = SideFacts(label, label, size, "0", 1, Environment({}))
    return Compared(facts, {}, {}, None if value is None else Quality("AP", value))


def front(rows: list[Compared], faster: dict[tuple[str, str], Change]) -> list[str]:
    return [one.label for one in mark_front(rows, faster) if one.on_front]


def test_the_front_holds_what_no_other_is_proven_to_beat():
    fast = {("b", "a"): Change.FASTER, ("a", "b"): Change.SLOWER}
    assert front([row("a", 0.5), row("b", 0.4)], fast) == ["a", "b"]
    assert front([row("a", 0.5), row("b", 0.5)], fast) == ["b"]
    assert front([row("a", 0.5), row("b", 0.6)], fast) == ["b"]
    same = {("b", "a"): Change.EQUIVALENT, ("a", "b"): Change.EQUIVALENT}
    assert front([row("a", 0.5), row("b", 0.6)], same) == ["b"]
    assert front([row("a", 0.5), row("b", 0.5)], same) == ["a", "b"]
    unknown = {("b", "a"): Change.INCONCLUSIVE, ("a", "b"): Change.INCONCLUSIVE}
    assert front([row("a", 0.5), row("b", 0.6)], unknown) == ["a", "b"]


def test_without_labels_the_front_is_over_time_and_size():
    fast = {("b", "a"): Change.FASTER, ("a", "b"): Change.SLOWER}
    assert front([row("a", size=100), row("b", size=200)], fast) == ["a", "b"]
    assert front([row("a", size=100), row("b", size=90)], fast) == ["b"]


def test_series_that_did_not_run_in_turns_are_judged_wider_than_their_own_drift():
    rng = np.random.default_rng(0)
    steady = 1e6 * np.exp(0.002 * rng.standard_normal(20))
    assert ratio_of_series(steady * 1.06, steady, margin=0.02).verdict is Change.SLOWER
    drifting = steady * np.linspace(0.9, 1.1, 20)
    found = ratio_of_series(drifting * 1.06, drifting, margin=0.02)
    assert found.verdict is Change.INCONCLUSIVE
    assert found.margin > 0.08
    assert ratio_of_series(steady[:2], steady, margin=0.02) is None


def test_blocks_of_a_run_are_its_process_rounds_where_it_has_them():
    run = interleaved(np.repeat(np.arange(1, 11) * 1000, 20), load_ns=0)
    assert block_medians(run, "frame").tolist() == (np.arange(1, 11) * 1000).tolist()
    alone = replace(run, round_id=None)
    assert len(block_medians(alone, "execute")) == 13


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[Path, Path]:
    """Two results of `bench` on the shipped model."""
    folders = tuple(tmp_path_factory.mktemp("stored") / name for name in ("one", "two"))
    for folder in folders:
        edgeopt.bench("digits_detector", seconds=0.4, min_frames=120, threads=1, out=folder)
    return folders


def changed(folder: Path, to: Path, **facts: object) -> Path:
    """Return a copy of a result whose environment has other facts."""
    values = json.loads((folder / "bench.json").read_text())
    for key, value in facts.items():
        values["environment"]["facts"][key.replace("__", ".")]["value"] = value
    to.mkdir()
    (to / "bench.json").write_text(json.dumps(values))
    (to / "samples.npz").write_bytes((folder / "samples.npz").read_bytes())
    return to


def test_two_results_of_one_machine_are_compared_with_a_warning(results):
    found = edgeopt.compare(*results)
    assert {one.label for one in found.rows} == {str(one) for one in results}
    assert {str(one.verdict).upper() for one in found.rows[1].ratios.values()} <= VERDICTS
    assert any("not made in turns" in note.detail for note in found.notes)
    assert found.null == {}
    assert "sits on the margin" not in render(summarize(found), "terminal")


def test_results_of_another_machine_are_refused_and_the_keys_are_named(results, tmp_path):
    other = changed(results[0], tmp_path / "other", cpu__model="Another CPU", system__kernel="9.9")
    with pytest.raises(EdgeoptError, match=r"cpu\.model \(.*Another CPU\).*system\.kernel") as caught:
        edgeopt.compare(results[0], other)
    assert "measure both here" in caught.value.remedy


def test_of_long_lists_what_differs_is_named(results, tmp_path):
    flags = json.loads((results[0] / "bench.json").read_text())["environment"]["facts"]["cpu.model"]["value"]
    one, other = f"{flags} {'x' * 80} avx2", f"{flags} {'x' * 80} avx512_vnni"
    first = read_stored(changed(results[0], tmp_path / "first", cpu__model=one))
    second = read_stored(changed(results[0], tmp_path / "second", cpu__model=other))
    with pytest.raises(EdgeoptError, match=r"only one has avx2, avx512_vnni"):
        require_comparable(first, second)


def with_values(folder: Path, to: Path, **values: object) -> Path:
    """Return a copy of a result that says other values of itself."""
    changed(folder, to)
    before = json.loads((to / "bench.json").read_text())
    (to / "bench.json").write_text(json.dumps(before | values))
    return to


def test_results_under_different_loads_are_refused(results, tmp_path):
    first = with_values(results[0], tmp_path / "slow", load="fps:5 on 1 stream")
    second = with_values(results[0], tmp_path / "fast", load="fps:50 on 1 stream")
    with pytest.raises(EdgeoptError, match="under different loads: fps:5 on 1 stream, and fps:50 on 1 stream"):
        edgeopt.compare(first, second)
    nothing = with_values(results[0], tmp_path / "alone", load="")
    with pytest.raises(EdgeoptError, match="under different loads: fps:5 on 1 stream, and no load"):
        edgeopt.compare(first, nothing)


def test_threads_that_differ_are_named_where_no_fact_holds_them(results, tmp_path):
    folders = [with_values(results[0], tmp_path / f"of{threads}", threads=threads) for threads in (1, 4)]
    for folder in folders:
        values = json.loads((folder / "bench.json").read_text())
        del values["environment"]["facts"]["session.threads"]
        (folder / "bench.json").write_text(json.dumps(values))
    notes = require_comparable(*map(read_stored, folders))
    assert any(note.detail == "compared: threads (1 / 4)" for note in notes)
    (folders[1] / "bench.json").write_text(json.dumps(values | {"threads": 0}))
    notes = require_comparable(*map(read_stored, folders))
    assert not any(note.detail.startswith("compared") for note in notes), "0: not recorded"


def test_a_result_beside_what_is_not_there_is_told_so(results, tmp_path):
    with pytest.raises(EdgeoptError, match="no model file or shipped model named 'nothere'"):
        edgeopt.compare(results[0], "nothere")
    with pytest.raises(EdgeoptError, match=r"no model file .*missing\.onnx"):
        edgeopt.compare(results[0], tmp_path / "missing.onnx")


def test_times_of_a_server_are_no_plan(results, tmp_path):
    server = with_values(results[0], tmp_path / "server", kind="endpoint", over_network=True)
    with pytest.raises(EdgeoptError, match="times of a server") as refused:
        plan_from(server, within_ms=50, share=0.9, rate_per_s=1, rates=None, interval_s=60, delay_s=0)
    assert refused.value.remedy == "measure the model: edgeopt bench MODEL -o FOLDER"


def test_what_a_comparison_is_about_is_named_and_refuses_nothing(results, tmp_path):
    other = changed(results[0], tmp_path / "other", session__threads=2)
    notes = require_comparable(read_stored(results[0]), read_stored(other))
    assert any("session.threads (1 / 2)" in note.detail for note in notes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("{", "is not JSON"),
        ('{"schema": 99}', "has schema 99"),
        ('{"schema": 5, "kind": "generation", "raw": ""}', "figures of the kind generation, and no raw samples"),
        ('{"schema": 3}', "has schema 3, this edgeopt reads 5"),
        ('{"schema": 1}', "has schema 1, this edgeopt reads 5"),
        ("[]", "names no schema"),
        ('{"schema": 5}', "is no result of edgeopt bench"),
    ],
)
def test_a_damaged_result_is_refused_with_the_remedy(results, tmp_path, damage, message):
    folder = changed(results[0], tmp_path / "damaged")
    (folder / "bench.json").write_text(damage)
    with pytest.raises(InvalidFileError, match=message) as caught:
        read_stored(folder)
    assert "edgeopt bench" in caught.value.remedy


def test_a_result_without_its_raw_samples_is_refused(results, tmp_path):
    folder = changed(results[0], tmp_path / "torn")
    (folder / "samples.npz").unlink()
    with pytest.raises(InvalidFileError, match=r"samples\.npz does not exist") as refused:
        read_stored(folder)
    assert refused.value.remedy == "measure again with edgeopt bench MODEL -o FOLDER, and name that folder"


def test_an_invalid_result_is_refused(results, tmp_path):
    folder = changed(results[0], tmp_path / "invalid")
    values = json.loads((folder / "bench.json").read_text())
    values["trust"]["level"] = "invalid"
    (folder / "bench.json").write_text(json.dumps(values))
    with pytest.raises(EdgeoptError, match="is INVALID"):
        edgeopt.compare(results[0], folder)


@pytest.mark.parametrize(
    ("subjects", "message"),
    [
        ((), "a comparison needs two, 0 given"),
        (("digits_detector",), "a comparison needs two, 1 given"),
        (("digits_detector", "digit_detector"), "did you mean 'digits_detector'"),
        (("digits_detector", "nowhere.json"), "is an earlier result and digits_detector is a model"),
        (("nowhere.json", "nothing.json"), "does not exist"),
    ],
)
def test_bad_input_is_one_clear_line_and_a_remedy(subjects, message):
    shown = CliRunner().invoke(cli, ["compare", *subjects])
    assert shown.exit_code == 1
    assert message in shown.output
    assert shown.output.count("error: ") == shown.output.count("  -> ") == 1


def test_the_command_compares_the_shipped_model_with_itself(tmp_path):
    labels = find_recipe("digits_detector").folder / "eval" / "instances.json"
    arguments = ["digits_detector", "digits_detector", "--seconds", "0.5", "--threads", "1", "--eval", str(labels)]
    shown = CliRunner().invoke(cli, ["compare", *arguments, "-o", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    values = json.loads((tmp_path / "compare.json").read_text())
    first, second = values["rows"]
    assert (first["label"], second["label"]) == ("digits_detector", "digits_detector (2)")
    assert values["parts"][:2] == ["execute", "frame"]
    assert set(second["ratios"]) == set(values["null"]) == set(values["parts"])
    assert second["quality"]["loss"] == {"name": "drop", "value": 0.0, "low": 0.0, "high": 0.0}
    assert first["quality"]["value"] == second["quality"]["value"]
    assert "NaN" not in (tmp_path / "compare.json").read_text()
    for part, ratio in second["ratios"].items():
        assert ratio["verdict"].upper() in VERDICTS
        assert f"| {part} |" in (tmp_path / "compare.md").read_text()
    assert "against itself" in (tmp_path / "compare.md").read_text()
    for name in ("samples-1.npz", "samples-2.npz", "samples-again.npz"):
        assert Samples.read(tmp_path / name).round_id is not None


def test_json_is_all_that_is_printed_when_asked_for():
    shown = CliRunner().invoke(
        cli, ["compare", "digits_detector", "digits_detector", "--seconds", "0.2", "--threads", "1", "--json"]
    )
    assert json.loads(shown.stdout)["in_turns"] is True


def test_the_order_of_subjects_is_kept_and_the_first_is_the_baseline():
    found = edgeopt.compare("digits_detector", "digits_detector", "digits_detector", seconds=0.2, threads=1)
    assert [one.label for one in found.rows] == ["digits_detector", "digits_detector (2)", "digits_detector (3)"]
    assert found.rows[0].ratios == {}
    assert found.exit_code == 0
    assert found.rows[0].label in render(summarize(found), "markdown")


def test_samples_fix_what_a_bundle_leaves_free_where_it_is_timed_without_its_own_recipe(tmp_path, brief):
    """A bundle may keep free dimensions: control flow forbids to fix them, and its own recipe says the sizes."""
    free, x = model("net (float[n, m] x) => (float[n, m] y) { y = Relu(x) }"), np.ones((4, 2, 3), np.float32)
    save_model(free, tmp_path / "free.onnx")
    np.savez(tmp_path / "four.npz", x=x)
    own = replace(find_recipe("tensors"), input=replace(find_recipe("tensors").input, shapes={"x": (2, 3)}))
    bundle_with_test(tmp_path / "bundle", free, own, [{"x": x[0]}], {"model.onnx": free.data})
    told = ["compare", str(tmp_path / "free.onnx"), str(tmp_path / "bundle"), "-r", "tensors", "--threads", "1"]
    shown = CliRunner().invoke(cli, [*told, "-s", str(tmp_path / "four.npz"), "--seconds", "0.2"])
    assert shown.exit_code == 0, shown.output
    assert "shapes fixed as the tensors have: x 2x3" in shown.output
    assert shown.output.count("shapes fixed as the tensors have") == 1
