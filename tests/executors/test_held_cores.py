"""Engines that are held to the fast cores: what each is asked, and where its threads really are."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_models import model, numbers
from fixture_topologies import intel, seem_to_have, topology

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import AFFINITIES, pool_affinities
from edgeopt.runtime.devices.availability import require_known
from edgeopt.system.declared.target import find_target, read_target
from edgeopt.system.machine import affinity
from edgeopt.system.machine.affinity import held_processors, held_to, intervals
from edgeopt.system.machine.core_kinds import numbers_of

NET = model(
    "net (float[1,3,32,32] x) => (float[1,8,32,32] y) { c = Conv<pads = [1,1,1,1]>(x, w, b)  y = Relu(c) }",
    w=numbers(8, 3, 3, 3),
    b=numbers(8),
)
INPUTS = {"x": numbers(1, 3, 32, 32, seed=1)}
ENGINES = ("onnxruntime", "openvino", "ncnn", "litert")
HOLDS_THREADS = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux holds threads to cores")


def opened(name: str, threads: int, cores: str = "fast", entries: Mapping[str, str] | None = None) -> Any:
    """Return a session, or skip the test where the engine is not here."""
    executor = import_module(f"edgeopt.executors.{name}").EXECUTOR
    if reason := executor.why_unavailable():
        pytest.skip(reason)
    provider = "CPUExecutionProvider" if name == "onnxruntime" else "CPU"
    return executor.open(NET.data, SessionOptions((provider,), threads, entries or {}, precision="fp32", cores=cores))


def seen_by(session: Any, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the cores that the calling thread may use while a session runs."""
    seen = list[set[int]]()
    run = type(session)._execute

    def looking(self: Any, uploaded: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return run(self, uploaded)

    monkeypatch.setattr(type(session), "_execute", looking)
    session.run(INPUTS)
    return seen[0]


def threads_of_this_process() -> dict[str, frozenset[int]]:
    """Return the cores that each thread of this process may use, as the kernel tells it."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text("ascii").splitlines()
        (text,) = [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")]
        found[task.name] = frozenset(numbers_of(text))
    return found


def places_but(before: set[str]) -> list[frozenset[int]]:
    """Return the cores of the threads that were started since."""
    return [place for task, place in threads_of_this_process().items() if task not in before]


@pytest.fixture
def rk3588(tmp_path, monkeypatch):
    """A made-up processor whose first four cores are slow."""
    seem_to_have(monkeypatch, topology(tmp_path / "rk3588", cpu_capacity=[414] * 4 + [1024] * 4), range(8))


@HOLDS_THREADS
def test_the_wish_is_resolved_on_the_device(tmp_path, monkeypatch):
    boards = {"rk3588": topology(tmp_path / "a", cpu_capacity=[414] * 4 + [1024] * 4), "p and e": intel(tmp_path / "b")}
    expected = {"rk3588": (4, 5, 6, 7), "p and e": (0, 1, 2, 3)}
    for name, board in boards.items():
        seem_to_have(monkeypatch, board, range(8))
        assert held_processors("fast", 4) == expected[name]
        assert held_processors("fast", 5) == (), "more threads than fast cores would wait for each other"
        assert held_processors("", 4) == ()
    seem_to_have(monkeypatch, boards["rk3588"], range(2, 6))
    assert held_processors("fast", 2) == (4, 5), "what a container leaves of them"
    seem_to_have(monkeypatch, topology(tmp_path / "c", cpu_capacity=[1024] * 8), range(8))
    assert held_processors("fast", 4) == (), "a single kind: nothing changes"


def test_a_system_that_holds_no_threads_is_asked_for_none(rk3588, monkeypatch):
    monkeypatch.setattr(affinity, "_set_affinity", None)
    assert held_processors("fast", 4) == ()


@pytest.mark.parametrize(
    ("processors", "first", "text"),
    [((4, 5, 6, 7), 1, "5-8"), ((0, 2, 3), 0, "0,2-3"), ((1,), 1, "2"), ((), 1, ""), ((0, 1, 8, 9), 1, "1-2,9-10")],
)
def test_processors_in_one_text(processors, first, text):
    assert intervals(processors, first) == text


def test_onnx_runtime_gets_one_set_for_each_thread_of_its_own_pool():
    assert pool_affinities((4, 5, 6, 7), 4) == {AFFINITIES: "5-8;5-8;5-8"}, "the fourth is the app's own thread"
    assert pool_affinities((0, 2), 2) == {AFFINITIES: "1,3"}
    assert pool_affinities((1,), 1) == pool_affinities((), 4) == {}


@HOLDS_THREADS
@pytest.mark.parametrize(
    ("cores", "entries", "expected"),
    [("fast", {}, "5-8;5-8;5-8"), ("", {}, None), ("fast", {AFFINITIES: "1;1;1"}, "1;1;1")],
)
def test_onnx_runtime_is_asked_for_the_fast_cores(rk3588, monkeypatch, cores, entries, expected):
    from edgeopt.executors import onnxruntime

    asked = []
    create = onnxruntime._create

    def written_down(ort, source, made, *rest):
        asked.append(made)
        return create(ort, source, made, *rest)

    monkeypatch.setattr(onnxruntime, "_create", written_down)
    session = opened("onnxruntime", 4, cores, entries)
    assert session.run(INPUTS)["y"].shape == (1, 8, 32, 32), "cores that are not there any more hold nothing up"
    session.close()
    if expected is None:
        with pytest.raises(RuntimeError):
            asked[0].get_session_config_entry(AFFINITIES)
    else:
        assert asked[0].get_session_config_entry(AFFINITIES) == expected


@HOLDS_THREADS
@pytest.mark.parametrize("cores", ["fast", ""])
def test_openvino_is_asked_for_performance_cores(rk3588, cores):
    session = opened("openvino", 2, cores)
    kind = str(session._compiled.get_property("SCHEDULING_CORE_TYPE"))
    assert ("PCORE_ONLY" in kind) == bool(cores)
    assert session.run(INPUTS)["y"].shape == (1, 8, 32, 32)
    session.close()


@HOLDS_THREADS
def test_openvino_takes_a_property_of_the_profile_before_ours(rk3588):
    session = opened("openvino", 2, "fast", {"SCHEDULING_CORE_TYPE": "ANY_CORE"})
    assert "ANY_CORE" in str(session._compiled.get_property("SCHEDULING_CORE_TYPE"))
    session.close()


@HOLDS_THREADS
def test_ncnn_puts_the_threads_of_each_caller_where_its_network_wants_them(rk3588, monkeypatch):
    held, free = opened("ncnn", 2), opened("ncnn", 2, "")
    ncnn = import_module("ncnn")
    module = import_module("edgeopt.executors.ncnn")
    monkeypatch.setattr(module, "_may_use_all", lambda: True)
    before, told = os.sched_getaffinity(0), []
    expected = free.run(INPUTS)["y"]

    def in_turns() -> None:
        for session in (free, held, held, free):
            np.testing.assert_array_equal(session.run(INPUTS)["y"], expected)
            told.append(ncnn.get_cpu_powersave())
        told.append(os.sched_getaffinity(0))

    other = threading.Thread(target=in_turns)
    other.start()
    other.join()
    assert told == [0, 2, 2, 0, before], "the caller itself stays where it was"
    monkeypatch.setattr(module, "_may_use_all", lambda: False)
    held.run(INPUTS)
    assert ncnn.get_cpu_powersave() == 0, "ncnn's setting would leave the cores of a container"
    for session in (held, free):
        session.close()


@HOLDS_THREADS
@pytest.mark.parametrize("name", ["onnxruntime", "litert"])
def test_threads_of_an_engine_are_really_held(name, monkeypatch):
    mine = os.sched_getaffinity(0)
    core = max(mine)
    opened(name, 1, "").close()  # what a library starts once belongs to no session
    module = import_module(f"edgeopt.executors.{name}")
    monkeypatch.setattr(module, "held_processors", lambda cores, threads: (core,) if cores else ())
    for cores, expected in (("fast", frozenset({core})), ("", frozenset(mine))):
        before = {*threads_of_this_process()}
        session = opened(name, 2, cores)
        assert seen_by(session, monkeypatch) == expected, "the calling thread computes its share"
        assert os.sched_getaffinity(0) == mine, "and is free again"
        beside = session.beside(reuse=True)
        assert seen_by(beside, monkeypatch) == expected
        until = time.monotonic() + 30
        while {*places_but(before)} != {expected} and time.monotonic() < until:
            time.sleep(0.01)  # a thread of ONNX Runtime moves itself, some time after it was started
        assert {*places_but(before)} == {expected}
        beside.close()
        session.close()


@HOLDS_THREADS
def test_cores_that_are_gone_hold_nothing_up():
    mine = os.sched_getaffinity(0)
    with held_to([4096]):
        assert os.sched_getaffinity(0) == mine
    assert os.sched_getaffinity(0) == mine


def test_a_profile_may_say_it_and_only_for_engines_that_can(tmp_path):
    text = """name = "own"\ndevice = "cpu"\nexecutor = "onnxruntime"\ndescription = "of this test"
providers = ["CPUExecutionProvider"]\nprecisions = ["fp32"]\nthreads = 1\ncores = "fast"\n"""
    path = tmp_path / "own.toml"
    path.write_text(text)
    own = read_target(path)
    assert own.cores == "fast"
    assert find_target("cpu-x86-vnni").cores == ""
    require_known(own)
    path.write_text(text.replace('"onnxruntime"', '"reference"'))
    with pytest.raises(UnsupportedError, match="reference is held to no cores"):
        require_known(read_target(path))
    path.write_text(text.replace('cores = "fast"', 'cores = "slow"'))
    with pytest.raises(Exception, match="cores is 'slow', not 'fast'"):
        read_target(path)
