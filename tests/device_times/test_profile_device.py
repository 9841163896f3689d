"""A device's times measured here, and what is made for a device of which only its times are here."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from fixture_brief import briefly, ending_after
from lawful_times import by_work, device_by, times_by

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.model import find_model, load_model, save_model
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.result import ModelReport
from edgeopt.runtime.bundle import MANIFEST, read_bundle
from edgeopt.steps._device_times.device import predictor_of
from edgeopt.steps._device_times.prediction import model_shapes
from edgeopt.system.declared.device_times import read_device_times, write_device_times
from edgeopt.system.declared.target import find_target
from edgeopt.verbs.device_profile import measure, profile
from edgeopt.verbs.device_profile.measure import profile_network, with_plain_names
from edgeopt.verbs.device_profile.networks import FAMILIES, NetworkShape
from edgeopt.verbs.device_profile.profile import profile_device
from edgeopt.verbs.device_profile.summary import summarize

TARGET = find_target("cpu").name
FEW = tuple(NetworkShape(family, 8, 32) for family in ("plain", "mobile", "transformer"))
OTHERS = (NetworkShape("plain", 16, 32), NetworkShape("mobile", 12, 32))


@pytest.fixture
def brief(monkeypatch):
    """Few networks, each measured for a moment."""
    monkeypatch.setattr(profile, "LEARNED", FEW)
    monkeypatch.setattr(profile, "CHECKED", OTHERS)
    monkeypatch.setattr(measure, "_SECONDS", 0.01)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_of_a_network_add_up_to_its_time(family, monkeypatch):
    monkeypatch.setattr(measure, "_SECONDS", 0.01)
    model = with_plain_names(NetworkShape(family, 8, 32).make())
    engine = profile._engines(find_target(TARGET), 1)[0][0]
    network = profile_network(model, engine, "fp32")
    assert len(network.layers) == len(model_shapes(model))
    scaled = network.scaled(0.0)
    assert math.fsum(took_ms for _, took_ms in scaled) == pytest.approx(network.whole_ms)
    assert all(took_ms > 0 for _, took_ms in scaled)


def test_layers_of_an_int8_form_that_stay_in_float_are_no_times_of_integers(monkeypatch):
    monkeypatch.setattr(measure, "_SECONDS", 0.01)
    model = with_plain_names(NetworkShape("squeezed", 8, 32).make())
    engine = profile._engines(find_target(TARGET), 1)[0][0]
    network = profile_network(model, engine, "w8a8")
    assert network.form is not None
    left_out = [layer.features for layer in network.layers if not layer.is_kept]
    assert left_out == [*network.form.in_float]
    assert {layer.features.kind for layer in network.layers if layer.features.pool == "border"}


def test_a_device_is_measured_into_a_file_that_is_a_target(brief, tmp_path):
    file, heard = tmp_path / "mine.times.json", []
    done = profile_device(threads=1, out=file, tell=lambda *told_of: heard.append(told_of))
    times = read_device_times(file)
    assert times == done.times
    assert times.engines[0].target == TARGET
    assert {"fp32", "w8a8"} <= {*times.engines[0].precisions}
    for precision in times.engines[0].precisions.values():
        assert {check.name for check in precision.checks} == {shape.name for shape in OTHERS}
        assert len(precision.thinned) == len(OTHERS)
        assert precision.layers
    assert find_target(str(file)).why_not_here() is None, "this very device needs no predictions"
    assert heard[-1][1] < heard[-1][2]
    document = summarize(done)
    assert [row[-1].split(" to ")[0] for row in document.sections[1].table.rows]
    assert document.data["tables"][0]["networks"] == len(OTHERS)
    assert any("2 networks checked it; 95 % needs 19" in note.detail for note in done.notes)


def test_a_model_of_the_users_is_predicted_from_its_own_layers(brief, tmp_path):
    mine, file = tmp_path / "mine.onnx", tmp_path / "mine.times.json"
    save_model(NetworkShape("plain", 8, 32).make(), mine)
    done = profile_device([mine], threads=1, out=file, only_models=True)
    assert done.times.networks == ("mine",)
    assert all(row.networks == 20 for row in done.rows)
    assert all(row.most_off >= 1 for row in done.rows)


def test_an_interrupt_leaves_the_precisions_that_were_measured(brief, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def interrupt(what, done, of):
        if "w8a8" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_device(target=TARGET, threads=1, tell=interrupt)
    times = read_device_times(tmp_path / "out" / f"{TARGET}.times.json")
    assert [*times.engines[0].precisions] == ["fp32"]


def test_only_models_needs_a_model(brief, tmp_path):
    with pytest.raises(EdgeoptError, match="none is named"):
        profile_device(out=tmp_path / "x.times.json", only_models=True)


def test_a_device_that_is_not_here_is_not_measured_here(brief, tmp_path):
    others = [name for name in ("cpu-arm64", "cpu-x86-avx2") if find_target(name).why_not_here()]
    with pytest.raises(UnavailableError, match="cannot be measured here"):
        profile_device(target=others[0], out=tmp_path / "x.times.json")


def optimized(times, out, **wishes) -> ModelReport:
    file = out.with_name("board.times.json")
    write_device_times(times, file)
    options = Options(threads=1, **wishes)
    with briefly(), ending_after(2):
        return optimize("digits_detector", target=str(file), out=out, options=options)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A run for a board on which integers take a quarter of the time."""
    times = device_by(times_by(by_work, step=16), times_by(lambda features: by_work(features) / 4, step=16), TARGET)
    return optimized(times, tmp_path_factory.mktemp("board") / "out", skip=("activations",), prune="1.05x")


def test_the_choice_goes_by_the_devices_predicted_times(report):
    best = report.best
    assert best.precision.startswith("w8a8")
    assert best.predicted.speed.is_faster
    assert best.speed is None
    assert f"predicted {best.predicted.speed} the original's speed, not measured" in report.reason
    fastest = max(candidate.predicted.speed.ratio for candidate in report.candidates if not candidate.refused)
    assert best.predicted.speed.ratio == fastest
    assert report.verdict == "INCONCLUSIVE", "what is not measured proves no budget"
    assert "Board X is not here" in report.untimed


def test_the_original_counts_as_its_simplified_form(report):
    plain = [each for each in report.candidates if not each.is_lossy]
    assert {each.predicted.speed.ratio for each in plain} == {1.0}
    assert not any(each.refused for each in plain)
    shapes = model_shapes(load_model(report.folder / plain[-1].file, "plain"))
    target = find_target(str(report.folder.with_name("board.times.json")))
    predictor = predictor_of(target, "fp32")
    assert plain[0].predicted.time.ms == pytest.approx(sum(map(predictor.layer_ms, shapes)), rel=1e-6)


def test_pruned_models_are_candidates_for_a_device_whose_times_are_known(report):
    pruned = [each for each in report.candidates if "prune" in each.steps]
    assert pruned
    assert all(each.predicted for each in pruned)
    assert any("quantize" in each.steps for each in pruned), "pruned models get integers too"
    assert "predicted from the times of Board X" in (report.folder / "candidates/prune/pruning.json").read_text("utf-8")


def test_the_bundle_is_for_the_plain_target(report):
    manifest = json.loads((report.bundle / MANIFEST).read_text("utf-8"))
    assert manifest["target"]["name"] == TARGET
    assert "times" not in manifest["target"]
    assert read_bundle(report.bundle).target.name == TARGET


def test_integers_that_are_slower_there_are_not_chosen(tmp_path):
    times = device_by(times_by(by_work, step=16), times_by(lambda features: 3 * by_work(features), step=16), TARGET)
    report = optimized(times, tmp_path / "out", skip=("activations", "prune"))
    assert report.chosen == BASELINE or "quantize" not in report.best.steps
    integers = [each for each in report.candidates if each.precision.startswith("w8a8")]
    assert integers
    assert all("not surely faster: predicted" in each.refused for each in integers)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "pi.json"], "let it end in .times.json"),
        (["--only-models"], "name one"),
        (["absent.onnx"], "absent.onnx"),
        (["-t", "nowhere"], "no target named 'nowhere'"),
    ],
)
def test_a_wrong_argument_is_a_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["profile-device", *arguments])
    assert result.exit_code == 1
    assert words in result.output
    assert "Traceback" not in result.output
    assert not [*tmp_path.iterdir()]


def test_times_that_are_no_file_are_a_line():
    result = CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", "absent.times.json"])
    assert result.exit_code == 1
    assert "absent.times.json" in result.output
    assert find_model("digits_detector").is_file()
