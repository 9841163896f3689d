"""Every executor against the oracle; unavailable is not failed, and a fallback is an error."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_models import model, numbers

from edgeopt import executors
from edgeopt.errors import InvalidFileError, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.reference import EXECUTOR as REFERENCE
from edgeopt.system.declared import registry

NET = model(
    "net (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w, b)  y = Relu(c) }",
    w=numbers(4, 3, 3, 3),
    b=numbers(4),
)
INPUTS = {"x": numbers(1, 3, 8, 8, seed=1)}
# an engine of one vendor's device answers in tests/device
ENGINES = [name for name in registry.names(executors) if name in ("onnxruntime", "reference")]


@pytest.mark.parametrize("name", ENGINES)
def test_an_executor_agrees_with_the_reference(name):
    expected = REFERENCE.open(NET.data, SessionOptions()).run(INPUTS)
    session = registry.load(executors, name).EXECUTOR.open(NET.data, SessionOptions())
    np.testing.assert_allclose(session.run(INPUTS)["y"], expected["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_the_stages_of_a_session_are_its_run(name):
    session = registry.load(executors, name).EXECUTOR.open(NET.data, SessionOptions())
    staged = session.download(session.execute(session.upload(INPUTS)))
    np.testing.assert_array_equal(staged["y"], session.run(INPUTS)["y"])
    assert [one.name for one in session.inputs] == ["x"]
    assert session.outputs[0].shape == (1, 4, 8, 8)
    assert session.placement()


def test_a_model_is_opened_from_a_path_too(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(NET.data)
    np.testing.assert_array_equal(
        EXECUTOR.open(path, SessionOptions()).run(INPUTS)["y"],
        EXECUTOR.open(NET.data, SessionOptions()).run(INPUTS)["y"],
    )


def test_a_provider_that_is_not_here_is_an_error_and_no_fallback():
    with pytest.raises(UnavailableError, match="has no CUDAExecutionProvider"):
        EXECUTOR.open(NET.data, SessionOptions(providers=("CUDAExecutionProvider", "CPUExecutionProvider")))


def test_placement_names_the_provider_of_every_node():
    placed = EXECUTOR.open(NET.data, SessionOptions()).placement()
    assert {node.provider for node in placed} == {"CPUExecutionProvider"}


def test_an_entry_that_onnxruntime_would_ignore_is_an_error():
    with pytest.raises(NotFoundError, match=r"session\.bogus"):
        EXECUTOR.open(NET.data, SessionOptions(entries={"session.bogus": "1"}))


def test_a_precision_that_onnxruntime_would_ignore_is_an_error():
    with pytest.raises(UnsupportedError, match="not in bf16"):
        EXECUTOR.open(NET.data, SessionOptions(precision="bf16"))


def test_every_known_entry_is_accepted_by_onnxruntime():
    EXECUTOR.open(NET.data, SessionOptions(entries={"session.intra_op.allow_spinning": "0"}))


def test_bytes_that_are_no_model_are_one_clear_error():
    with pytest.raises(InvalidFileError, match="ONNX Runtime refuses the model"):
        EXECUTOR.open(b"no model", SessionOptions())
