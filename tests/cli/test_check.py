"""`edgeopt check`: what each check proves, the exit codes, what a continuous integration reads, the command itself."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fixture_bundles import packed

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, NotFoundError
from edgeopt.graph.model import find_model
from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between, score
from edgeopt.measurement.check.baseline import Baseline, path_from, read_baseline, write_baseline
from edgeopt.measurement.check.result import (
    CheckReport,
    CheckResult,
    CheckVerdict,
    judge_accuracy,
    judge_placement,
    judge_size,
    judge_time,
)
from edgeopt.measurement.check.run import thresholds_of
from edgeopt.measurement.check.summary import summarize
from edgeopt.measurement.fresh_process.process import parse_answer
from edgeopt.measurement.fresh_process.start import FreshStart, measure_peaks
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.recipes.default_limits import MAX_DROP, Check
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.recipes.recipe import find_recipe, read_recipe
from edgeopt.report.formats import render
from edgeopt.runtime.bundle import read_bundle, write_bundle
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.environment import Environment, Fact, Use
from edgeopt.tasks import Accuracy

PASS, FAIL, INCONCLUSIVE, SKIPPED = CheckVerdict
QUICK = ("--seconds", "0.3", "--starts", "3", "--threads", "1")


def ratio(low: float, high: float, margin: float = 0.02) -> Ratio:
    """Return the ratio of a time that lies between `low` and `high` of the baseline's."""
    return Ratio(2 / (low + high), 1 / high, 1 / low, Change.INCONCLUSIVE, margin=margin)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (ratio(0.90, 1.04), PASS),
        (ratio(1.06, 1.10), FAIL),
        (ratio(1.02, 1.08), INCONCLUSIVE),
        (ratio(1.06, 1.10, margin=0.08), INCONCLUSIVE),
        (ratio(0.95, 1.04, margin=0.08), PASS),
        (None, INCONCLUSIVE),
    ],
)
def test_a_time_is_judged_by_its_interval_and_by_what_the_machine_does_alone(found, verdict):
    assert judge_time("latency frame", found, 1.05).verdict is verdict


def test_a_noisy_machine_keeps_the_figure_and_blocks_the_verdict_whatever_it_is():
    for found in (ratio(0.90, 0.95), ratio(1.5, 1.6)):
        judged = judge_time("latency frame", found, 1.05, blocked="steal")
        assert (judged.verdict, judged.is_blocked) == (INCONCLUSIVE, True)
        assert judged.measured == pytest.approx(1 / found.speedup)
        assert "steal" in judged.detail


class ShareRight:
    """A task whose metric is the mean, so that its standard error is known."""

    def score(self, answers, labels):
        return Accuracy("top1", float(np.mean(answers)), len(answers), {})

    def score_resamples(self, answers, labels, counts):
        return counts @ np.asarray(answers, np.float64) / counts.sum(axis=1)


def scored(hits: np.ndarray) -> Scored:
    files = tuple(f"{i}.png" for i in range(len(hits)))
    return score(ShareRight(), hits.tolist(), ClassLabels(files=files, classes=tuple(range(len(hits)))))


def test_the_interval_of_a_drop_is_that_of_the_mean_difference_over_pictures():
    rng = np.random.default_rng(0)
    before = rng.random(2000) < 0.7
    after = before & (rng.random(2000) < 0.95)
    drop = drop_between(scored(before), scored(after))
    differences = before.astype(float) - after
    assert drop.value == pytest.approx(differences.mean())
    error = differences.std(ddof=1) / np.sqrt(2000)
    assert (drop.high - drop.low) / 2 == pytest.approx(1.96 * error, rel=0.15)


def test_the_interval_of_a_drop_covers_the_truth():
    rng, held = np.random.default_rng(1), 0
    for _ in range(200):
        before = rng.random(300) < 0.7
        after = np.where(rng.random(300) < 0.9, before, rng.random(300) < 0.5)  # true drop: 0.1 * (0.7 - 0.5)
        drop = drop_between(scored(before), scored(after))
        held += drop.low <= 0.02 <= drop.high
    assert held >= 180


def test_the_same_answers_lose_nothing_for_certain():
    hits = np.random.default_rng(0).random(100) < 0.5
    drop = drop_between(scored(hits), scored(hits))
    assert (drop.value, drop.low, drop.high) == (0, 0, 0)


def test_accuracies_on_other_pictures_are_not_compared():
    hits = np.ones(40)
    assert drop_between(scored(hits), scored(hits[:30])) is None
    other = replace(scored(hits), accuracy=Accuracy("AP", 1.0, 40, {}))
    assert drop_between(scored(hits), other) is None


@pytest.mark.parametrize(
    ("lost", "allowed", "verdict"), [(0, 0.01, PASS), (400, 0.01, FAIL), (30, 0.015, INCONCLUSIVE), (20, 0.05, PASS)]
)
def test_an_accuracy_is_judged_by_the_interval_of_its_drop(lost, allowed, verdict):
    before = np.ones(2000)
    after = before.copy()
    after[np.random.default_rng(0).permutation(2000)[:lost]] = 0
    now = scored(after)
    assert judge_accuracy(drop_between(scored(before), now), now.accuracy, allowed).verdict is verdict


def test_without_a_baselines_accuracy_nothing_is_decided():
    judged = judge_accuracy(None, scored(np.ones(5)).accuracy, 0.01, "it was scored on other pictures")
    assert (judged.verdict, judged.detail) == (INCONCLUSIVE, "it was scored on other pictures")


def test_size_and_placement_are_no_estimates():
    assert judge_size(105, 100, 1.05).verdict is PASS
    assert judge_size(106, 100, 1.05).verdict is FAIL
    assert judge_size(0, 0, 1.05).verdict is INCONCLUSIVE
    then = {"NPU": 8, "CPU": 2}
    assert judge_placement(then, 2, then, 2, 0).verdict is PASS
    assert judge_placement({"NPU": 7, "CPU": 3}, 3, then, 2, 0).verdict is FAIL
    assert judge_placement({"NPU": 7, "CPU": 3}, 3, then, 2, 1).verdict is PASS
    assert judge_placement({}, 0, {}, 0, 0).verdict is SKIPPED
    assert judge_placement({}, 0, then, 2, 0).verdict is INCONCLUSIVE


def report(*verdicts: CheckVerdict, blocked: bool = False, detail: str = "d", updated: bool = False) -> CheckReport:
    results = tuple(CheckResult(f"check {i}", one, 1.0, 1.0, detail) for i, one in enumerate(verdicts))
    if blocked:
        results += (CheckResult("latency frame", INCONCLUSIVE, 1.0, 1.0, detail, is_blocked=True),)
    return CheckReport("model", "b.json", results, Check(), "TRUSTED", (), 1.5, updated)


@pytest.mark.parametrize(
    ("found", "verdict", "exit_code"),
    [
        (report(PASS, SKIPPED), "PASS", 0),
        (report(SKIPPED, SKIPPED), "INCONCLUSIVE", 3),
        (report(), "INCONCLUSIVE", 3),
        (report(PASS, FAIL, INCONCLUSIVE, blocked=True), "FAIL", 2),
        (report(PASS, INCONCLUSIVE), "INCONCLUSIVE", 3),
        (report(PASS, INCONCLUSIVE, blocked=True), "NOISY", 4),
        (report(updated=True), "DONE", 0),
    ],
)
def test_a_proven_failure_goes_before_noise_and_noise_before_doubt(found, verdict, exit_code):
    assert (found.verdict, found.exit_code) == (verdict, exit_code)
    assert json.loads(json.dumps(found.as_json()))["exit_code"] == exit_code


def test_junit_counts_a_failure_an_error_and_a_skip():
    text = render(summarize(report(PASS, FAIL, INCONCLUSIVE, SKIPPED, blocked=True)), "junit")
    suites = ElementTree.fromstring(text)
    suite = suites[0]
    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "5", "failures": "1", "errors": "2", "skipped": "1", "time": "1.500"}
    children = {case.get("name"): [child.tag for child in case] for case in suite}
    assert children["check 1"] == ["failure", "system-out"]
    assert children["check 3"] == ["skipped", "system-out"]
    assert suite.find("testcase[@name='latency frame']/error").get("type") == "noise"
    assert suite.find("testcase[@name='check 2']/error").get("type") == "inconclusive"


def test_junit_stays_valid_whatever_a_file_is_called():
    odd = 'a<b>&"c"\x00\x1b[31m \ufffe ü 数字 \U0001f600'
    suite = ElementTree.fromstring(render(summarize(replace(report(FAIL, detail=odd), name=odd)), "junit"))[0]
    assert "数字 \U0001f600" in suite.get("name")
    assert suite.find("testcase/failure").get("message").startswith('a<b>&"c"\\x00\\x1b[31m ?')


def test_markdown_has_one_row_a_check_and_no_broken_cell():
    text = render(summarize(report(PASS, FAIL, detail="a|b")), "markdown")
    rows = [line for line in text.splitlines() if line.startswith("| check ")]
    assert len(rows) == 3  # the head and two checks
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)
    assert "- check 1: a\\|b" in text
    assert text.startswith("# edgeopt check model: FAIL")


def test_thresholds_come_from_the_recipe_and_wishes_go_over_them():
    recipe = Check(latency_ratio=1.2, size_ratio=1.3)
    found = thresholds_of(recipe, {"size_ratio": 1.1})
    assert (found.latency_ratio, found.size_ratio, found.accuracy_drop) == (1.2, 1.1, MAX_DROP)
    assert thresholds_of(recipe, {}, may_lose=0.02).accuracy_drop == 0.02  # as much as optimize may lose
    assert thresholds_of(Check(accuracy_drop=0.005), {}, may_lose=0.02).accuracy_drop == 0.005
    with pytest.raises(NotFoundError, match="did you mean 'size_ratio'"):
        thresholds_of(recipe, {"size_ration": 1.1})
    with pytest.raises(EdgeoptError, match=r"size_ratio is 0\.0"):
        thresholds_of(recipe, {"size_ratio": 0.0})


def own_recipe(folder: Path, table: str) -> Path:
    text = (find_recipe("digits_detector").folder / "recipe.toml").read_text("utf-8")
    path = folder / "own.toml"
    path.write_text(text.replace('labels = "labels.txt"\n', "") + table, "utf-8")
    return path


def test_a_recipe_may_hold_a_check_table_and_a_wrong_key_is_named(tmp_path):
    assert read_recipe(own_recipe(tmp_path, "\n[check]\nmemory_ratio = 1.5\n")).check == Check(memory_ratio=1.5)
    with pytest.raises(InvalidFileError, match="unknown latency_ration"):
        read_recipe(own_recipe(tmp_path, "\n[check]\nlatency_ration = 1.5\n"))
    with pytest.raises(InvalidFileError, match="accuracy_drop is -1"):
        read_recipe(own_recipe(tmp_path, "\n[check]\naccuracy_drop = -1\n"))


def test_a_bundle_carries_the_check_table_of_its_recipe(tmp_path):
    recipe = replace(find_recipe("digits_detector"), check=Check(latency_ratio=1.4))
    write_bundle(
        tmp_path, [packed("model.onnx", "fp32", b"model", find_target("cpu"))], find_target("cpu"), recipe, {}, {}
    )
    assert read_bundle(tmp_path).recipe.check == Check(latency_ratio=1.4)


def some_baseline(**changes: object) -> Baseline:
    times = np.full((40, 2), 1000, np.int64)
    samples = Samples(("preprocess", "execute"), times, times.sum(axis=1), np.zeros(40, np.bool_))
    values = {
        "name": "model",
        "kind": "frames",
        "model": "model.onnx",
        "workload": "a single model of frames",
        "settings": {"recipe": None},
        "sha256": "0",
        "threads": 1,
        "held": {"accuracy": scored(np.ones(40)).to_json(), "size": 100, "memory": [1, 2, 3]},
        "trust": "noisy",
        "trust_reasons": ("steal: much",),
        "environment": Environment({"cpu.model": Fact(Use.CRITICAL, "A")}),
        "samples": samples,
    }
    return Baseline(**values | changes)


def test_a_baseline_reads_as_it_was_written(tmp_path):
    written = some_baseline()
    write_baseline(written, tmp_path / "b.json")
    found = read_baseline(tmp_path / "b.json")
    assert replace(found, samples=written.samples, held=written.held) == written
    assert Scored.from_json(found.held["accuracy"]) == scored(np.ones(40))
    assert (found.held["size"], found.held["memory"]) == (100, [1, 2, 3])
    np.testing.assert_array_equal(found.samples.times_ns, written.samples.times_ns)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "{", "is not JSON"),
        (lambda text: text.replace('"schema": 5', '"schema": 3', 1), "has schema 3, this edgeopt reads 5"),
        (lambda text: text.replace("check --update", "something"), "is no baseline"),
        (lambda text: text.replace('"sha256"', '"sha"'), "is damaged"),
        (
            lambda text: text.replace('"held": {', '"held": [{').replace('},\n  "holds_times"', '}],\n  "holds_times"'),
            "is damaged",
        ),
        (lambda text: text.replace('"critical"', '"odd"'), "is damaged"),
    ],
)
def test_a_damaged_baseline_is_refused_with_the_command_that_writes_one(tmp_path, damage, message):
    file = tmp_path / "b.json"
    write_baseline(some_baseline(), file)
    file.write_text(damage(file.read_text()))
    with pytest.raises(InvalidFileError, match=message) as caught:
        read_baseline(file)
    assert "--update" in caught.value.remedy


def test_a_baseline_without_its_samples_is_refused(tmp_path):
    write_baseline(some_baseline(), tmp_path / "b.json")
    (tmp_path / "b.npz").write_bytes(b"torn")
    with pytest.raises(InvalidFileError, match="is no archive"):
        read_baseline(tmp_path / "b.json")


def test_a_baseline_and_its_model_can_move_together(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.onnx").write_bytes(b"")
    file = tmp_path / "a" / "gates" / "b.json"
    told = path_from(file, str(tmp_path / "a" / "model.onnx"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moved = tmp_path / "b" / "gates" / "b.json"
    moved.parent.mkdir()
    assert Path(some_baseline(model=told).locate(moved)) == tmp_path / "b" / "model.onnx"
    assert some_baseline(model="gone.onnx").locate(moved) is None
    assert some_baseline(model=path_from(file, "digits_detector")).locate(moved) == "digits_detector"


def test_the_peak_of_a_fresh_process_is_measured():
    target = find_target("cpu")
    start = FreshStart(find_model("digits_detector"), opening_for(target, "fp32", 1))
    (peak,) = measure_peaks({"it": start}, 1)["it"]
    assert 20 * 2**20 < peak < 2**31


def test_a_fresh_process_is_fed_the_shapes_that_a_model_leaves_free(tmp_path):
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    sides = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", "c", "h", "w_"]) for name in ("x", "y")
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"])], "g", sides[:1], sides[1:], [weight]
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "free.onnx")
    start = FreshStart(tmp_path / "free.onnx", opening_for(find_target("cpu"), "fp32", 1), {"x": (1, 3, 8, 8)})
    assert len(measure_peaks({"it": start}, 1)["it"]) == 1
    with pytest.raises(EdgeoptError, match="does not run the model"):
        measure_peaks({"it": replace(start, shapes={})}, 1)


def test_a_fresh_process_that_fails_says_why():
    with pytest.raises(EdgeoptError, match="no such provider"):
        parse_answer('{"error": "no such provider", "remedy": "r"}\n', "", 0, "")
    with pytest.raises(EdgeoptError, match="MemoryError"):
        parse_answer("", "Traceback\nMemoryError", 1, "")
    assert parse_answer('an engine\'s line\n{"peak_bytes": 5}\n', "", 0, "") == {"peak_bytes": 5}


@pytest.fixture(scope="module")
def gate(tmp_path_factory) -> Path:
    """A folder with a good model, its recipe beside it, and its baseline."""
    folder = tmp_path_factory.mktemp("gate")
    shipped = find_model("digits_detector").parent
    for name in ("model.onnx", "recipe.toml", "labels.txt"):
        shutil.copy(shipped / name, folder / name)
    shutil.copytree(shipped / "calib", folder / "calib")
    (folder / "eval").mkdir()
    shutil.copytree(shipped / "eval" / "images", folder / "eval" / "images")
    labels = json.loads((shipped / "eval" / "instances.json").read_text())
    labels["images"] = labels["images"][:30]
    kept = {one["id"] for one in labels["images"]}
    labels["annotations"] = [one for one in labels["annotations"] if one["image_id"] in kept]
    (folder / "eval" / "instances.json").write_text(json.dumps(labels))
    shown = run(folder, folder / "model.onnx", "--update")
    assert shown.exit_code == 0, shown.output
    assert "\nDONE " in shown.output
    return folder


def run(folder: Path, model: object, *more: object) -> object:
    arguments = ["check", model, "--baseline", folder / "b.json", *QUICK, *more]
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def results_of(shown) -> dict[str, dict]:
    return {one["name"]: one for one in json.loads(shown.stdout)["results"]}


def copy(one: Path, to: Path) -> None:
    """Copy a file or a folder: a recipe beside a model reads nothing outside its folder, links included."""
    shutil.copytree(one, to) if one.is_dir() else shutil.copy(one, to)


def variant(gate: Path, folder: Path, change) -> Path:
    """Return a folder like the gate's, with a changed model beside the gate's own recipe."""
    for one in gate.iterdir():
        if one.name != "model.onnx":
            copy(one, folder / one.name)
    model = onnx.load(str(gate / "model.onnx"))
    change(model)
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def add_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2**18, np.float32), "heavy"))
    old = model.graph.output[0].name
    last = next(node for node in model.graph.node if old in node.output)
    last.output[list(last.output).index(old)] = "before"
    nodes = [onnx.helper.make_node("ReduceMin", ["heavy"], ["one"], keepdims=0)]
    model.graph.node.extend([*nodes, onnx.helper.make_node("Mul", ["before", "one"], [old])])


def forget(model: onnx.ModelProto) -> None:
    for weight in model.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.ndim == 4:
            weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(values), weight.name))


def permuted(*order: int):
    """Return a change that gives the classes of the digits another order."""

    def change(model: onnx.ModelProto) -> None:
        old = model.graph.output[0].name
        last = next(node for node in model.graph.node if old in node.output)
        last.output[list(last.output).index(old)] = "before"
        places = np.array([*range(5), *(5 + one for one in order)])
        model.graph.initializer.append(onnx.numpy_helper.from_array(places, "places"))
        model.graph.node.append(onnx.helper.make_node("Gather", ["before", "places"], [old], axis=2))

    return change


def test_the_good_model_keeps_its_accuracy_size_memory_and_placement(gate):
    shown = run(gate, gate / "model.onnx", "--skip", "latency", "--skip", "cold_start")
    assert shown.exit_code == 0, shown.output
    assert "\nPASS " in shown.output
    assert "accuracy    PASS     +0.0000 AP" in shown.output


def test_every_check_has_a_result_and_the_files_say_the_same(gate, tmp_path):
    junit, markdown, html = tmp_path / "j.xml", tmp_path / "m.md", tmp_path / "p.html"
    files = ["--junit", junit, "--markdown", markdown, "--html", html]
    shown = run(gate, gate / "model.onnx", "--json", *files, "--judge-noisy")
    found = results_of(shown)
    assert list(found) == [
        "latency execute",
        "latency frame",
        "size",
        "accuracy",
        "memory",
        "cold start",
        "placement",
    ]
    assert shown.exit_code in (0, 2, 3, 4)
    assert shown.exit_code == json.loads(shown.stdout)["exit_code"]
    suite = ElementTree.parse(junit).getroot()[0]
    assert [case.get("name") for case in suite] == list(found)
    assert all(f"| {name} |" in markdown.read_text() for name in found)
    ratios = {name: one for name, one in found.items() if one["unit"] == "x"}
    assert all(f'data-name="{name}" ' in html.read_text("utf-8") for name in ratios)
    assert all(f'data-value="{one["measured"]!r}"' in html.read_text("utf-8") for one in ratios.values())
    memory = found["memory"]
    assert memory["low"] <= memory["measured"] <= memory["high"]
    assert found["latency frame"]["measured"] > 0
    assert "MiB in a fresh process" in found["memory"]["detail"]


def test_a_model_that_grew_fails_and_that_is_proven(gate, tmp_path):
    shown = run(gate, variant(gate, tmp_path, add_weight), "--skip", "latency,cold_start,memory", "--json")
    assert shown.exit_code == 2
    found = results_of(shown)
    assert found["size"]["verdict"] == "FAIL"
    assert found["accuracy"]["verdict"] == "PASS"
    relaxed = run(gate, tmp_path / "model.onnx", "--skip", "latency,cold_start,memory", "--size-ratio", "9")
    assert relaxed.exit_code == 0, relaxed.output


def test_a_model_that_forgot_everything_fails_on_accuracy(gate, tmp_path):
    shown = run(gate, variant(gate, tmp_path, forget), "--skip", "latency,cold_start,memory,size", "--json")
    assert shown.exit_code == 2
    assert results_of(shown)["accuracy"]["verdict"] == "FAIL"


TIMES = "latency,cold_start,memory,size"


def alone(gate: Path, folder: Path, change=lambda model: None) -> Path:
    """Return a changed model with nothing beside it: neither recipe nor labels."""
    model = onnx.load(str(gate / "model.onnx"))
    change(model)
    onnx.save(model, str(folder / "other.onnx"))
    return folder / "other.onnx"


def test_what_the_baseline_holds_is_checked_on_its_own_labels_though_none_are_given(gate, tmp_path):
    shown = run(gate, alone(gate, tmp_path, forget), "--skip", TIMES, "--recipe", "digits_detector", "--json")
    assert results_of(shown)["accuracy"]["verdict"] == "FAIL"
    assert shown.exit_code == 2


def unlabelled(gate: Path, folder: Path) -> Path:
    """Return a copy of the gate whose recipe ships no labels, and whose baseline holds none."""
    for one in gate.iterdir():
        if one.name not in ("recipe.toml", "b.json", "b.npz"):
            copy(one, folder / one.name)
    text = (gate / "recipe.toml").read_text("utf-8")
    (folder / "model.onnx").unlink()
    shutil.copy(gate / "model.onnx", folder / "model.onnx")
    (folder / "recipe.toml").write_text(re.sub(r'(?m)^labels = "eval.*\n', "", text), "utf-8")
    return folder


def test_accuracy_in_the_baseline_that_no_labels_check_is_never_a_pass(gate, tmp_path):
    folder = unlabelled(gate, tmp_path)
    for name in ("b.json", "b.npz"):
        shutil.copy(gate / name, folder / name)
    shown = run(folder, folder / "model.onnx", "--skip", TIMES, "--json")
    told = results_of(shown)["accuracy"]
    assert (told["verdict"], shown.exit_code) == ("INCONCLUSIVE", 3)
    assert re.search(r"the baseline holds AP 0\.\d+ .* and no labels were given: pass --eval", told["detail"])


def test_without_labels_the_answers_of_the_baselines_model_are_asked(gate, tmp_path):
    folder = unlabelled(gate, tmp_path)
    written = run(folder, folder / "model.onnx", "--update", "--skip", "memory,cold_start")
    assert written.exit_code == 0, written.output
    same = run(folder, folder / "model.onnx", "--skip", TIMES, "--json")
    assert results_of(same)["accuracy"]["verdict"] == "PASS"
    assert "answers agree in 1.000" in results_of(same)["accuracy"]["detail"]
    (folder / "broken").mkdir()
    shutil.copy(folder / "recipe.toml", folder / "broken" / "recipe.toml")
    for name in ("labels.txt", "calib"):
        copy(gate / name, folder / "broken" / name)
    assert written.output.count("the baseline holds no labels, so check sees no loss") == 1
    broken = run(folder, alone(gate, folder / "broken", forget), "--skip", TIMES, "--json")
    assert (results_of(broken)["accuracy"]["verdict"], broken.exit_code) == ("FAIL", 2)
    assert "most are other answers" in results_of(broken)["accuracy"]["detail"]
    two_swapped = permuted(1, 0, *range(2, 10))
    swapped = run(folder, alone(gate, folder / "broken", two_swapped), "--skip", TIMES, "--json")
    assert (results_of(swapped)["accuracy"]["verdict"], swapped.exit_code) == ("FAIL", 2)
    assert "classes are exchanged: 0 is now 1, 1 is now 0" in results_of(swapped)["accuracy"]["detail"]


def test_made_up_pictures_pass_no_accuracy_and_permuted_classes_fail_on_them(gate, tmp_path):
    folder = unlabelled(gate, tmp_path)
    text = (folder / "recipe.toml").read_text("utf-8")
    (folder / "recipe.toml").write_text(text.replace('calib = "calib"', ""), "utf-8")
    written = run(folder, folder / "model.onnx", "--update", "--skip", "memory,cold_start")
    assert written.output.count("its samples are made up: check cannot pass accuracy") == 1
    same = run(folder, folder / "model.onnx", "--skip", TIMES, "--json")
    told = results_of(same)["accuracy"]
    assert (told["verdict"], same.exit_code) == ("INCONCLUSIVE", 3)
    assert "agree in 1.000" in told["detail"]
    assert "made-up samples prove no accuracy" in told["detail"]
    (folder / "broken").mkdir()
    for name in ("recipe.toml", "labels.txt"):
        shutil.copy(folder / name, folder / "broken" / name)
    turned = alone(gate, folder / "broken", permuted(*range(1, 10), 0))
    shown = run(folder, turned, "--skip", TIMES, "--json")
    assert (results_of(shown)["accuracy"]["verdict"], shown.exit_code) == ("FAIL", 2)


def test_skipping_everything_proves_nothing(gate):
    shown = run(gate, gate / "model.onnx", "--skip", f"{TIMES},accuracy,placement")
    assert shown.exit_code == 3, shown.output
    assert "nothing was checked" in shown.output
    assert "\nNOT DECIDED " in shown.output
    assert "not checked latency, size, accuracy, memory, cold start, placement" in shown.output


def test_labels_that_no_answer_fits_are_no_proof_and_write_no_baseline(gate, tmp_path):
    labels = json.loads((gate / "eval" / "instances.json").read_text())
    for one in labels["annotations"]:
        left, top, width, height = one["bbox"]
        one["bbox"] = [max(left - 2 * width, 0), max(top - 2 * height, 0), width / 4, height / 4]
    (tmp_path / "images").symlink_to(gate / "eval" / "images")
    (tmp_path / "wrong.json").write_text(json.dumps(labels))
    shown = run(gate, gate / "model.onnx", "--skip", TIMES, "--eval", tmp_path / "wrong.json", "--json")
    told = results_of(shown)["accuracy"]
    assert (told["verdict"], shown.exit_code) == ("INCONCLUSIVE", 3)
    assert "no better than chance" in told["detail"]
    arguments = ["check", gate / "model.onnx", "-b", tmp_path / "b.json", "--update", "--eval", tmp_path / "wrong.json"]
    refused = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert refused.exit_code == 1
    assert "these labels prove nothing" in refused.output
    assert not (tmp_path / "b.json").exists()


@pytest.fixture
def replaced(gate, tmp_path) -> Path:
    """A folder whose model has changed since the baseline was written, as in a repository."""
    variant(gate, tmp_path, add_weight)
    for name in ("b.json", "b.npz"):
        (tmp_path / name).unlink()
        shutil.copy(gate / name, tmp_path / name)
    return tmp_path


def test_where_the_baselines_model_was_replaced_its_figures_are_used(replaced):
    shown = run(replaced, replaced / "model.onnx", "--json", "--skip", "memory")
    report = json.loads(shown.stdout)
    assert any("is another one now" in note["detail"] for note in report["notes"])
    found = results_of(shown)
    assert found["accuracy"]["verdict"] == "PASS"
    assert found["size"]["verdict"] == "FAIL"
    assert found["latency frame"]["measured"] > 0
    assert found["cold start"]["measured"] > 0


def test_figures_of_another_machine_leave_times_undecided_and_the_key_is_named(replaced):
    values = json.loads((replaced / "b.json").read_text())
    values["environment"]["facts"]["cpu.model"]["value"] = "Another CPU"
    (replaced / "b.json").write_text(json.dumps(values))
    shown = run(replaced, replaced / "model.onnx", "--json", "--skip", "size")
    found = results_of(shown)
    assert shown.exit_code == 3
    for name in ("latency execute", "latency frame", "memory", "cold start"):
        assert found[name]["verdict"] == "INCONCLUSIVE"
        assert "cpu.model (Another CPU / " in found[name]["detail"]
    assert found["accuracy"]["verdict"] == "PASS"


def test_the_gate_from_python(gate):
    found = edgeopt.check(
        gate / "model.onnx",
        baseline=gate / "b.json",
        threads=1,
        skip=("latency", "memory", "cold_start", "accuracy"),
        thresholds={"size_ratio": 0.5},
    )
    assert [one.verdict for one in found.results] == [SKIPPED, FAIL, SKIPPED, SKIPPED, SKIPPED, PASS]
    assert found.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digits_detector", "-b", "nowhere.json"), "nowhere.json does not exist"),
        (("digits_detector", "-b", "b.json", "--skip", "latencies"), "did you mean 'latency'"),
        (("digit_detector", "-b", "b.json", "--update"), "did you mean 'digits_detector'"),
    ],
)
def test_bad_input_is_one_clear_line_and_a_remedy(arguments, message):
    shown = CliRunner().invoke(cli, ["check", *arguments])
    assert shown.exit_code == 1
    assert message in shown.output
    assert shown.output.count("error: ") == shown.output.count("  -> ") == 1


def test_a_baseline_file_is_required():
    shown = CliRunner().invoke(cli, ["check", "digits_detector"])
    assert shown.exit_code == 1
    assert "--baseline" in shown.output


def test_the_table_in_the_docs_shows_the_defaults():
    page = (Path(__file__).parents[2] / "docs" / "compare-and-check.md").read_text("utf-8")
    (table,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert tomllib.loads(table) == {"check": {**asdict(Check()), "accuracy_drop": MAX_DROP}}
