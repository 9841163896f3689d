from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.null import Script
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.fresh_process import start as cold_start
from edgeopt.measurement.fresh_process.cold_start import POINTS, ColdPoint, ColdRun, ColdStart, ColdWay
from edgeopt.measurement.fresh_process.page_cache import PageCache, describe, prepare, resident_ratio, why_cannot_drop
from edgeopt.measurement.fresh_process.process import parse_answer
from edgeopt.measurement.fresh_process.start import run_cold_start
from edgeopt.runtime.opening import Opening

WARM, COLD = ColdWay(PageCache.WARM, False), ColdWay(PageCache.COLD, True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    made = Script((TensorSpec("x", "float32", (1, "n")),), ({"y": np.ones(3, np.float32)},), execute_ns=(50_000_000, 0))
    path.write_bytes(made.to_bytes())
    return path


def start(way: ColdWay, factor: int, resident: float | None = 1.0) -> ColdRun:
    took = dict(zip(POINTS, (20, 200, 100, 10, 5), strict=True))
    points = tuple(ColdPoint(name, ns * factor, 1000 * factor, 3) for name, ns in took.items())
    return ColdRun(way, points, resident)


def test_fresh_processes_report_every_point_of_every_way_in_turns(script):
    told = []
    found = run_cold_start(
        script, Opening("null", SessionOptions()), repeats=2, tell=lambda done, of: told.append((done, of))
    )
    original = [way for way in found.ways if not way.is_optimized]
    assert found.ways == tuple(original)  # the null executor saves no graph
    assert "saved no optimized graph" in found.notes[0].detail
    assert [len(found.times_ns(way, "first")) for way in found.ways] == [2] * len(found.ways)
    assert [point.name for point in found.runs[0].points] == list(POINTS)
    assert [run.way for run in found.runs] == [*found.ways, *found.ways[1:], *found.ways[:1]]
    assert told[-1] == (2 * len(found.ways),) * 2
    for way in found.ways:
        assert (found.times_ns(way, "interpreter") > 0).all()
        assert (found.times_ns(way, "first") >= 50_000_000).all()  # the script's first run waits that long
        assert all(rss is None or rss > 1_000_000 for rss in found.rss_bytes(way).values())
    json.dumps(found.to_json(), allow_nan=False)


def test_a_process_that_cannot_open_the_model_says_why(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("this is no script")
    with pytest.raises(EdgeoptError, match=r"a fresh process failed: the executor null runs a script"):
        run_cold_start(broken, Opening("null", SessionOptions()), repeats=1, with_optimized=False)


def test_inputs_of_a_file_are_used(script, tmp_path):
    np.savez(tmp_path / "wrong.npz", z=np.zeros(1))
    with pytest.raises(EdgeoptError, match="inputs are z, not x"):
        run_cold_start(
            script, Opening("null", SessionOptions()), repeats=1, with_optimized=False, inputs=tmp_path / "wrong.npz"
        )


def test_a_model_of_texts_starts_on_empty_ones(tmp_path):
    text = "words (string[n] x) => (string[n] y) { y = Identity(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}'), str(tmp_path / "words.onnx"))
    opening = Opening("onnxruntime", SessionOptions())
    assert run_cold_start(tmp_path / "words.onnx", opening, repeats=1, with_optimized=False).runs


def test_a_process_that_takes_too_long_is_ended(script):
    with pytest.raises(EdgeoptError, match=r"did not finish within 0 s"):
        run_cold_start(script, Opening("null", SessionOptions()), repeats=1, with_optimized=False, timeout_s=0.001)


@pytest.mark.parametrize("change", [{"profile_to": "x"}, {"save_optimized_to": "x"}])
def test_options_that_would_change_the_measured_processes_are_refused(script, change):
    with pytest.raises(ValueError, match="saves and profiles nothing"):
        run_cold_start(script, Opening("null", replace(SessionOptions(), **change)))


def test_a_process_that_dies_is_reported_with_its_last_words():
    with pytest.raises(EdgeoptError, match=r"ended with code -9: killed"):
        parse_answer("engine chatter\n", "warning\nkilled\n", -9, "")
    assert parse_answer('chatter\n{"points": []}\n', "", 0, "") == {"points": []}


def test_a_system_that_cannot_drop_its_cache_skips_the_cold_way_with_a_note(script, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    found = run_cold_start(script, Opening("null", SessionOptions()), repeats=1, with_optimized=False)
    assert [way.page_cache for way in found.ways] == [PageCache.WARM]
    assert "cold page cache not measured" in found.notes[0].detail


def test_figures_are_min_median_max_and_quantiles_only_where_they_exist():
    found = ColdStart(tuple(start(WARM, i) for i in (3, 1, 2)))
    figure = found.figures(WARM)["to_first"]
    assert (figure.n, figure.min_ns, figure.median_ns, figure.max_ns) == (3, 330, 660.0, 990)
    assert figure.p50.value_ns is None
    assert "needs 6" in figure.p50.note
    many = ColdStart(tuple(start(WARM, i) for i in range(1, 41)))
    assert many.figures(WARM)["first"].p50.value_ns == 200
    assert many.figures(WARM)["first"].p90.value_ns == 360
    assert many.first_ratio(WARM) == 2.0
    assert many.rss_bytes(WARM)["session"] == 20500.0
    assert many.major_faults(WARM)["session"] == 3.0


def test_a_label_tells_what_was_achieved_by_the_worst_repeat():
    label = ColdStart((start(COLD, 1, 0.0), start(COLD, 1, 0.25))).label(COLD)
    assert label == "cold page cache, NOT achieved: 25% of the model resident, saved optimized graph"
    assert "cold page cache, verified" in ColdStart((start(COLD, 1, 0.0),)).label(COLD)
    assert "requested, not verified" in ColdStart((start(COLD, 1, 0.0), start(COLD, 1, None))).label(COLD)
    assert describe(PageCache.WARM, 0.5) == "warm page cache, NOT achieved: 50% of the model resident"


def test_a_missing_counter_is_said():
    point = ColdPoint("first", 1, None, None)
    notes = cold_start.missing_in([ColdRun(WARM, (point,), None)])
    assert "page faults not measured" in notes[0].detail
    assert ColdStart((ColdRun(WARM, (point,), None),)).rss_bytes(WARM)["first"] is None


def test_a_file_goes_into_the_cache_and_out_of_it(tmp_path):
    if why_cannot_drop() or resident_ratio(Path(__file__)) is None:
        pytest.skip("this system does not tell or change what is in its page cache")
    path = tmp_path / "weights.bin"
    path.write_bytes(os.urandom(3 * 2**20))
    assert prepare([path], PageCache.WARM) == 1.0
    dropped = prepare([path], PageCache.COLD)
    if filesystem(tmp_path) in ("tmpfs", "ramfs"):
        assert dropped == 1.0  # there is no disk to drop the pages to, and the share says so
    else:
        assert dropped < 1.0


def filesystem(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    above = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    return max(above, key=lambda mount: len(mount[0]))[1]


def test_an_empty_or_foreign_file_has_no_share(tmp_path):
    (tmp_path / "empty").touch()
    assert resident_ratio(tmp_path / "empty") is None
    assert prepare([tmp_path / "empty"], PageCache.WARM) is None


def test_weights_in_files_of_their_own_count_and_are_found_by_the_saved_graph(tmp_path):
    pytest.importorskip("onnxruntime")
    weights = numpy_helper.from_array(np.eye(32, dtype=np.float32), "w")
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[1, 32] x) => (float[1, 32] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(weights)
    model = tmp_path / "m.onnx"
    (tmp_path / "far").mkdir()
    onnx.save(proto, model, save_as_external_data=True, location="far/other.bin", size_threshold=0)
    assert [path.name for path in outside_files(model)] == ["other.bin"]
    found = run_cold_start(model, Opening("onnxruntime", SessionOptions()), repeats=1, page_caches=[PageCache.WARM])
    assert [way.is_optimized for way in found.ways] == [False, True]
