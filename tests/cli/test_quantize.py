from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from click.testing import CliRunner
from fixture_brief import briefly

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.judgement import judge_pairs
from edgeopt.optimization.one_step.quantize import quantize, why_prepare
from edgeopt.optimization.one_step.quantize_result import QuantizeResult
from edgeopt.recipes.recipe import find_recipe
from edgeopt.steps.quantize.search.attempt import Attempt, SearchResult
from edgeopt.system.machine.processor import cpu_architecture

DIGITS = find_recipe("digits_detector").folder
LABELS = DIGITS / "eval" / "instances.json"


def blind(model: Model) -> Model:
    """Return a model whose largest weights are zero."""
    proto = onnx.ModelProto.FromString(model.data)
    largest = max(proto.graph.initializer, key=lambda one: one.ByteSize())
    largest.CopyFrom(onnx.numpy_helper.from_array(0 * onnx.numpy_helper.to_array(largest), largest.name))
    return Model(proto, model.name)


def search_giving(*figures: tuple[float, float], made: Callable[[Model], Model] = lambda model: model):
    """A search that tells attempts with these speeds and agreements, all of them the float model, or made of it."""

    def search(model, calibration_inputs, rules, *, on_attempt, **_):
        assert next(iter(calibration_inputs))
        attempts = [Attempt(f"try {i}", Outcome(made(model), {}), a, s) for i, (s, a) in enumerate(figures)]
        for one in attempts:
            on_attempt(one)
        explained = tuple(replace(one, reason=f"{one.name} because.") for one in attempts)
        return SearchResult(explained, explained[0].reason)

    return search


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    out, said = tmp_path_factory.mktemp("quantize") / "digits.onnx", list[str]()
    with briefly():
        wishes = {"threads": 1, "time_limit_s": 4, "max_drop": 1.0}
        made = quantize("digits_detector", out=out, eval=LABELS, say=said.append, **wishes)
    return SimpleNamespace(made=made, said=said, out=out)


def test_attempts_are_told_as_they_come_and_preparing_is_said(result: SimpleNamespace) -> None:
    head, (prepared, *attempts) = result.said[:7], result.said[7:]
    assert [line[:8].strip() for line in head] == ["model", "recipe", "calib", "labels", "allowed", "time lim", ""]
    assert prepared.startswith("simplify and fuse first: ")
    assert "BatchNormalization can go into convolutions" in prepared
    assert len(attempts) == len(result.made.tried)
    assert all("x  agrees 0." in line for line in attempts)


def test_what_is_chosen_is_on_disk_and_runs_on_integers_and_nothing_else_is(result: SimpleNamespace) -> None:
    made: QuantizeResult = result.made
    assert (made.exit_code, made.file) == ((0, result.out) if made.chosen else (2, None)), "all of it may be lost"
    assert result.out.is_file() == (made.chosen is not None)
    if made.chosen:
        assert {"QuantizeLinear", "QLinearConv"} & load_model(result.out).op_counts.keys()
        assert made.chosen.speed_ratio > 1
        judged = made.chosen.judgement
        assert judged.word == "KEPT"
        assert judged.drop_least <= judged.drop <= judged.drop_most


def test_the_reason_is_one_paragraph_that_names_layers(result: SimpleNamespace) -> None:
    assert "\n" not in result.made.reason
    assert "weighted layer" in result.made.reason


def test_the_command_prints_json_that_holds_every_attempt(tmp_path: Path, brief: None) -> None:
    arguments = ["quantize", "digits_detector", "-t", "cpu", "-o", str(tmp_path / "a.onnx"), "--time-limit", "1s"]
    shown = CliRunner().invoke(cli, [*arguments, "--threads", "1", "--json"])
    assert shown.exit_code in (0, 2)
    told = json.loads(shown.stdout)
    assert told["exit_code"] == shown.exit_code
    assert told["tried"][0].keys() >= {"name", "speed_ratio", "agreement"}
    assert (told["file"] is None) == (shown.exit_code == 2)
    assert told["tensors"][0].keys() >= {"name", "channel_sqnr_db", "sqnr_db", "answer_sqnr_db", "rounded"}


@pytest.mark.parametrize("labels", [False, True])
def test_for_another_processor_the_surest_form_is_written_and_no_speed_is_claimed(tmp_path, brief, monkeypatch, labels):
    monkeypatch.setattr(
        "edgeopt.steps.quantize.step.search_int8", search_giving((0.06, 0.97), (0.05, 0.99), (3.0, 0.5))
    )
    other, out = "cpu-arm64" if cpu_architecture() == "x86-64" else "cpu-x86-avx2", tmp_path / "a.onnx"
    arguments = ["quantize", "digits_detector", "-t", other, "-o", str(out), "--threads", "1", "--max-drop", "1.0"]
    shown = CliRunner().invoke(cli, [*arguments, *(["--eval", str(LABELS)] if labels else []), "--json"])
    stored = json.loads(shown.stdout)
    assert (shown.exit_code, stored["chosen"]["name"], out.is_file()) == (0, "try 1", True)
    assert [form["speed_ratio"] for form in stored["tried"]] == [None] * 3
    plain = CliRunner().invoke(cli, arguments)
    text = " ".join(plain.stdout.split())
    assert "whether it is faster is not known: this machine is" in text
    assert "no form is timed, they are ranked by agreement: this machine is" in " ".join(plain.stderr.split())
    assert "estimated" not in text
    assert f"{out} --on ssh://USER@HOST" in text


def test_the_seed_reaches_the_search(tmp_path: Path, brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, search = [], search_giving((0.9, 1.0))

    def seen(*arguments: object, seed: int, **options: object) -> SearchResult:
        seeds.append(seed)
        return search(*arguments, **options)

    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", seen)
    CliRunner().invoke(
        cli,
        ["quantize", "digits_detector", "-t", "cpu", "--seed", "7", "--threads", "1", "-o", str(tmp_path / "a.onnx")],
    )
    wishes = ["--steps", "quantize", "--seed", "8", "--threads", "1", "-o", str(tmp_path / "out")]
    CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", "cpu", *wishes])
    assert seeds[0] == 7
    assert set(seeds[1:]) == {8}


def test_a_slower_form_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", search_giving((0.9, 1.0), (2.0, 0.3)))
    made = quantize("digits_detector", out=tmp_path / "a.onnx", threads=1)
    assert made.chosen is None
    assert made.exit_code == 2
    assert "The float model stays" in made.reason
    assert not list(tmp_path.iterdir())


def test_labels_refuse_what_agreement_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", search_giving((2.0, 0.9), (1.5, 0.95)))
    out = tmp_path / "a.onnx"
    kept = quantize("digits_detector", out=out, eval=LABELS, threads=1, max_drop=0.0)
    assert kept.chosen
    assert kept.chosen.name == "try 0"
    assert kept.reason.endswith("try 0 because.")
    assert (kept.chosen.score, kept.chosen.judgement.drop) == (kept.baseline, 0.0)
    assert (kept.chosen.judgement.word, kept.exit_code) == ("NOT DECIDED", 3), "no labels prove that nothing is lost"
    before = out.read_bytes()
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", search_giving((2.0, 0.9), made=blind))
    refused = quantize("digits_detector", out=out, eval=LABELS, threads=1, max_drop=0.0)
    assert refused.chosen is None
    assert "try 0: NOT DECIDED, drop +0." in refused.reason
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


def test_an_interrupted_search_leaves_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(model, calibration_inputs, rules, *, on_attempt, **_):
        on_attempt(Attempt("first", Outcome(model, {}), 0.99, 1.4))
        raise KeyboardInterrupt

    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", interrupted)
    out = tmp_path / "a.onnx"
    with pytest.raises(KeyboardInterrupt):
        quantize("digits_detector", out=out, threads=1)
    assert not out.exists()
    assert load_model(tmp_path / "a.best-so-far.onnx").outputs


def test_the_reason_is_that_of_the_form_that_labels_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", search_giving((2.0, 0.9), (1.5, 0.95)))
    judged = iter([judge_pairs(0, 0, 400, 0.1), judge_pairs(200, 0, 400, 0.1)])
    monkeypatch.setattr("edgeopt.optimization.choice.form_choice.judge_scores", lambda *_: next(judged))
    made = quantize("digits_detector", out=tmp_path / "a.onnx", eval=LABELS, threads=1, max_drop=0.1)
    assert made.chosen
    assert made.chosen.name == "try 1", "the safer one is tested first"
    assert made.reason.startswith("try 0: LOST, drop +0.5000")
    assert made.reason.endswith("try 1 because.")


def test_an_interrupted_search_starts_from_what_it_has_calibrated(tmp_path: Path, brief: None) -> None:
    def interrupt(text: str, done: int, count: int) -> None:
        if text == "calibrate" and done == count:
            raise KeyboardInterrupt

    out, seen = tmp_path / "a.onnx", list[dict[Path, int]]()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            quantize("digits_detector", out=out, threads=1, tell=interrupt)
        (kept,) = tmp_path.iterdir()
        seen.append({path: path.stat().st_mtime_ns for path in kept.iterdir()})
    assert seen[0] == seen[1] != {}  # the same chunks, none written again
    quantize("digits_detector", out=out, threads=1, time_limit_s=1)
    assert not kept.exists()


def test_a_worse_attempt_does_not_replace_a_better_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr("edgeopt.steps.quantize.step.search_int8", search_giving((2.0, 0.9), (1.2, 0.95)))
    quantize("digits_detector", out=tmp_path / "a.onnx", threads=1, say=said.append)
    assert [line[:4] for line in said[8:]] == ["  * ", "    "], "the star is the best so far"


def test_without_pictures_it_says_what_to_pass(tmp_path: Path) -> None:
    recipe = (DIGITS / "recipe.toml").read_text("utf-8").replace('calib = "calib"', "").replace("labels.txt", "")
    (tmp_path / "recipe.toml").write_text(recipe.replace('labels = ""\n', ""))
    (tmp_path / "model.onnx").write_bytes((DIGITS / "model.onnx").read_bytes())
    with pytest.raises(EdgeoptError, match="no calibration pictures") as caught:
        quantize(tmp_path / "model.onnx", threads=1)
    assert "--calib" in caught.value.remedy


def test_a_model_without_weighted_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeopt.optimization.one_step.quantize.is_quantizable", lambda *_: False)
    with pytest.raises(UnsupportedError, match=r"no layer that .* runs on integers"):
        quantize("digits_detector", threads=1)


def test_why_a_model_is_prepared_first() -> None:
    model = load_model(find_model("digits_detector"))
    old = onnx.ModelProto()
    old.CopyFrom(model.proto)
    old.opset_import[0].version = 11
    old.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    assert why_prepare(Model(old, "old")).startswith("opset 11 knows no scale per channel; the shape of ")
    for node in old.graph.node:
        node.op_type = "Relu" if node.op_type == "BatchNormalization" else node.op_type
    old.opset_import[0].version = 17
    old.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert why_prepare(Model(old, "ready")) == ""


def test_it_is_a_public_name() -> None:
    assert edgeopt.quantize is quantize
