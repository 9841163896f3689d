from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from trace_format import check

from edgeopt.measurement.frames.trace import make_trace, write_trace
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples

MS = 1_000_000


def run() -> Samples:
    """Two streams; one worker; the third frame is dropped, the first is warm-up."""
    started = np.array([0, 12, 0, 30]) * MS
    frames = np.array([10, 11, 0, 12]) * MS
    return Samples(
        stages=("preprocess", "execute", "postprocess"),
        times_ns=np.array([[2, 5, 2], [2, 6, 2], [0, 0, 0], [3, 0, 8]]) * MS,
        frame_ns=frames,
        warmup=np.array([True, False, False, False]),
        variant="detector",
        started_ns=started,
        done_ns=started + frames,
        intended_ns=np.array([0, 5, 11, 30]) * MS,
        stream=np.array([0, 1, 0, 1]),
        n_out=np.array([3, 4, 0, 5]),
        dropped=np.array([False, False, True, False]),
        epoch_ns=1000 * MS,
    )


def named(events: list[dict], name: str) -> list[dict]:
    return [one for one in events if one["name"] == name]


def test_frames_stages_waits_and_drops_are_on_the_timeline():
    events = make_trace(run())
    check(events)
    assert [(one["ts"], one["dur"]) for one in named(events, "frame")] == [(0, 10e3), (12e3, 11e3), (30e3, 12e3)]
    assert [(one["ts"], one["dur"]) for one in named(events, "execute")] == [(2e3, 5e3), (14e3, 6e3)]  # 0 is left out
    assert [one["ts"] for one in named(events, "queue")] == [5e3, 12e3]
    assert [(one["ts"], one["ph"]) for one in named(events, "dropped")] == [(11e3, "i")]
    assert [one["args"]["value"] for one in named(events, "frames waiting")] == [1, 0]
    assert named(events, "frame")[0]["args"] == {"row": 0, "warmup": True, "n_out": 3, "response_ms": 10.0}
    assert {one["args"]["name"] for one in named(events, "thread_name")} == {"stream 0", "stream 1"}


def test_frames_of_one_stream_that_overlap_get_lanes_of_their_own():
    started = np.array([0, 5, 10, 11]) * MS
    samples = replace(
        run(),
        started_ns=started,
        done_ns=started + 10 * MS,
        frame_ns=np.full(4, 10 * MS),
        stream=np.zeros(4, np.int64),
        dropped=None,
        intended_ns=None,
        times_ns=np.full((4, 3), 2 * MS),
    )
    events = make_trace(samples)
    check(events)
    assert [one["tid"] for one in named(events, "frame")] == [1, 2, 1, 3]
    assert "stream 0 worker 3" in {one["args"]["name"] for one in named(events, "thread_name")}


def test_sensors_and_other_series_become_counters():
    readings = [
        CounterReading(0, (1000 + i) * MS, temperature_c=(50.0 + i, 40.0), frequency_mhz=(2000.0,)) for i in range(3)
    ]
    events = make_trace(run(), readings, counters={"power (W)": [(MS, 4.5)]})
    check(events)
    assert [(one["ts"], one["args"]["value"]) for one in named(events, "temperature (C)")] == [
        (0, 50.0),
        (1e3, 51.0),
        (2e3, 52.0),
    ]
    assert len(named(events, "frequency (MHz)")) == 3
    assert named(events, "power (W)")[0]["ts"] == 1e3
    assert not named(make_trace(replace(run(), epoch_ns=0), readings), "temperature (C)")


def test_stages_that_claim_more_than_the_frame_are_cut_at_its_end():
    events = make_trace(replace(run(), times_ns=np.full((4, 3), 50 * MS)))
    check(events)


def test_a_run_without_instants_has_no_timeline():
    with pytest.raises(ValueError, match="instants"):
        make_trace(replace(run(), started_ns=None))


def test_a_trace_is_written_as_the_viewers_read_it(tmp_path):
    write_trace(tmp_path / "trace.json", make_trace(run()))
    read = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert read["displayTimeUnit"] == "ms"
    check(read["traceEvents"])


def test_operators_keep_their_own_process_and_rounded_ends_are_cut():
    profile = json.dumps(
        [
            {"cat": "Session", "pid": 9, "tid": 9, "dur": 10, "ts": 5, "ph": "X", "name": "model_run", "args": {}},
            {"cat": "Node", "pid": 9, "tid": 9, "dur": 8, "ts": 9, "ph": "X", "name": "a_kernel_time", "args": {}},
            {"cat": "Node", "pid": 9, "tid": 9, "dur": 1, "ts": 16, "ph": "X", "name": "b_kernel_time", "args": {}},
        ]
    )
    events = make_trace(run(), profile=profile)
    check(events)
    assert [(one["pid"], one["ts"], one["dur"]) for one in named(events, "a")] == [(2, 9, 6)]
    assert len(named(events, "process_name")) == 2
