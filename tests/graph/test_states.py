"""Recurrent models: their states are recognised, fed back in judging, and made for calibration."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from recurrent_net import STEPS, WIDTH, open_model, recipe_of, recurrent, samples

import edgeopt
from edgeopt.graph.facts.states import find_states
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.evaluate import answers, model_inputs, with_states
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.steps.quantize.judges import AGREEMENT_PICTURES, Judge
from edgeopt.tasks.tensors import TASK


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
        (["x", "h0"], ["y", "h1"], {"h0": "h1"}),
        (["x", "h.1", "c.1"], ["y", "h.3", "c.3"], {"h.1": "h.3", "c.1": "c.3"}),
        (["x", "h1", "h2"], ["y", "h3", "h4"], {}),
        (["a1", "a2"], ["a3", "b"], {}),
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


def archives(folder: Path, count: int, **lengths: int) -> Frames:
    chance = np.random.default_rng(3)
    for i in range(count):
        np.savez(folder / f"{i}.npz", x=chance.normal(0, 1, (lengths.get(f"of_{i}", 5), 8)).astype(np.float32))
    model = recurrent()
    frames = open_frames(folder)
    return fed(frames, recipe_of(model, frames), model.inputs)


def test_each_archive_of_a_folder_is_a_stream_and_states_left_out_begin_at_zero(tmp_path):
    stream, model = archives(tmp_path, 3), recurrent()
    assert stream.streams == (0,) * 5 + (1,) * 5 + (2,) * 5
    session = open_model(model)
    found = answers(session, TASK(recipe_of(model, stream), model.inputs, model.outputs, True), stream)
    state = np.zeros((1, WIDTH), np.float32)
    for i, one in enumerate(found):
        state = np.zeros_like(state) if i % 5 == 0 else state
        expected = session.run({"x": stream.tensors(i)["x"], "h": state})
        np.testing.assert_array_equal(one["hn"], expected["hn"])
        state = expected["hn"]
    session.close()
    seen = with_states(stream, lambda: open_model(model))
    assert [not seen.tensors(i)["h"].any() for i in range(15)] == [i % 5 == 0 for i in range(15)]


def test_files_of_one_sample_are_one_stream(tmp_path):
    assert set(archives(tmp_path, 3, of_0=1, of_1=1, of_2=1).streams) == {0}


def test_many_streams_are_judged_from_their_beginnings(tmp_path):
    stream = replace(archives(tmp_path, 1, of_0=400), streams=(0,) * 150 + (1,) * 150 + (2,) * 100)
    kept = stream.judged(16)
    assert kept.streams == (0,) * 85 + (1,) * 85 + (2,) * 85
    assert [i for i in range(len(kept)) if kept.begins_stream(i)] == [0, 85, 170]


def test_whole_numbers_are_states_only_where_they_count(tmp_path):
    def whole(name: str) -> TensorSpec:
        return TensorSpec(name, "int64", (1,))

    inputs, outputs = [spec("x", 1, 8), whole("cached_len"), whole("ids")], [spec("y", 1), whole("new_cached_len")]
    assert find_states(inputs, [*outputs, whole("new_ids")]) == {"cached_len": "new_cached_len"}


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
