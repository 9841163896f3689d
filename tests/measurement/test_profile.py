from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from trace_format import check

from edgeopt.errors import InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.measurement.frames.trace import make_trace
from edgeopt.measurement.fresh_process.start import run_cold_start
from edgeopt.measurement.opening.subject import subject_facts
from edgeopt.measurement.resources.profile import parse_profile, read_events, record_profile
from edgeopt.measurement.samples import Samples
from edgeopt.runtime.opening import Opening

MODEL = Path(__file__).parents[2] / "models/digits_detector/model.onnx"
INPUTS = {"images": np.random.default_rng(0).random((1, 3, 160, 160), np.float32)}


def node(name: str, ts: int, dur: int, op: str = "Conv", provider: str = "CPU", **args: object) -> dict:
    about = {"op_name": op, "provider": provider, "node_index": name} | args
    return {
        "cat": "Node",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "name": f"{name}_kernel_time",
        "args": about,
    }


def run(ts: int, dur: int) -> dict:
    return {"cat": "Session", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": dur, "name": "model_run", "args": {}}


EVENTS = [
    node("a", 1, 500),  # warm-up
    run(0, 600),
    node("a", 1001, 30, input_type_shape=[{"float": [1, 3]}, {"int64": []}], mem_arena_held="77"),
    node("b", 1040, 10, op="Add", provider="QNN"),
    run(1000, 60),
    node("a", 2001, 50, mem_arena_held="99"),
    node("b", 2060, 10, op="Add", provider="QNN"),
    run(2000, 80),
]


def test_nodes_are_ranked_by_their_share_and_warm_up_does_not_count():
    found = parse_profile(json.dumps(EVENTS), warmup_runs=1)
    assert [(one.name, one.op, one.total_us, one.calls) for one in found.nodes] == [
        ("a", "Conv", 80, 2),
        ("b", "Add", 20, 2),
    ]
    assert found.nodes[0].share_ratio == pytest.approx(0.8)
    assert (found.runs, found.run_us, found.nodes_us, found.arena_held_bytes) == (2, 140, 100, 99)
    assert found.outside_ratio == pytest.approx(1 - 100 / 140)
    assert found.share_by_provider() == pytest.approx({"CPU": 0.8, "QNN": 0.2})
    assert found.top(1) == found.nodes[:1]
    json.dumps(found.to_json(), allow_nan=False)


def test_shapes_are_told_as_types_and_sizes():
    found = parse_profile(json.dumps(EVENTS[2:5]), warmup_runs=0)
    assert found.nodes[0].input_shapes == ("float 1x3", "int64 scalar")
    assert found.nodes[1].input_shapes == ()
    assert parse_profile(json.dumps([node("a", 0, 1, input_type_shape="odd")])).nodes[0].input_shapes == ()


def test_a_profile_without_runs_is_empty_and_one_run_always_counts():
    assert parse_profile("[]").nodes == ()
    assert parse_profile("[]").outside_ratio == 0.0
    assert parse_profile("[]").arena_held_bytes is None
    assert parse_profile(json.dumps(EVENTS[:2])).runs == 1


def test_a_profile_that_was_cut_off_is_read_and_something_else_refused():
    whole = json.dumps(EVENTS)
    assert read_events(whole[:-1] + ",\n") == EVENTS
    for other in ("{}", "no", "[1]"):
        with pytest.raises(InvalidFileError, match="no operator profile"):
            read_events(other)


def test_a_real_profile_names_operators_and_joins_the_trace():
    text = record_profile(MODEL, SessionOptions(threads=1), [INPUTS], runs=4)
    found = parse_profile(text)
    assert found.runs == 4
    assert "Conv" in found.share_by_op()
    assert sum(found.share_by_op().values()) == pytest.approx(1)
    assert set(found.share_by_provider()) == {"CPUExecutionProvider"}
    assert all(one.calls == 4 for one in found.nodes)
    assert found.arena_held_bytes > 2**20
    assert any("float 1x3x160x160" in one.input_shapes for one in found.nodes)
    frames = np.array([5_000_000])
    samples = Samples(
        ("execute",), frames.reshape(1, 1), frames, np.zeros(1, np.bool_), started_ns=frames * 0, done_ns=frames
    )
    events = make_trace(samples, profile=text)
    check(events)
    assert sum(one["pid"] == 2 for one in events) > 4 * len(found.nodes)


def test_a_profile_needs_an_input():
    with pytest.raises(ValueError, match="needs an input"):
        record_profile(MODEL, SessionOptions(), [])


def test_a_real_model_starts_cold_with_and_without_its_optimized_graph():
    found = run_cold_start(MODEL, Opening("onnxruntime", SessionOptions()), repeats=1)
    assert {way.is_optimized for way in found.ways} == {False, True}
    for way in found.ways:
        rss = [found.rss_bytes(way)[name] for name in ("interpreter", "import", "session", "first")]
        assert None in rss or rss[0] < rss[1] < rss[3]
        figures = found.figures(way)
        parts = sum(figures[name].max_ns for name in ("interpreter", "import", "session", "first"))
        assert figures["to_first"].max_ns == parts
        assert found.label(way).startswith(way.page_cache)


def test_the_facts_of_a_real_session_tell_where_its_nodes_run():
    options = SessionOptions(threads=1)
    facts = subject_facts(MODEL, options, EXECUTOR.open(MODEL, options), inputs=INPUTS, opset=17)
    assert facts["session.placement"]["CPUExecutionProvider Conv"] > 10
    assert len(facts["model.sha256"]) == 64
