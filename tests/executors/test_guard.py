"""An abort of an engine ends the child in which a form is tried, and costs that form alone."""

from __future__ import annotations

from time import monotonic

import numpy as np
import pytest
from engine_faults import ARE_X86, HAS_SIGNALS, branch_behind_a_transpose, whole_numbers_divided

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions, _child
from edgeopt.executors._child import CHILD, EngineAbortError, Ran, without_place
from edgeopt.executors._guard import active_guard, guarded
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.model import find_model
from edgeopt.system.processes.time_limit import OutOfTime, limited

ASSERTED = r"^ONNX Runtime died of SIGABRT while opening it(: Assertion '.*' failed\.)?\n"


def relu() -> bytes:
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


@HAS_SIGNALS
def test_an_engine_that_aborts_at_opening_costs_one_error_and_the_next_model_opens():
    data = branch_behind_a_transpose().data
    with guarded():
        for _ in range(2):  # the second time it is known
            with pytest.raises(EngineAbortError, match=ASSERTED) as raised:
                EXECUTOR.open(data, SessionOptions())
            assert "/" not in raised.value.problem
        session = EXECUTOR.open(relu(), SessionOptions())
        np.testing.assert_array_equal(session.run({"x": np.float32([-1, 0, 1, 2])})["y"], [0, 0, 1, 2])
        as_written = EXECUTOR.open(data, SessionOptions(entries=UNOPTIMIZED))
        assert as_written.run({"x": np.ones((1, 4, 4, 4), np.float32)})["y"].shape == (1, 4, 4, 4)


@ARE_X86
def test_an_engine_that_aborts_at_the_first_run_costs_one_error():
    data = whole_numbers_divided().data
    fatal = {"a": np.full(4, np.iinfo(np.int64).min), "b": np.full(4, -1, np.int64)}
    with guarded():
        session = EXECUTOR.open(data, SessionOptions())
        with pytest.raises(EngineAbortError, match=r"^ONNX Runtime died of SIGFPE while first running it"):
            session.run(fatal)
        with pytest.raises(EngineAbortError, match="SIGFPE"):
            EXECUTOR.open(data, SessionOptions())  # known by now


def test_what_passed_once_is_not_tried_again():
    data = relu()
    values = {"x": np.float32([-1, 0, 1, 2])}
    with guarded():
        first = EXECUTOR.open(data, SessionOptions(threads=2))
        assert first.first_run is not None
        first.run(values)
        assert first.first_run is None
        CHILD.close()
        again = EXECUTOR.open(data, SessionOptions(threads=2))
        assert again.first_run is None
        again.run(values)
        assert CHILD._worker is None, "nothing was asked of a child"
        assert EXECUTOR.open(data, SessionOptions(threads=3)).first_run is not None, "other threads, another session"


def test_a_session_beside_is_tried_first_too():
    with guarded():
        session = EXECUTOR.open(relu(), SessionOptions(threads=4))
        beside = session.beside(reuse=True)
        assert beside is not session
        assert beside.first_run is not None
        np.testing.assert_array_equal(beside.run({"x": np.float32([-1, 0, 1, 2])})["y"], [0, 0, 1, 2])
        assert beside.first_run is None


def test_outside_a_command_no_child_is_started():
    assert active_guard() is None
    CHILD.close()
    EXECUTOR.open(relu(), SessionOptions()).run({"x": np.zeros(4, np.float32)})
    assert CHILD._worker is None


def test_what_the_engine_refuses_is_refused_in_its_own_words():
    with guarded():
        session = EXECUTOR.open(relu(), SessionOptions(threads=5))
        with pytest.raises(UnsupportedError, match="does not run the model on these inputs"):
            session.run({"x": np.zeros(5, np.float32)})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/opt/c++/vector.h:1130: T& f() [with T = int]: Assertion 'n < s()' failed.", "Assertion 'n < s()' failed."),
        ("  what():  std::bad_alloc", "std::bad_alloc"),
        ("C:\\a\\b.cc:12: it failed", "it failed"),
        ("", ""),
    ],
)
def test_the_last_words_are_told_without_their_place(line, told):
    assert without_place(line) == told


def test_a_decoder_is_tried_on_the_first_token_of_a_text():
    file = find_model("tiny_lm")
    options = SessionOptions(threads=6)  # as no other test opens it
    assert CHILD.open("decoder", "onnxruntime", file, options) == Ran()
    assert CHILD.run("decoder", "onnxruntime", None) == Ran(), "it runs, and is refused nothing"
    with guarded():
        session = EXECUTOR.open(file, options)
        assert session.first_run is not None
        assert session.engine is not None
        assert session.first_run is None


def test_a_time_limit_reaches_the_child_and_the_next_model_opens(monkeypatch):
    monkeypatch.setattr(_child, "_LATEST_S", 0.01)  # its start alone takes longer
    CHILD.close()
    with limited(monotonic()), pytest.raises(OutOfTime):
        CHILD.open("late", "onnxruntime", relu(), SessionOptions())
    assert CHILD.open("again", "onnxruntime", relu(), SessionOptions(), keeps=False) == Ran()
