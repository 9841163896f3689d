"""I/O binding on the processor: the code that a GPU runs gives what a plain run gives, whatever came before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
from fixture_models import model, numbers

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime import _require_fixed_places
from edgeopt.executors.onnxruntime.binding import Binding
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors

FIXED = model(
    "fixed (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w, b)  y = Relu(c) }",
    w=numbers(4, 3, 3, 3),
    b=numbers(4),
)
BATCH = model("batch (float[N,6] x) => (float[N,4] y, float[6,4] z) { y = MatMul(x, w)  z = Relu(w) }", w=numbers(6, 4))
TWO = model("two (float[N,3] a, float[2,3] b) => (float[N,3] y, float[2,3] z) { y = Relu(a)  z = Mul(b, b) }")
FOUND = model("found (float[4,5] x) => (int64[2,K] i, float[4,5] y) { p = Relu(x)  i = NonZero(p)  y = Neg(x) }")
SCALAR_IN = model("taken (float[2] x, float s) => (float[2] y) { y = Mul(x, s) }")
SCALAR_OUT = model("made (float[2] x) => (float s) { s = ReduceSum<keepdims = 0>(x) }")
FLAGS = model("flags (bool[3,4] p, int64[2] s) => (bool[3,4] q, int64[2] t) { q = Not(p)  t = Add(s, s) }")
HALF = model("half (float16[2,N] x) => (float16[2,N] y) { y = Add(x, x) }")
MIXED = model("mixed (float[N,3] x) => (float[N,3] y, bool[N,3] p, int64[M] s) { y=Neg(x) p=Greater(x,y) s=Shape(x) }")


def runs(made: Model) -> Iterator[Tensors]:
    """Yield inputs of several shapes and numbers; some shapes come back."""
    for seed, rows in enumerate((2, 2, 5, 1, 5, 2)):
        yield {
            spec.name: numbers(*(one if isinstance(one, int) else rows for one in spec.shape), seed=seed).astype(
                spec.dtype
            )
            for spec in made.inputs
        }


def open_both(made: Model) -> tuple[OnnxRuntimeSession, OnnxRuntimeSession]:
    session = onnxruntime.InferenceSession(made.data)
    return OnnxRuntimeSession(session), OnnxRuntimeSession(session, Binding(session, "cpu"))


@pytest.mark.parametrize("made", [FIXED, BATCH, TWO, FOUND, HALF, MIXED], ids=lambda one: one.name)
def test_a_bound_session_gives_what_a_plain_one_gives_run_after_run(made):
    plain, bound = open_both(made)
    answers = []
    for inputs in runs(made):
        expected = plain.run(inputs)
        answers.append((expected, bound.download(bound.execute(bound.upload(inputs)))))
    for expected, found in answers:  # after all runs: a later one must not have written over an earlier answer
        assert found.keys() == expected.keys()
        for name in expected:
            assert found[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("made", [FIXED, BATCH, TWO, FOUND, HALF, MIXED, FLAGS], ids=lambda one: one.name)
def test_inputs_that_are_written_over_give_the_same_run_after_run(made, monkeypatch):
    monkeypatch.setattr("edgeopt.executors.onnxruntime.binding._WRITTEN_OVER", ("cpu",))
    test_a_bound_session_gives_what_a_plain_one_gives_run_after_run(made)


def test_an_input_of_known_sizes_stays_at_one_address(monkeypatch):
    """A recorded graph reads the address that it was recorded with."""
    monkeypatch.setattr("edgeopt.executors.onnxruntime.binding._WRITTEN_OVER", ("cpu",))
    session = onnxruntime.InferenceSession(FIXED.data)
    binding, plain, addresses = Binding(session, "cpu"), onnxruntime.InferenceSession(FIXED.data), set[int]()
    for inputs in runs(FIXED):
        binding.upload(inputs)
        addresses.add(binding._places["x"].data_ptr())
        session.run_with_iobinding(binding._binding)
        (expected,) = plain.run(None, inputs)
        np.testing.assert_array_equal(binding.download(None)["y"], expected)
    assert len(addresses) == 1


@pytest.mark.parametrize("wrong", [numbers(1, 3, 8, 4), numbers(1, 3, 8, 8).astype("f8"), numbers(3, 8, 8)])
def test_an_input_that_does_not_fill_its_memory_is_refused(wrong, monkeypatch):
    monkeypatch.setattr("edgeopt.executors.onnxruntime.binding._WRITTEN_OVER", ("cpu",))
    bound = OnnxRuntimeSession(session := onnxruntime.InferenceSession(FIXED.data), Binding(session, "cpu"))
    with pytest.raises(UnsupportedError, match=r"does not run the model: x float32 1x3x8x8 got float"):
        bound.run({"x": wrong})


@pytest.mark.parametrize("made", [BATCH, SCALAR_IN, SCALAR_OUT], ids=lambda one: one.name)
def test_a_recorded_graph_refuses_what_has_no_place_of_its_own(made):
    _require_fixed_places(onnxruntime.InferenceSession(FIXED.data))
    with pytest.raises(UnsupportedError, match=r"fixed sizes and NumPy's types, and the model has [xs] float32"):
        _require_fixed_places(onnxruntime.InferenceSession(made.data))


def test_where_nothing_waits_execute_fetches_the_results_and_download_only_names_them(monkeypatch):
    monkeypatch.setattr("edgeopt.executors.onnxruntime.binding._NEVER_WAITS", ("cpu",))
    plain, bound = open_both(TWO)
    inputs = next(runs(TWO))
    fetched = bound.execute(bound.upload(inputs))
    named = bound.download(fetched)
    assert all(named[name] is one for name, one in zip(named, fetched, strict=True))
    np.testing.assert_array_equal(named["z"], plain.run(inputs)["z"])


def test_a_run_is_its_three_stages():
    _, bound = open_both(TWO)
    for inputs in runs(TWO):
        staged = bound.download(bound.execute(bound.upload(inputs)))
        whole = bound.run(inputs)
        assert all((staged[name] == whole[name]).all() for name in whole)


def test_what_was_uploaded_runs_again_as_often_as_asked():
    plain, bound = open_both(FOUND)
    inputs = next(runs(FOUND))
    uploaded = bound.upload(inputs)
    for _ in range(3):
        found = bound.download(bound.execute(uploaded))
        np.testing.assert_array_equal(found["i"], plain.run(inputs)["i"])


def test_an_input_that_is_not_contiguous_is_bound_as_it_reads():
    plain, bound = open_both(BATCH)
    inputs = {"x": numbers(6, 3).T}
    np.testing.assert_array_equal(bound.run(inputs)["y"], plain.run(inputs)["y"])


@pytest.mark.parametrize("inputs", [{"a": numbers(2, 3)}, {"a": numbers(2, 3), "b": numbers(2, 3), "c": numbers(1)}])
def test_a_missing_input_is_an_error_and_not_that_of_the_run_before(inputs):
    _, bound = open_both(TWO)
    bound.run({"a": numbers(2, 3), "b": numbers(2, 3)})
    with pytest.raises(ValueError, match="inputs are"):
        bound.upload(inputs)


def test_a_device_that_fails_is_one_clear_error():
    _, bound = open_both(BATCH)
    with pytest.raises(UnsupportedError, match=r"does not run the model: .*double") as caught:
        bound.run({"x": numbers(2, 6).astype(np.float64)})
    assert "\n" not in caught.value.problem


def test_a_static_output_keeps_its_buffer_and_a_free_one_gets_a_new_one():
    session = onnxruntime.InferenceSession(BATCH.data)
    binding = Binding(session, "cpu")
    pointers = []
    for inputs in runs(BATCH):
        binding.upload(inputs)
        binding.execute()
        pointers.append([one.data_ptr() for one in binding._binding.get_outputs()])
    assert len({fixed for _, fixed in pointers}) == 1


def test_a_closed_session_holds_no_buffer():
    session = onnxruntime.InferenceSession(FIXED.data)
    binding = Binding(session, "cpu")
    bound = OnnxRuntimeSession(session, binding)
    bound.run({"x": numbers(1, 3, 8, 8)})
    bound.close()
    assert binding._binding is binding._session is bound._binding is bound._session is None
