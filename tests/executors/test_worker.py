"""A worker's messages and its parent: what arrives is what was sent; a child that dies or hangs is named."""

from __future__ import annotations

import io
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.errors import StepError
from edgeopt.system.processes.messages import Message, read_message, write_message
from edgeopt.system.processes.worker import Worker, python_worker

ECHO = """
import sys
from edgeopt.system.processes.messages import Message, read_message, write_message
while True:
    try:
        message = read_message(sys.stdin.buffer)
    except EOFError:
        break
    {body}
    write_message(sys.stdout.buffer, message)
"""
DTYPES = ["float32", "float16", "float64", "int64", "int8", "uint16", "bool"]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, min_side=0)))
VALUES = st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.lists(st.text()))


@given(VALUES, st.dictionaries(st.text(), ARRAYS, max_size=3))
def test_a_message_arrives_as_it_was_sent(values, arrays):
    stream = io.BytesIO()
    write_message(stream, Message(values, arrays))
    stream.seek(0)
    found = read_message(stream)
    assert found.values == values
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)


@given(st.integers(min_value=0, max_value=60))
def test_a_message_that_is_cut_short_is_none(kept):
    stream = io.BytesIO()
    write_message(stream, Message({"a": 1}, {"x": np.zeros(8, np.float32)}))
    with pytest.raises(EOFError):
        read_message(io.BytesIO(stream.getvalue()[:kept]))


def worker(body: str = "pass") -> Worker:
    return Worker([sys.executable, "-c", ECHO.format(body=body)], "the tested library")


def test_a_worker_answers_each_question_in_turn():
    child = worker()
    assert child.pid != os.getpid()
    for i in range(3):
        answer = child.ask(Message({"i": i}, {"x": np.arange(i)}), timeout_s=60)
        assert answer.values == {"i": i}
        np.testing.assert_array_equal(answer.arrays["x"], np.arange(i))
    assert child.close() == ""


def test_a_file_in_the_current_folder_takes_no_packages_place(tmp_path, monkeypatch):
    for name in ("numpy", "_tools"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the current folder')\n")
    monkeypatch.chdir(tmp_path)
    child = python_worker("edgeopt.executors._worker.mnn", "MNN")
    assert "KeyError" in child.ask(Message({"do": "convert"}), timeout_s=60).values["error"]
    assert "current folder" not in child.close()


def test_what_a_worker_says_on_standard_error_is_kept():
    child = worker("print('hello', file=sys.stderr, flush=True)")
    child.ask(Message({}), timeout_s=60)
    assert child.close() == "hello\n"
    assert child.close() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals of this kind")
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGILL"])
def test_a_worker_that_dies_is_an_error_with_the_signal_and_its_last_words(name):
    child = worker(
        f"import os, signal; print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.{name})"
    )
    with pytest.raises(StepError, match=rf"the tested library died of {name}; it last said: last words"):
        child.ask(Message({}), timeout_s=60)
    child.close()


def test_a_worker_that_leaves_is_an_error_with_its_exit_code():
    child = worker("sys.exit(3)")
    with pytest.raises(StepError, match="ended with exit code 3"):
        child.ask(Message({}), timeout_s=60)
    with pytest.raises(StepError, match="ended with exit code 3"):
        child.ask(Message({}), timeout_s=60)
    child.close()


def test_a_worker_that_hangs_is_killed():
    child = worker("import time; time.sleep(600)")
    with pytest.raises(StepError, match=r"did not answer within 0.2 s and was killed"):
        child.ask(Message({}), timeout_s=0.2)
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
