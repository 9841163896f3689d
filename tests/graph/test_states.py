"""Recurrent models: their states are recognised, fed back in judging, and made for calibration."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgeopt
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.states import find_states
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.evaluate import answers, model_inputs, with_states
from edgeopt.recipes.feeding import fed
from edgeopt.recipes.frames import Frames, open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.quantize.judges import AGREEMENT_PICTURES, Judge
from edgeopt.tasks.tensors import TASK

STEPS, WIDTH = 120, 16


def spec(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, "float32", shape)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (["input", "state", "sr"], ["output", "stateN"], {"state": "stateN"}),
        (["input", "h", "c"], ["output", "hn", "cn"], {"h": "hn", "c": "cn"}),
        (["x", "h0", "c0"], ["y", "h_n", "c_n"], {"h0": "h_n", "c0": "c_n"}),
        (["src", "r1i", "r2i"], ["pha", "r1o", "r2o"], {"r1i": "r1o", "r2i": "r2o"}),
        (["mel", "in_state"], ["mask", "out_state"], {"in_state": "out_state"}),
        (["audio", "conv_cache_in"], ["enhanced", "conv_cache_out"], {"conv_cache_in": "conv_cache_out"}),
        (["input"], ["output"], {}),
        (["image"], ["image_out"], {}),
        (["image", "mask"], ["image_out", "mask_out"], {}),
        (["sample", "timestep"], ["out_sample"], {}),
        (["a", "b"], ["scores", "boxes"], {}),
    ],
)
def test_states_are_recognised_by_name_shape_and_type(inputs, outputs, expected):
    assert find_states([spec(one, 1, 8) for one in inputs], [spec(one, 1, 8) for one in outputs]) == expected


def test_another_shape_or_type_is_no_state():
    inputs = [spec("x", 1, 4), spec("state", 2, "batch", 128)]
    assert find_states(inputs, [spec("y", 1), spec("stateN", None, "n", None)]) == {"state": "stateN"}
    assert find_states(inputs, [spec("y", 1), spec("stateN", 2, 1, 64)]) == {}
    assert find_states(inputs, [spec("y", 1), TensorSpec("stateN", "int64", (2, 1, 128))]) == {}


def recurrent(form: str = "float") -> Model:
    """A leaky memory with a gate: h' = h + g * (tanh(Wx) - h) / 64, y = sigmoid(v.h) with all v above zero.

    `good` rounds what comes in to 8 bits; `broken` cuts the memory to 8 bits, downwards, in each step.
    """
    rng = np.random.default_rng(0)
    constants = {
        "W": rng.normal(0, 0.7, (8, WIDTH)),
        "G": rng.normal(0, 0.3, (8, WIDTH)),
        "v": np.abs(rng.normal(0, 1, (WIDTH, 1))) * 1.5,
        "rate": np.array(1 / 64),
        "steps": np.array(127.0),
        "scale": np.array(3 / 127),
    }
    given = "x"
    nodes = []
    if form == "good":
        constants["zero"] = np.array(0, np.int8)
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xr"]),
        ]
        given = "xr"
    nodes += [
        helper.make_node("MatMul", [given, "W"], ["wx"]),
        helper.make_node("Tanh", ["wx"], ["seen"]),
        helper.make_node("MatMul", [given, "G"], ["gx"]),
        helper.make_node("Sigmoid", ["gx"], ["gate"]),
        helper.make_node("Sub", ["seen", "h"], ["new"]),
        helper.make_node("Mul", ["new", "gate"], ["open"]),
        helper.make_node("Mul", ["open", "rate"], ["part"]),
        helper.make_node("Add", ["h", "part"], ["kept"]),
    ]
    if form == "broken":
        nodes += [
            helper.make_node("Mul", ["kept", "steps"], ["many"]),
            helper.make_node("Floor", ["many"], ["whole"]),
            helper.make_node("Div", ["whole", "steps"], ["hn"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["kept"], ["hn"]))
    nodes += [helper.make_node("MatMul", ["hn", "v"], ["score"]), helper.make_node("Sigmoid", ["score"], ["speech"])]
    graph = helper.make_graph(
        nodes,
        form,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 8]), ("h", [1, WIDTH]))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("speech", [1, 1]), ("hn", [1, WIDTH]))],
        [numpy_helper.from_array(v if v.dtype == np.int8 else v.astype(np.float32), k) for k, v in constants.items()],
    )
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), form)


def samples(folder: Path, **states: np.ndarray) -> Frames:
    """A slow signal, so that decisions last; the states are zero in every sample unless given."""
    rng = np.random.default_rng(1)
    phase = np.sin(np.arange(STEPS)[:, None] / 9 + rng.uniform(0, 6, 8)) + rng.normal(0, 0.3, (STEPS, 8))
    arrays = {"x": phase.astype(np.float32), "h": np.zeros((STEPS, WIDTH), np.float32)} | states
    np.savez(folder / "stream.npz", **arrays)
    model = recurrent()
    frames = open_frames(folder / "stream.npz")
    return fed(frames, recipe_of(model, frames), model.inputs)


def recipe_of(model: Model, frames: Frames):
    return choose_recipe("tensors", None, model.inputs, model.outputs, {}, frames.shapes).recipe


def open_model(model: Model):
    return EXECUTOR.open(model.data, SessionOptions(("CPUExecutionProvider",), 1))


def judge(frames: Frames) -> Judge:
    recipe = recipe_of(recurrent(), frames)
    pictures = frames.judged(AGREEMENT_PICTURES)
    return Judge(recurrent(), open_model, lambda one: TASK(recipe, one.inputs, one.outputs, True), pictures, [])


def test_a_form_whose_memory_drifts_is_refused_though_each_step_agrees(tmp_path):
    stream = samples(tmp_path)
    steps = replace(with_states(stream, lambda: open_model(recurrent())), states={})
    one_step, along = judge(steps), judge(stream)
    assert one_step.agreement(recurrent("broken")) > 0.99
    assert along.agreement(recurrent("broken")) < 0.95
    assert along.agreement(recurrent("good")) > 0.99
    one_step.close()
    along.close()


def test_states_are_fed_from_each_sample_to_the_next(tmp_path):
    stream, model = samples(tmp_path), recurrent()
    session, task = open_model(model), TASK(recipe_of(model, stream), model.inputs, model.outputs, True)
    found = answers(session, task, stream)
    state = np.zeros((1, WIDTH), np.float32)
    for i, one in enumerate(found[:5]):
        expected = session.run({"x": stream.tensors(i)["x"], "h": state})
        np.testing.assert_array_equal(one["hn"], expected["hn"])
        state = expected["hn"]
    session.close()


def test_calibration_sees_the_states_that_occur(tmp_path):
    stream, model = samples(tmp_path), recurrent()
    task = TASK(recipe_of(model, stream), model.inputs, model.outputs, True)
    real = with_states(stream, lambda: open_model(model))
    seen = [one["h"] for one in model_inputs(task, real.spread(20))]
    assert np.abs(seen[0]).max() == 0
    assert np.abs(seen[-1]).max() > 0.1
    assert any("states" in note.detail for note in real.notes)


def test_states_that_the_samples_hold_are_taken_as_they_are(tmp_path):
    given = np.random.default_rng(2).normal(0, 1, (STEPS, WIDTH)).astype(np.float32)
    stream = samples(tmp_path, h=given)
    assert with_states(stream, lambda: pytest.fail("opened")) is stream


def test_a_stream_is_judged_in_its_order_and_other_samples_are_spread(tmp_path):
    stream = samples(tmp_path)
    assert stream.judged(16).names == stream.names
    assert len(replace(stream, states={}).judged(16)) == 16


def test_what_the_model_says_of_itself_is_kept_in_the_recipe(tmp_path):
    recipe = recipe_of(recurrent(), samples(tmp_path))
    assert dict(recipe.input.states) == {"h": "hn"}
    assert dict(recipe.evaluation.kinds) == {"speech": "probability"}


@pytest.mark.parametrize(("other", "told"), [("Sigmoid", "Sigmoid"), ("Relu", "If")])
def test_a_probability_is_seen_inside_of_branches_that_agree(other, told):
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        branches (float[1, 2] x, bool c) => (float[1, 2] y) {{
            z = If (c) <
                then_branch = one () => (float[1, 2] a) {{ s = Sigmoid(x) a = Identity(s) }},
                else_branch = two () => (float[1, 2] b) {{
                    b = If (c) <
                        then_branch = three () => (float[1, 2] d) {{ d = {other}(x) }},
                        else_branch = four () => (float[1, 2] e) {{ e = {other}(x) }}
                    >
                }}
            >
            y = Squeeze(z)
        }}"""
    )
    assert Model(proto, "branches").outputs[0].op == told


def test_a_probability_is_seen_inside_of_a_loop():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        loop (float[1, 2] x, int64 n, bool go) => (float[1, 2] h, float[k, 1, 2] y) {
            h, y = Loop (n, go, x) <body = step (int64 i, bool on, float[1, 2] a)
                => (bool off, float[1, 2] b, float[1, 2] p) {
                off = Identity(on)
                b = Tanh(a)
                p = Sigmoid(b)
            }>
        }"""
    )
    assert [one.op for one in Model(proto, "loop").outputs] == ["Tanh", "Sigmoid"]


def test_a_probability_is_seen_through_what_keeps_its_value():
    model = onnx.ModelProto()
    model.CopyFrom(recurrent().proto)
    model.graph.node[-1].output[0] = "inner"
    model.graph.node.append(helper.make_node("Identity", ["inner"], ["speech"]))
    assert Model(model, "wrapped").outputs[0].op == "Sigmoid"
    assert Model(model, "wrapped").outputs[1].op == "Add"


def test_the_gate_fails_a_memory_that_drifts_though_there_are_no_labels(tmp_path):
    samples(tmp_path)
    for form in ("float", "good", "broken"):
        save_model(recurrent(form), tmp_path / f"{form}.onnx")
    given = {"baseline": tmp_path / "b.json", "source": tmp_path / "stream.npz", "recipe": "tensors", "threads": 1}
    given |= {"seconds": 0.1, "starts": 3}
    edgeopt.check(tmp_path / "float.onnx", update=True, skip=("memory", "cold_start"), **given)
    skip = ("latency", "memory", "cold_start", "size", "placement")
    good, broken = (edgeopt.check(tmp_path / f"{form}.onnx", skip=skip, **given) for form in ("good", "broken"))
    assert (good.verdict, good.exit_code) == ("PASS", 0), good.results
    assert (broken.verdict, broken.exit_code) == ("FAIL", 2)
    (judged,) = [one for one in broken.results if one.name == "accuracy"]
    assert re.match(r"no labels; answers agree in 0\.\d+ with the baseline's on 120 samples, 0.99 asked", judged.detail)
