"""Pruning in a run of `optimize`: beside the dense model, interrupted, taken up, replayed, and told."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_brief import briefly
from small_nets import Net

from edgeopt.errors import EdgeoptError, NotFoundError
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.rival_forms import Rival, going_on, within_share
from edgeopt.optimization.choice.selection import Wish, why_refused
from edgeopt.optimization.folder.replay import read_replay
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import Plan, all_steps, make_plan
from edgeopt.optimization.report.frontier import account_of, cut_of, draw_frontier, pruning_sections, removed_words
from edgeopt.optimization.report.summary import summarize
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.recipe import find_recipe
from edgeopt.report.formats import Paper, render
from edgeopt.steps._pruning import Pruning, parse_pruning
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.processor import cpu_architecture

ELSEWHERE = "raspberry-pi-5" if cpu_architecture() != "arm64" else "cpu-x86-vnni"
"""A processor that this machine is not: nothing is timed, so that every run makes the same."""
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="interrupts a process by a signal of POSIX")


def write_case(folder: Path, blocks: int = 3) -> dict[str, str]:
    """Write a net in which every second channel copies the one before it, and tensors; return what names them."""
    net = Net(size=16, channels=8, seed=3)
    x = net.conv("x", 8, 32, 3)
    for _ in range(blocks):
        x = net.conv(net.op("Relu", x), 32, 32, 3)
    net.conv(net.op("Relu", x), 32, 8, 1)
    for name in [*net.weights][:-2]:
        value = net.weights[name] * np.float32(0.5)
        value[1::2] = value[::2]
        net.weights[name] = value
    save_model(net.model(f"conv_{len(net.nodes) - 1}"), folder / "net.onnx")
    chance = np.random.default_rng(0)
    np.savez(folder / "in.npz", x=chance.normal(0, 1, (16, 8, 16, 16)).astype(np.float32))
    return {"model": str(folder / "net.onnx"), "recipe": "tensors", "calib": str(folder / "in.npz")}


def run(asked: dict[str, str], out: Path, target: str = ELSEWHERE, **more: object) -> ModelReport:
    with briefly():
        wishes = {"steps": ("simplify", "prune"), "prune": "0.4", "threads": 1, **more}
        return optimize(**asked, target=target, out=out, **wishes)


def pruned(report: ModelReport) -> list[Candidate]:
    return [one for one in report.candidates if "prune" in one.steps]


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "candidates/prune/model.onnx").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], ModelReport]:
    """Return the options and the report of a run that prunes two fifths for a device that is not here."""
    folder = tmp_path_factory.mktemp("prune")
    asked = write_case(folder)
    return asked, run(asked, folder / "first")


BRIEFLY = f"""
import sys
from importlib import import_module
sys.path.insert(0, {str(Path(__file__).parents[1] / "fixtures")!r})
from fixture_brief import SHORTER
for name, value in SHORTER.items():
    module, _, attribute = name.rpartition(".")
    setattr(import_module(module), attribute, value)
"""
"""A program's beginning with which it measures for a moment only."""
STOPS_ITSELF = (
    BRIEFLY
    + """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell turns Ctrl-C off for what runs in its background
from edgeopt.steps.prune.memory import Memory
keep = Memory.keep
def keep_and_stop(self, *what):
    keep(self, *what)
    if len(self) == 2:
        os.kill(os.getpid(), signal.SIGINT)
Memory.keep = keep_and_stop
from edgeopt.__main__ import main
main()
"""
)
"""A run of edgeopt that a signal stops as soon as two losses are on disk, however busy the machine is."""


def command(asked: dict[str, str], out: Path, *more: str) -> list[str]:
    given = [asked["model"], "-t", ELSEWHERE, "-r", "tensors", "--calib", asked["calib"], "-o", str(out)]
    options = ["--steps", "simplify,prune", "--prune", "0.4", "--threads", "1", "--selftest", "off"]
    return [sys.executable, "-m", "edgeopt", "optimize", *given, *options, *more]


def test_copies_of_channels_go_and_the_answers_stay(case):
    _, report = case
    (one,) = pruned(report)
    assert report.chosen == "prune"
    assert one.agreement > 0.99
    cut, account = cut_of(report, one), account_of(report)
    assert 0.4 * account.removable <= cut.removed <= 0.6 * account.removable
    assert cut.made == one.sha256
    assert (account.ranking, account.pictures) == ("obs", 12)
    small = load_model(report.folder / one.file)
    assert sum(np.prod(each.dims) for each in small.proto.graph.initializer) < 0.6 * sum(
        np.prod(each.dims)
        for each in load_model(Path(report.folder / "candidates/baseline/model.onnx")).proto.graph.initializer
    )


def test_another_process_makes_the_same_bytes(case, tmp_path):
    asked, report = case
    done = subprocess.run(
        command(asked, tmp_path / "other"), env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert digest(tmp_path / "other") == digest(report.folder)


@POSIX
def test_an_interrupt_in_the_middle_leaves_what_was_found_and_a_resumed_run_ends_alike(case, tmp_path):
    asked, report = case
    out = tmp_path / "torn"
    process = subprocess.run(
        [sys.executable, "-c", STOPS_ITSELF, *command(asked, out)[3:]], capture_output=True, check=False
    )
    said = (process.stdout + process.stderr).decode()
    assert process.returncode == 130, said
    assert "--resume goes on from it" in said
    (memory,) = (out / ".calibration").glob("prune-*.jsonl")
    kept = memory.read_text()
    assert not (out / "candidates/prune/model.onnx").exists()
    memory.write_text(f'{kept}["loss", "torn in the mid')
    done = subprocess.run(command(asked, out, "--resume"), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert digest(out) == digest(report.folder)
    assert not (out / ".calibration").exists()


def times_in(memory: Path) -> set[str]:
    """Return the layers and models that a file of figures holds measured times of."""
    lines = [json.loads(one) for one in memory.read_text().splitlines()]
    return {key for kind, key, _ in lines if kind in ("ms", "speed", "step")}


KEEPS_A_COPY = (
    BRIEFLY
    + """
import json, sys
from edgeopt.steps.prune.memory import Memory
keep = Memory.keep
def keep_twice(self, *what):
    keep(self, *what)
    with open(copy, "a") as file:
        file.write(json.dumps(list(what)) + "\\n")
Memory.keep = keep_twice
copy = sys.argv.pop(1)
from edgeopt.__main__ import main
main()
"""
)
"""A run of edgeopt that writes what it finds out to a second file as well."""


@POSIX
def test_on_this_machine_a_resumed_run_measures_nothing_twice_and_the_same_times_make_the_same_bytes(case, tmp_path):
    asked, _ = case
    torn, other, new = tmp_path / "torn", tmp_path / "other", tmp_path / "new.jsonl"
    here = [*command(asked, torn)[3:]]
    here[here.index(ELSEWHERE)] = "cpu"
    stopped = subprocess.run([sys.executable, "-c", STOPS_ITSELF, *here], capture_output=True, check=False)
    assert stopped.returncode == 130, stopped.stderr.decode()
    shutil.copytree(torn, other)
    (memory,) = (torn / ".calibration").glob("prune-*.jsonl")
    before, known = memory.read_text(), times_in(memory)
    assert known
    again = [sys.executable, "-c", KEEPS_A_COPY, str(new), *here, "--resume"]
    done = subprocess.run(again, capture_output=True, check=False)
    assert done.returncode in (0, 2), done.stderr.decode()
    assert times_in(new)
    assert not times_in(new) & known
    (other / ".calibration" / memory.name).write_text(before + new.read_text())
    unused = tmp_path / "unused.jsonl"
    last = [str(other) if one == str(torn) else one for one in here]
    done = subprocess.run(
        [sys.executable, "-c", KEEPS_A_COPY, str(unused), *last, "--resume"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr.decode()
    assert not unused.exists()
    assert digest(other) == digest(torn)


def test_a_replay_takes_the_pruned_model_as_it_is_and_searches_nothing(case, tmp_path, monkeypatch):
    asked, report = case

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a replay prunes nothing anew")

    monkeypatch.setattr("edgeopt.steps.prune.step.make_pruned", forbidden)
    again = run(asked, tmp_path / "again", replay=str(report.folder))
    assert digest(again.folder) == digest(report.folder)
    assert again.chosen == "prune"
    assert cut_of(again, pruned(again)[0]) == cut_of(report, pruned(report)[0])
    assert account_of(again) == account_of(report)


def test_a_replay_of_a_pruned_model_that_was_changed_is_refused(case, tmp_path):
    asked, _ = case
    mine = run(asked, tmp_path / "mine")
    save_model(load_model(Path(asked["model"])), mine.folder / "candidates/prune/model.onnx")
    with pytest.raises(EdgeoptError, match="was changed since it was written"):
        run(asked, tmp_path / "again", replay=str(mine.folder))


def test_untimed_pruned_models_are_candidates_only_unless_a_share_is_asked_for(case, tmp_path):
    asked, _ = case
    report = run(asked, tmp_path / "auto", prune="auto")
    assert pruned(report)
    assert all("prune must pay in measured time" in one.refused for one in pruned(report))
    assert "prune" not in report.best.steps
    assert any("pruned models are candidates only" in note.detail for note in report.notes)


def test_without_pictures_weights_alone_rank_and_it_is_said(tmp_path):
    asked = write_case(tmp_path)
    del asked["calib"]
    report = run(asked, tmp_path / "out")
    assert account_of(report).ranking == "l1"
    assert any("no calibration samples" in note.detail for one in pruned(report) for note in one.notes)


def test_layers_that_are_to_stay_keep_all_they_make(case, tmp_path):
    asked, _ = case
    names = ("node_conv_0", "w2")
    report = run(asked, tmp_path / "kept", keep_layers=names, prune="0.3")
    cut, account = cut_of(report, pruned(report)[0]), account_of(report)
    stay = {one.name for one in account.groups if one.pinned == "kept as asked"}
    assert len(stay) == 2
    assert not stay & cut.kept.keys()
    with pytest.raises(NotFoundError, match="no layer named 'nonsense'"):
        run(asked, tmp_path / "not", keep_layers=("nonsense",))


def test_a_small_model_stays_dense_by_a_rule_that_is_told(case, tmp_path):
    asked, _ = case
    report = run(asked, tmp_path / "quick", target="cpu", prune="auto")
    assert not pruned(report)
    (note,) = [one for one in report.notes if one.detail.startswith("no pruning: the shortest run takes 0.")]
    assert "--prune 1.1x" in note.hint


def test_the_report_tells_the_points_the_pins_and_the_layers(case):
    _, report = case
    page = render(summarize(report), "markdown", Paper(110))
    assert "Channels that cannot be removed" in page
    assert "Channels kept, layer by layer" in page
    (one,) = pruned(report)
    assert removed_words(report, one) in ("-40%", "-45%", "-50%", "-55%")
    assert json.loads((report.folder / "candidates/prune/prune.json").read_text())["kept"]
    assert draw_frontier(report) is None  # nothing was timed
    assert len(pruning_sections(report)) == 3


def test_what_leaves_room_for_integers_goes_on_first_and_what_loses_too_much_never():
    def rival(name: str, drop: float) -> Rival:
        file, agreement = f"candidates/{name}/model.onnx", 1 - 10 * drop
        one = Candidate(name, "fuse", ("prune",), "fp32", file, 1, agreement=agreement)
        return Rival(Model(None, name), one)

    fastest_first = [rival("prune-4", 0.03), rival("prune-3", 0.009), rival("prune-2", 0.004), rival("prune", 0.0)]
    found = [one.candidate.name for one in going_on(fastest_first, Wish(0.01, 0.9))]
    assert found == ["prune-2", "prune", "prune-3"]


def test_what_training_made_of_a_rival_goes_on_before_it_unless_it_loses_more():
    def rival(name: str, parent: str, drop: float, *steps: str) -> Rival:
        one = Candidate(name, parent, steps, "fp32", f"{name}.onnx", 1, agreement=1 - 10 * drop)
        return Rival(Model(None, name), one)

    cut = [rival("prune", "fuse", 0.004, "prune"), rival("prune-2", "fuse", 0.001, "prune")]
    for drop, wanted in ((0.003, ["finetune", "prune", "prune-2"]), (0.0045, ["prune", "prune-2", "finetune"])):
        healed = rival("finetune", "prune", drop, "prune", "finetune")
        assert [one.candidate.name for one in going_on([*cut, healed], Wish(0.01, 0.9))] == wanted


def test_what_costs_accuracy_is_not_chosen_untimed():
    one = Candidate("prune", "fuse", ("fuse", "prune"), "fp32", "candidates/prune/model.onnx", 1, agreement=1.0)
    assert why_refused(one, Wish(0.01, must_be_timed=frozenset({"prune"})))
    assert not why_refused(one, Wish(0.01))
    assert not why_refused(replace(one, name=BASELINE), Wish(0.01, must_be_timed=frozenset({"prune"})))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", Pruning()),
        ("OFF", None),
        ("0.3", Pruning(ratio=0.3)),
        ("30%", Pruning(ratio=0.3)),
        ("1.5x", Pruning(speedup=1.5)),
    ],
)
def test_an_amount_is_a_word_a_share_or_a_speed(text, found):
    assert parse_pruning(text) == found


@pytest.mark.parametrize(
    "text", ["", "0", "-0.1", "1", "0.96", "nan", "1x", "0.5x", "infx", "1000x", "much", "1.5 x x"]
)
def test_another_amount_is_one_clear_line(text):
    with pytest.raises(EdgeoptError, match="--prune") as refused:
        parse_pruning(text)
    assert "such as 0.3" in refused.value.remedy


def test_an_amount_without_the_step_and_a_speed_of_a_device_that_is_not_here_are_refused():
    recipe, here, there = find_recipe("yolox"), find_target("cpu"), find_target(ELSEWHERE)
    with pytest.raises(EdgeoptError, match="--prune is for the step prune, which is left out"):
        make_plan(recipe, here, Options(prune="0.3", skip=("prune",)), 1)
    with pytest.raises(EdgeoptError, match="--keep-layers is for the step prune"):
        make_plan(recipe, here, Options(prune="off", keep_layers=("a",), steps=("fuse",)), 1)
    with pytest.raises(EdgeoptError, match="needs times that cannot be measured here"):
        make_plan(recipe, there, Options(prune="1.5x"), 1)
    assert "prune" not in make_plan(recipe, here, Options(prune="off"), 1).steps
    assert "prune" in make_plan(recipe, here, Options(), 1).steps


def test_where_nothing_can_be_timed_only_a_share_or_the_steps_name_bring_pruning():
    recipe, there = find_recipe("yolox"), find_target(ELSEWHERE)
    plan = make_plan(recipe, there, Options(calib="pictures"), 1)
    assert "prune" not in plan.steps
    (note,) = [note for note in plan.notes if note.detail.startswith("no pruning: ")]
    assert "--prune 0.3" in note.hint
    for wish in ({"prune": "0.3"}, {"steps": ("default", "prune")}, {"keep_layers": ("a",)}):
        assert "prune" in make_plan(recipe, there, Options(**wish), 1).steps


def test_a_report_of_pruning_is_read_back_for_a_replay(case):
    _, report = case
    assert [*read_replay(report.folder).files_beside("prune")] == ["prune.json", "pruning.json"]


def test_steps_that_cost_accuracy_share_what_may_be_lost():
    def planned(*names: str) -> Plan:
        steps = {name: step for name, step in all_steps().items() if name in names}
        return Plan(steps, None, False, None, 33.0, False, False, 0.01, 1, False, None)

    plan = planned("simplify", "resolution", "prune", "activations", "finetune", "quantize")
    assert [round(plan.share_until(name), 3) for name in ("resolution", "prune", "activations")] == [0.333, 0.667, 1.0]
    assert plan.share_until("simplify") == plan.share_until("finetune") == 1.0
    assert planned("fuse", "prune").share_until("prune") == 1.0


def test_a_share_is_of_the_agreement_that_may_be_lost():
    def rival(agreement: float) -> Rival:
        one = Candidate("one", "fuse", ("prune",), "fp32", "candidates/one/m.onnx", 1, agreement=agreement)
        return Rival(Model(None, "one"), one)

    agreeing = [rival(0.97), rival(0.92), rival(0.8)]
    assert within_share(agreeing, Wish(0.01, least_agreement=0.9), 0.5) == agreeing[:1]
    smaller = [Rival(one.model, replace(one.candidate, input_size=(64, 64))) for one in agreeing]
    assert within_share(smaller, Wish(0.01, least_agreement=0.9, least_of_smaller=0.8), 0.5) == smaller[:2]
