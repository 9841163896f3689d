"""The stages of a pipeline add up to its frame, and a slow look-up is named as what to mend."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from fixture_pipelines import ScriptedClock, boxes, changed, described, opened, shop

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.closed_loop import run_marked
from edgeopt.measurement.pipelines.code import load_calls
from edgeopt.measurement.pipelines.diagnosis import find_stage_to_mend
from edgeopt.measurement.pipelines.figures import StageCost, stage_costs
from edgeopt.measurement.pipelines.marked import MarkedPipeline, OpenPipeline, RunnablePipeline
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.turns.interleaved import HERE, Pace, TurnsMachine, take_turns
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.runtime.pipelines.pipeline import Pipeline

FRAME = np.zeros((8, 8, 3), np.uint8)
MS = 1_000_000
CODE = "def find(crops, classes):\n    return [int(one.indices[0]) for one in classes]\n"


@pytest.fixture
def code(tmp_path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "shop.py").write_text(CODE, "utf-8")
    return folder


def measured(pipeline: Pipeline, clock: ScriptedClock) -> tuple[Samples, tuple[StageCost, ...]]:
    marked = MarkedPipeline([FRAME], pipeline, clock)
    samples = run_marked(marked, seconds=1.0, min_frames=30, clock=clock)
    return samples, stage_costs(pipeline.description, samples, marked.runs(), 40.0)


def test_the_stages_add_up_and_the_slow_look_up_is_named(tmp_path, monkeypatch):
    clock = ScriptedClock()

    def slow(crops, classes):
        clock.advance(21 * MS)

    bundle = shop(tmp_path, times_ns=(4 * MS, 3 * MS))
    with opened(bundle, {"lookup": slow}, clock, monkeypatch) as pipeline:
        samples, costs = measured(pipeline, clock)
        assert (samples.times_ns.sum(axis=1) == samples.frame_ns).all()
        assert (samples.frame_ns == 31 * MS).all()
        shown = {one.name: (one.mean_ms, one.runs_mean, one.runs_most) for one in costs}
        assert shown == {"detect": (4, 1, 1), "crop": (0, 1, 1), "recognise": (6, 2, 2), "lookup": (21, 1, 1)}
        found = find_stage_to_mend(pipeline.description, costs, 31.0, 40.0, "edgeopt bench X", "edgeopt optimize X")
        assert found.what == "Mend the stage lookup first: it takes most of a frame"
        assert found.evidence == (
            "21 ms of a frame's 31 ms: 68% of the frame, 52% of the budget of 40 ms; "
            "without it a frame takes 10 ms, 30 ms below the budget"
        )
        assert found.do.startswith("make shop:find faster")
        assert found.command == "edgeopt bench X"


@pytest.mark.parametrize(
    ("times_ns", "do"),
    [
        ((30 * MS, 1 * MS), ""),
        ((1 * MS, 25 * MS), "lower `most` or raise `least_score` of stage crop, or make its model faster"),
    ],
)
def test_a_slow_model_is_optimized_and_one_that_runs_often_runs_less(tmp_path, monkeypatch, times_ns, do):
    clock = ScriptedClock()
    with opened(shop(tmp_path, times_ns=times_ns), {"lookup": lambda *_: None}, clock, monkeypatch) as pipeline:
        _, costs = measured(pipeline, clock)
        frame_ms = sum(one.mean_ms for one in costs)
        found = find_stage_to_mend(pipeline.description, costs, frame_ms, 40.0, "", "edgeopt optimize X")
        assert (found.do, found.command) == (do, "edgeopt optimize X")


def test_a_frame_without_crops_counts_no_run(tmp_path, monkeypatch):
    clock = ScriptedClock()
    bundle = shop(tmp_path, [boxes(), boxes((0, 0, 4, 4, 0.9))], times_ns=(MS, 2 * MS))
    with opened(bundle, {"lookup": lambda *_: None}, clock, monkeypatch) as pipeline:
        _, costs = measured(pipeline, clock)
    cost = next(one for one in costs if one.name == "recognise")
    assert (cost.runs_mean, cost.runs_most, cost.mean_ms) == pytest.approx((0.5, 1, 1.0), rel=0.1)


def test_pipelines_take_turns_as_models_do(tmp_path, monkeypatch):
    clock = ScriptedClock()
    made = {name: shop(tmp_path / name, times_ns=(ms * MS, MS)) for name, ms in (("slow", 6), ("fast", 2))}
    calls = {"lookup": lambda *_: clock.advance(MS)}
    openers = {
        name: lambda bundle=bundle: OpenPipeline(opened(bundle, calls, clock, monkeypatch))
        for name, bundle in made.items()
    }
    machine = TurnsMachine(clock, HERE.read, HERE.measure_anchor)
    turns = take_turns(openers, synthetic_frames((8, 8)), Pace(1.0, most_legs=1), machine=machine)
    assert turns.ratio("fast", "frame").speedup == pytest.approx(9 / 5)
    assert "detect.execute" in turns.parts


def test_bench_tells_every_stage_in_table_json_and_page(tmp_path, code):
    asked = [str(shop(tmp_path).folder), "--code", str(code), "--seconds", "0.1", "--frames", "40"]
    shown = CliRunner().invoke(cli, ["bench", *asked, "--source", pictures(tmp_path), "-o", str(tmp_path / "out")])
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    for word in ("detect.execute", "crop", "recognise.postprocess", "lookup", "of the budget", "Mend the stage"):
        assert word in shown.output
    said = json.loads((tmp_path / "out" / "bench.json").read_text("utf-8"))
    stages = {one["name"]: one for one in said["stages"]}
    assert stages.keys() == {"load", "detect", "crop", "recognise", "lookup"}
    assert stages["recognise"]["runs_mean"] == 2
    parts = sum(one["mean_ms"] for one in stages.values()) + said["between_stages_mean_ms"]
    assert parts == pytest.approx(said["frame_mean_ms"])
    runs = json.loads((tmp_path / "out" / "runs.json").read_text("utf-8"))
    assert set(runs["recognise"]) == {2}
    assert len(runs["recognise"]) == len(Samples.read(tmp_path / "out" / "samples.npz"))


def pictures(folder: Path) -> str:
    (folder / "pictures").mkdir()
    for i in range(3):
        cv2.imwrite(str(folder / "pictures" / f"{i}.png"), np.full((8, 8, 3), 40 * i, np.uint8))
    return str(folder / "pictures")


@pytest.mark.parametrize(("wish", "flag"), [({"load": "fps:30"}, "--load"), ({"find_capacity": True}, "--find-capac")])
def test_what_is_for_single_models_is_refused(tmp_path, code, wish, flag):
    with pytest.raises(EdgeoptError, match=f"{flag}.* is for a single model of frames.*, and .* is a pipeline"):
        edgeopt.bench(shop(tmp_path).folder, code=code, **wish)


def test_code_runs_only_from_a_place_that_is_named(tmp_path, code):
    bundle = shop(tmp_path)
    with pytest.raises(EdgeoptError, match="code of an app runs only from a place that you name\n  -> pass --code"):
        edgeopt.bench(bundle.folder)
    assert load_calls(described(), code)["lookup"](None, []) == []
    found = RunnablePipeline(bundle.folder, code).open()
    assert sorted(found.pipeline.predict(FRAME).last) == [1, 2]
    found.close()
    for change, problem in (
        ({"call": "shp:find"}, r"stage lookup: .*shp.py is not there"),
        ({"call": "shop:fnd"}, "stage lookup: no function in shop named 'fnd'\n  -> did you mean 'find'?"),
    ):
        with pytest.raises(EdgeoptError, match=problem):
            load_calls(described(changed("lookup", **change)), code)
    (code / "shop.py").write_text("import not_there_at_all\n", "utf-8")
    with pytest.raises(EdgeoptError, match=r"shop.py fails: ModuleNotFoundError"):
        load_calls(described(), code)


def test_options_of_the_other_kind_are_one_line(tmp_path, code):
    for arguments, problem in (
        (["digits_detector", "--code", str(code)], "--code is for a pipeline"),
        ([str(shop(tmp_path).folder), "--code", str(code), "--recipe", "yolox"], "--recipe is for a single model"),
    ):
        shown = CliRunner().invoke(cli, ["bench", *arguments])
        assert shown.exit_code == 1
        assert problem in shown.output
