"""GPUs that are here: the processor's answers, whatever ran before, and a list that tells where every node runs."""

from __future__ import annotations

import numpy as np
import pytest
from npu_models import parse, spread

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.providers import memory_of
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.system.declared.target import Target, read_target, target_names
from edgeopt.system.disk import assets

PROFILES = [read_target(assets.folder("targets") / f"{name}.toml") for name in target_names()]
GPUS = [one for one in PROFILES if isinstance(one, Target) and memory_of(one.providers)]
NETS = {
    made.name: made.data
    for made in (
        parse(
            "fixed (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w)  y = Relu(c) }",
            w=spread(4, 3, 3, 3),
        ),
        parse("batch (float[N,6] x, float[6,4] w) => (float[N,4] y, float[6,4] z) { y = MatMul(x, w)  z = Relu(w) }"),
        parse("found (float[4,5] x) => (int64[2,K] i, float[4,5] y) { p = Relu(x)  i = NonZero(p)  y = Neg(x) }"),
    )
}


def open_on(target: Target, name: str) -> OnnxRuntimeSession:
    if reason := EXECUTOR.why_no_provider(target.providers):
        pytest.skip(reason)
    if target.options.get("enable_cuda_graph") == "1" and name != "fixed":
        pytest.skip("a recorded graph has fixed sizes")
    return EXECUTOR.open(NETS[name], SessionOptions(target.providers, entries=target.options))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("target", GPUS, ids=lambda one: one.name)
def test_a_gpu_answers_like_the_processor_run_after_run(target, name):
    session, processor = open_on(target, name), EXECUTOR.open(NETS[name], SessionOptions())
    random, answers = np.random.default_rng(0), []
    for rows in (2, 5, 5, 1, 2):
        inputs = {
            one.name: random.normal(size=[size if isinstance(size, int) else rows for size in one.shape]).astype("f4")
            for one in session.inputs
        }
        answers.append((processor.run(inputs), session.download(session.execute(session.upload(inputs)))))
    for expected, found in answers:
        for tensor, value in expected.items():
            np.testing.assert_allclose(found[tensor], value, rtol=1e-3, atol=1e-4)
    session.close()


@pytest.mark.parametrize("target", GPUS, ids=lambda one: one.name)
def test_every_node_is_listed_with_where_it_runs(target):
    placed = open_on(target, "batch").placement()
    assert {one.op for one in placed} >= {"MatMul", "Relu"} or target.name == "nvidia-tensorrt"  # one node is its all
    assert {one.provider for one in placed} == {target.providers[0]}


@pytest.mark.parametrize("target", GPUS, ids=lambda one: one.name)
def test_a_session_can_be_closed_and_opened_again(target):
    for _ in range(3):
        session = open_on(target, "batch")
        session.run({"x": np.ones((2, 6), "f4"), "w": np.ones((6, 4), "f4")})
        session.close()


@pytest.mark.parametrize("target", GPUS, ids=lambda one: one.name)
def test_an_input_of_another_type_is_one_clear_error(target):
    session = open_on(target, "batch")
    with pytest.raises(UnsupportedError, match="does not run the model"):
        session.run({"x": np.ones((2, 6)), "w": np.ones((6, 4), "f4")})
