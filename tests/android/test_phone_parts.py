"""A phone's facts, and the requests to the runner and its output."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.verbs.android.facts import PhoneFacts, PhoneState, notes_on_state
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.request import (
    ModelThere,
    WorkThere,
    request_for_load,
    request_for_turns,
    require_carried,
)

CPU = "/sys/devices/system/cpu/cpu{}/{}={}"
PIXEL = "\n".join(
    [
        "abis=arm64-v8a,armeabi-v7a,armeabi",
        "maker=Google",
        "model=Pixel 6",
        "soc_maker=Google",
        "soc=Tensor",
        "android=14",
        "api=34",
        "kernel=5.10.157-android13",
        "flags=Features\t: fp asimd evtstrm aes asimddp i8mm",
        "memory=MemTotal:        7770160 kB",
        "allowed=Cpus_allowed_list:\t0-7",
        *(CPU.format(i, "cpu_capacity", 250 if i < 4 else 620 if i < 6 else 1024) for i in range(8)),
        *(CPU.format(i, "cpufreq/cpuinfo_max_freq", 1803000 if i < 4 else 2802000) for i in range(8)),
        *(CPU.format(i, "cpufreq/scaling_max_freq", 1803000 if i < 4 else 2802000) for i in range(8)),
        *(CPU.format(i, "topology/thread_siblings_list", i) for i in range(8)),
        "battery.level=15",
        "battery.temperature=402",
        "battery.AC powered=false",
        "battery.USB powered=false",
        "heat=Thermal Status: 3",
        "saver=1",
    ]
).encode()


def test_facts_of_a_phone_with_three_kinds_of_cores():
    facts = PhoneFacts(PIXEL)
    assert facts.abis == ("arm64-v8a", "armeabi-v7a", "armeabi")
    assert (facts.name, facts.system, facts.chip) == ("Google Pixel 6", "Android 14 (API 34)", "Google Tensor")
    assert facts.processor.architecture == "arm64"
    assert {"asimddp", "i8mm"} <= facts.processor.flags
    assert (facts.cores, facts.fast_cores) == (8, 4), "the cores of 620 are within six tenths of those of 1024"
    assert facts.logical_cores == 8
    assert not facts.notes
    environment = facts.environment({"engine.abi": "arm64-v8a"}, {}, {})
    assert (environment.cpu, environment.cores, environment.memory_mib) == ("Google Tensor", 8, 7588)
    other = PhoneFacts(PIXEL.replace(b"Tensor", b"Tensor G2")).environment({"engine.abi": "arm64-v8a"}, {}, {})
    assert environment.why_not_comparable(other) == ("cpu.model",)


def test_cores_that_are_held_back_are_told():
    held = PIXEL.replace(b"scaling_max_freq=2802000", b"scaling_max_freq=1803000")
    (note,) = PhoneFacts(held).notes
    assert "holds its fastest core to 1.80 of 2.80 GHz" in note.detail


def test_heat_a_low_battery_and_saving_are_told():
    state = PhoneFacts(PIXEL).state
    assert state == PhoneState(15, False, 40.2, 3, True)
    text = " ".join(str(note) for note in notes_on_state(state, None))
    assert "thermal status is severe" in text
    assert "battery is at 15 %" in text
    assert "saves its battery" in text
    cool = PhoneState(90, False, 30.0, 0, False)
    assert not notes_on_state(cool, cool)
    assert "light" in str(notes_on_state(cool, PhoneState(90, False, 38.0, 1, False))[0])


def test_a_phone_that_tells_nothing_is_one_core_of_no_name():
    facts = PhoneFacts(b"nonsense\nallowed=\n\xff\xfe")
    assert (facts.abis, facts.cores, facts.fast_cores) == ((), 1, 1)
    assert facts.state == PhoneState(None, None, None, None, False)
    assert facts.environment({}, {}, {}).cores == 1


def test_a_phone_without_room_is_told_before_anything_is_sent():
    facts = PhoneFacts(PIXEL)
    facts.require_free(1 << 30, 2 << 20)
    facts.require_free(1 << 30, None)
    with pytest.raises(
        EdgeoptError, match=r"Google Pixel 6 has no room: 1024.00 MiB are needed and 512.00 MiB are free"
    ):
        facts.require_free(1 << 30, 512 << 10)


def work(**entries: str) -> WorkThere:
    options = SessionOptions(threads=3, entries=entries)
    fed = {"the input": np.zeros((1, 3, 8, 8), np.float32), "size": np.zeros((), np.int64)}
    return WorkThere(ModelThere("../../store/a/model.onnx", options), "../../store/b/inputs.bin", 2, fed)


def test_a_request_says_all_that_decides_a_session():
    made = work(
        **{"session.intra_op.allow_spinning": "0", "graph_optimization_level": "basic", "enable_mem_pattern": "0"}
    )
    lines = request_for_load(made, seconds=5, warmup_s=2, frames=400).decode().splitlines()
    assert lines == [
        "mode load",
        "seconds 5",
        "warmup 2",
        "frames 400",
        "model ../../store/a/model.onnx",
        "threads 3",
        "level 1",
        "pattern 0",
        "entry session.intra_op.allow_spinning 0",
        "input float32 1x3x8x8 the input",
        "input int64 - size",
        "samples 2",
        "inputs ../../store/b/inputs.bin",
    ]
    turns = request_for_turns([made, work()], [(0, 1, 1, 0)], seconds=1.5, block=3, rounds=5).decode()
    assert "order 0 1 1 0\n" in turns
    assert turns.count("model ") == 2


@pytest.mark.parametrize("name", ["a\nthreads 64", " a", ""])
def test_a_name_that_would_be_read_as_more_is_refused(name):
    with pytest.raises(UnsupportedError, match="is called"):
        require_carried({name: np.zeros(1, np.float32)})


def test_texts_are_not_carried():
    with pytest.raises(UnsupportedError, match="does not take"):
        require_carried({"x": np.array(["a"])})


def told(*lines: object) -> RunnerLog:
    heard = RunnerLog()
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    for at in range(0, len(data), 7):  # as a pipe may cut it
        heard.take(data[at : at + 7])
    return heard


HELLO = {"runner": 2, "onnxruntime": "1.23.0", "clock_ns": 1000, "wall_ns": 5000}
ROWS = {"rows": [[0, 10, 1, 5, 2, 19, 0], [1, 20, 1, 9, 1, 32, 0], [0, 40, 2, 6, 2, 51, 1]], "walls": [[1, 10]]}


def test_rows_become_samples_of_each_model():
    heard = told(HELLO, {"opened_ns": 7}, ROWS, {"cpu_ns": 30, "span_ns": 41, "peak_bytes": 9}, {"done": True})
    first, second = heard.samples("a", 0), heard.samples("b", 1)
    assert [*first.frame_ns] == [9, 11]
    assert [*first.started_ns] == [0, 30]
    assert first.times_ns.tolist() == [[1, 5, 2], [2, 6, 2]]
    assert first.epoch_ns == 10 + 4000
    assert [*second.frame_ns] == [12]
    assert (heard.frames, heard.unmarked, heard.is_done, heard.peak_bytes) == (3, 1, True, 9)


def test_counters_of_a_phone_become_readings():
    reading = {
        "at_ns": 5, "wall_ns": 6, "cpu": "100 0 50 800 10 0 20 5 0 0", "hz": 100, "own_ns": 10**9, "switches": 3,
        "major_faults": 0, "pressure": "avg10=0.00 avg60=0.00 avg300=0.00 total=1234", "khz": [1800000, -1, 2800000],
        "ceiling_khz": [1800000, 2800000], "lowered": 2, "temperature": [41000, 38, -274000, 0],
        "load": "3.1 2 1 1/99 7",
    }  # fmt: skip
    heard = told(HELLO, {"reading": reading})
    (one,) = heard.readings
    assert (one.busy_s, one.steal_s, one.total_s, one.own_s) == (1.7, 0.05, 9.85, 1.0)
    assert (one.pressure_us, one.frequency_mhz, one.temperature_c) == (1234, (1800.0, 2800.0), (41.0, 38.0))
    assert (one.heat_throttled, one.load1) == (2, 3.1)
    secret = reading | {"cpu": "", "pressure": "", "khz": [-1], "ceiling_khz": [-1], "temperature": [], "load": ""}
    (one,) = told(HELLO, {"reading": secret}).readings
    assert {"busy_s", "pressure_us", "frequency_mhz", "temperature_c", "heat_throttled", "load1"} <= {*one.missing}


@pytest.mark.parametrize(
    "line",
    [
        {"rows": [[0, 1, 2]], "walls": []},
        {"rows": [[0, 10, -1, 5, 2, 19, 0]], "walls": []},
        {"rows": [[0, 10, 1, 5, 2, 9, 0]], "walls": []},
        {"rows": "many", "walls": []},
        {"memory": [1]},
        {"memory": [10**30, 1, 1]},
        {"reading": {}},
        "hello",
        7,
    ],
)
def test_what_no_runner_prints_is_not_believed(line):
    with pytest.raises(EdgeoptError, match="prints what is not known"):
        told(HELLO, line)


def test_a_runner_of_another_form_is_refused():
    with pytest.raises(EdgeoptError, match="another version of edgeopt"):
        told(HELLO | {"runner": 1})
