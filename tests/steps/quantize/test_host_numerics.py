"""A form for another device is judged by the same numbers on every processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from small_nets import HERE, Net, frames, mobile

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, INT8_FUSED, UNFUSED
from edgeopt.executors.reference import EXECUTOR as REFERENCE
from edgeopt.graph.model import Model
from edgeopt.optimization.candidates.engines import as_there, on_processor, open_engine, stand_in
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.runtime.selftest import record
from edgeopt.steps.compile._numbers import run_on_cpu
from edgeopt.steps.quantize.api import quantize
from edgeopt.steps.quantize.inspection import engine_fusion
from edgeopt.system.declared import target as declared
from edgeopt.system.declared.target import Int8Rules, find_target
from edgeopt.system.machine.processor import Processor
from edgeopt.tasks import make_task

WIDE = replace(HERE, reduce_range=False)
"""Rules of a device that adds products in 32 bits."""


def saturating() -> Model:
    """Two layers of weights that are all the same: without VNNI every pair of products exceeds 16 bits."""
    net = Net()
    first = net.conv("x", 3, 32, 1)
    net.weights["w0"][:], net.weights["b0"][:] = 0, 3.0
    net.conv(net.op("Relu", first), 32, 8)
    net.weights["w2"][:], net.weights["b2"][:] = 0.5, 0.0
    return net.model(net.nodes[-1].output[0])


def run(model: Model, frame: dict[str, np.ndarray], entries: dict[str, str]) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(entries=entries))
    return next(iter(session.run(frame).values()))


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_products_that_saturate_here_do_not_where_another_device_is_judged(activations: str) -> None:
    model = saturating()
    made = quantize(model, frames(model), Int8Rules(activation_dtype=activations)).model
    (frame,) = frames(model, 1)
    np.testing.assert_allclose(run(made, frame, UNFUSED), run(model, frame, {}), rtol=0.01)


def test_by_the_rules_of_this_processor_nothing_saturates_in_its_own_kernels() -> None:
    model = saturating()
    (frame,) = frames(model, 1)
    made = quantize(model, frames(model), HERE).model
    np.testing.assert_allclose(run(made, frame, {}), run(model, frame, {}), rtol=0.01)


def test_what_is_judged_are_the_numbers_of_the_onnx_standard() -> None:
    model = mobile()
    made = quantize(model, frames(model), WIDE).model
    inputs = list(frames(model, 3, seed=9))
    newer = onnx.ModelProto.FromString(made.data)
    newer.opset_import[0].version = 19  # onnx's evaluator has no older DequantizeLinear
    session = REFERENCE.open(newer.SerializeToString(), SessionOptions())
    wanted = np.stack([next(iter(session.run(one).values())) for one in inputs])
    (found,) = run_on_cpu(made, inputs).values()
    noise = np.square(found - wanted).sum() / np.square(wanted).sum()
    assert noise < 1e-4  # a value that rounds the other way moves by one step


@pytest.mark.parametrize("device", ["intel-npu", "cpu"])  # by its rules; the host of what is compiled for
def test_the_processor_that_stands_in_for_a_device_opens_every_model_so_and_deploys_nothing_of_it(device: str) -> None:
    model = saturating()
    made = quantize(model, frames(model), WIDE).model
    (frame,) = frames(model, 1)
    engine = stand_in(on_processor(find_target(device)))
    session = engine.open(made, "fp32")
    np.testing.assert_allclose(next(iter(session.run(frame).values())), run(model, frame, {}), rtol=0.01)
    assert not UNFUSED.keys() & engine.target.options.keys()


def test_float_kernels_in_place_of_fused_ones_are_told_later_and_refused_alike() -> None:
    model = mobile()
    session = EXECUTOR.open(quantize(model, frames(model), WIDE).model.data, SessionOptions(entries=UNFUSED))
    task = make_task(find_recipe("tensors"), session.inputs, session.outputs, evaluating=False)
    usual, unfused = (
        record(session, task, list(frames(model, 2)), "w8a8", unfused=is_unfused).limits for is_unfused in (False, True)
    )
    assert usual.keys() == unfused.keys() == {output.name for output in session.outputs}
    for name, limit in usual.items():
        assert limit.rounding < unfused[name].rounding == 0.05
        assert limit.wrong == unfused[name].wrong > 0.05


def test_integers_for_arm_are_fused_as_there_unless_the_device_judges_itself(monkeypatch) -> None:
    wide, arm = Processor("x86-64", {"avx2", "avx512_vnni"}), Processor("arm64", {"asimd", "asimddp"})
    for module in (declared, engine_fusion):
        monkeypatch.setattr(module, "this_processor", lambda: wide)
    assert as_there(open_engine(find_target("cpu-arm64"), 1)).entries == {INT8_FUSED: "1"}
    assert as_there(open_engine(find_device_elsewhere("cpu-arm64", "ssh://pi", arm), 1)).entries == UNFUSED
    assert as_there(open_engine(find_target("cpu-x86-vnni"), 1)).entries == {}
