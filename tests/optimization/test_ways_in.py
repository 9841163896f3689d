"""Models that leave shapes free, in every way that exporters do, and each way to give them."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.facts.multiply_adds import count_multiply_adds, count_numbers
from edgeopt.graph.model import Model, fix_inputs, load_model, save_model
from edgeopt.inspection.inspect import inspect
from edgeopt.optimization.optimize import optimize
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.simplify import simplify
from edgeopt.system.text import parse_shape


def free_model(*names: str) -> Model:
    """A convolution of a picture whose batch, height and width have these names; -1 is written as a number."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        free (float[b, 3, h, w] x) => (float[b, 4, h, w] y) { y = Conv<pads=[1, 1, 1, 1]>(x, weight) }"""
    )
    weight = np.random.default_rng(0).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    for place, name in zip((0, 2, 3), names, strict=True):
        dim = proto.graph.input[0].type.tensor_type.shape.dim[place]
        dim.Clear()
        if name == "number":
            dim.dim_value = -1
        elif name:
            dim.dim_param = name
    return Model(proto, "free")


@pytest.fixture(params=[("b", "h", "w"), ("-1", "?", "?"), ("", "", ""), ("number",) * 3], ids="-".join)
def model(request, tmp_path):
    save_model(free_model(*request.param), tmp_path / "free.onnx")
    return tmp_path / "free.onnx"


def test_a_shape_on_the_command_line_is_a_way_in(tmp_path, brief):
    save_model(free_model("-1", "?", "?"), tmp_path / "free.onnx")
    report = optimize(
        tmp_path / "free.onnx",
        recipe="tensors",
        shapes={"x": (1, 3, 8, 12)},
        steps=("simplify",),
        out=tmp_path / "out",
        threads=1,
    )
    simplified = load_model(tmp_path / "out" / "candidates" / "simplify" / "model.onnx")
    assert report.chosen
    assert simplified.inputs[0].shape == (1, 3, 8, 12)


@pytest.mark.parametrize(
    "words",
    [
        "bench MODEL --seconds 0.1s --frames 5 --rounds 2",
        "compare MODEL MODEL --seconds 0.1s",
        "check MODEL --baseline FOLDER/base.json --update --seconds 0.1s --starts 3",
    ],
)
def test_a_shape_on_the_command_line_is_a_way_in_to_measuring(words, tmp_path):
    save_model(free_model("-1", "?", "?"), tmp_path / "free.onnx")
    given = words.replace("MODEL", str(tmp_path / "free.onnx")).replace("FOLDER", str(tmp_path)).split()
    given += ["--recipe", "tensors", "--threads", "1"]
    refused = CliRunner().invoke(cli, given)
    assert refused.exit_code == 1
    assert "--shape x=1x3xNxN" in refused.output
    measured = CliRunner().invoke(cli, [*given, "--shape", "x=1x3x8x12"], catch_exceptions=False)
    assert measured.exit_code != 1, measured.output


def test_an_npz_is_a_way_in_whatever_the_free_dimensions_are_called(model, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 8, 12), np.float32))
    loaded, frames = load_model(model), open_frames(tmp_path / "x.npz")
    recipe = choose_recipe("tensors", model, loaded.inputs, loaded.outputs, {}, frames.shapes).recipe
    assert next(iter(fed(frames, recipe, loaded.inputs)))["x"].shape == (1, 3, 8, 12)


def test_shapes_in_a_recipe_are_a_way_in(model, tmp_path):
    own = tmp_path / "own.toml"
    text = (find_recipe("tensors").folder / "recipe.toml").read_text()
    own.write_text(text + "\n[input.shapes]\nx = [1, 3, 8, 12]\n")
    loaded = load_model(model)
    recipe = choose_recipe(str(own), model, loaded.inputs, loaded.outputs, {}).recipe
    assert fixed_shapes(recipe, loaded.inputs) == {"x": (1, 3, 8, 12)}


def test_the_message_about_a_free_dimension_says_what_helps(model):
    loaded = load_model(model)
    with pytest.raises(EdgeoptError) as caught:
        optimize(model, recipe="tensors", out=model.parent / "out")
    name, _, sizes = caught.value.remedy.split("--shape ")[1].split(",")[0].partition("=")
    shape = tuple(int(size) if size.isdigit() else 8 for size in sizes.split("x"))
    assert [one.shape for one in fix_inputs(loaded, {name: shape}).inputs] == [shape]


def test_inspect_counts_the_work_once_the_shape_is_given(model):
    assert inspect(str(model)).multiply_adds is None
    assert inspect(str(model), shapes={"x": (1, 3, 8, 12)}).multiply_adds == 4 * 8 * 12 * 27


def test_inspect_warns_of_an_opset_that_optimize_refuses(model, tmp_path):
    proto = onnx.load(model)
    proto.opset_import[0].version = 99
    onnx.save(proto, tmp_path / "newer.onnx")
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "newer.onnx")])
    assert shown.exit_code == 0
    (line,) = [one for one in shown.stdout.splitlines() if one.startswith("warning")]
    with pytest.raises(EdgeoptError) as refused:
        EXECUTOR.open(tmp_path / "newer.onnx", SessionOptions())
    assert line.split(maxsplit=1)[1] == f"{refused.value.problem} ({refused.value.remedy})"
    assert re.search(r"newer than \d+, .* \(export it with opset \d+ or an older one\)$", line)
    assert inspect(str(model)).notes == ()


def test_inspect_counts_behind_sizes_that_follow_from_the_inputs():
    """Its Resizes read their sizes from Shape, Slice and Concat."""
    assert inspect("digits_detector").multiply_adds == 42_035_200


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("y=1x3x8x8", "no input named 'y'"),
        ("x=1x4x8x8", "--shape gives 1x4x8x8 to input x float32 bx3xhxw"),
        ("x=3x8x8", "--shape gives 3x8x8"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(asked, told, tmp_path):
    save_model(free_model("b", "h", "w"), tmp_path / "free.onnx")
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "free.onnx"), "--shape", asked])
    assert shown.exit_code == 1
    assert told in shown.output


def test_one_name_has_one_size_in_all_inputs():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        two (float[n, 2] a, float[n, 3] b) => (float[n, 5] y) { y = Concat<axis=1>(a, b) }"""
    )
    two = Model(proto, "two")
    assert [one.shape for one in fix_inputs(two, {"a": (4, 2)}).inputs] == [(4, 2), (4, 3)]
    with pytest.raises(EdgeoptError, match="n the sizes 4 and 5"):
        fix_inputs(two, {"a": (4, 2), "b": (5, 3)})


@pytest.mark.parametrize("text", ["x", "x=", "=1x2", "x=1x0", "x=1x-2", "x=1,2", "x=1x9999999999", "x=1x٣"])
def test_a_text_that_is_no_shape_is_a_usage_error(text):
    shown = CliRunner().invoke(cli, ["inspect", "digits_detector", "--shape", text])
    assert shown.exit_code == 1
    assert "write INPUT=1x3x48x192" in shown.output.replace("\n", " ")


def test_a_name_with_a_colon_and_an_equals_sign_has_a_shape():
    assert parse_shape("serving=in:0=1x2") == ("serving=in:0", (1, 2))


def branches() -> Model:
    """Weights in Constant nodes, and an If whose branches multiply unlike."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        branches (float[1, 4] x, bool c) => (float[1, n] y) {
            w = Constant<value = float[4, 4] {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>()
            h = MatMul(x, w)
            y = If (c) <
                then_branch = once () => (float[1, 4] a) { a = MatMul(h, w) },
                else_branch = twice () => (float[1, 4] b) { t = MatMul(h, w) b = MatMul(t, w) }
            >
        }"""
    )
    return Model(proto, "branches")


def test_weights_in_constant_nodes_and_work_in_subgraphs_are_counted():
    assert count_numbers(branches()) == 16
    assert count_multiply_adds(branches()) == 16 + 2 * 16


def test_integer_products_and_recurrent_layers_are_counted():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        mixed (uint8[2, 4] x, float[5, 1, 3] s) => (int32[2, 6] y, float[5, 1, 1, 7] z) {
            y = MatMulInteger(x, w)
            z = GRU<hidden_size = 7>(s, gates, again)
        }"""
    )
    shapes = {"w": ((4, 6), np.int8), "gates": ((1, 21, 3), np.float32), "again": ((1, 21, 7), np.float32)}
    stored = (onnx.numpy_helper.from_array(np.zeros(shape, kind), name) for name, (shape, kind) in shapes.items())
    proto.graph.initializer.extend(stored)
    assert count_multiply_adds(Model(proto, "mixed")) == 2 * 4 * 6 + 5 * 21 * (3 + 7)


def test_json_of_an_inspection_holds_the_counts(tmp_path):
    save_model(branches(), tmp_path / "branches.onnx")
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "branches.onnx"), "--json"])
    assert json.loads(shown.output)["parameters"] == 16


def unlike_branches() -> Model:
    """A branch that is not taken has an LSTM that wants another rank than fixed shapes leave it."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        unlike (float[steps, b, 3] x, bool c) => (float[p, q, r] y) {
            flat = Squeeze(x)
            y = If (c) <
                then_branch = deep () => (float[s, t, u] d) { none, d = LSTM<hidden_size = 2>(flat, gates, again) },
                else_branch = plain () => (float[v, w, z] e) { e = Identity(x) }
            >
        }"""
    )
    shapes = {"gates": (1, 8, 3), "again": (1, 8, 2)}
    stored = (onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items())
    proto.graph.initializer.extend(stored)
    return Model(proto, "unlike")


def test_a_model_that_opens_only_with_free_shapes_keeps_them_and_says_so():
    inputs = {"x": np.ones((2, 1, 3), np.float32), "c": np.array(False)}
    done = simplify(unlike_branches(), {"x": (2, 1, 3)}, [inputs])
    assert done.model.inputs[0].shape == ("steps", "b", 3)
    assert any("the shapes stay free, as with fixed ones ONNX Runtime refuses" in note.detail for note in done.notes)
    assert EXECUTOR.open(done.model.data, SessionOptions()).run(inputs)["y"].shape == (2, 1, 3)


def test_a_folder_of_archives_gives_the_samples_of_the_most_frequent_size(tmp_path):
    for i, width in enumerate((12, 20, 12)):
        np.savez(tmp_path / f"{i}.npz", x=np.full((1, 3, 8, width), i, np.float32))
    frames = open_frames(tmp_path)
    assert frames.names == ("0[0]", "2[0]")
    assert frames.shapes == {"x": (1, 3, 8, 12)}
    assert [float(one["x"].mean()) for one in frames] == [0, 2]
    assert [str(note) for note in frames.notes] == [
        f"1 of 3 samples in {tmp_path} left out: they are not x 1x3x8x12 "
        "(a model has one size: optimize it once for each)"
    ]


def test_a_folder_of_archives_of_one_size_says_nothing(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((2, 3), np.float32), y=np.zeros(2, np.int64))
    assert (len(open_frames(tmp_path)), open_frames(tmp_path).notes) == (4, ())


def folded_branches() -> Model:
    """As `unlike_branches`, but the rank that the LSTM gets is known only where the engine folds what decides it."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        folded (float[steps, b, 3] x, bool c) => (float[p, q, r] y) {
            shape = Shape(x)
            sizes = ReduceProd<keepdims = 0>(shape)
            many = Constant<value = int64 {100}>()
            is_long = Greater(sizes, many)
            y = If (c) <
                then_branch = deep () => (float[s, t, u] d) {
                    chosen = If (is_long) <
                        then_branch = long () => (l) { l = Identity(x) },
                        else_branch = short () => (k) { k = Squeeze(x) }
                    >
                    none, d = LSTM<hidden_size = 2>(chosen, gates, again)
                },
                else_branch = plain () => (float[v, w, z] e) { e = Identity(x) }
            >
        }"""
    )
    shapes = {"gates": (1, 8, 3), "again": (1, 8, 2)}
    stored = (onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items())
    proto.graph.initializer.extend(stored)
    return Model(proto, "folded")


def test_a_model_that_only_the_engines_optimizer_refuses_with_fixed_shapes_keeps_free_ones():
    inputs = {"x": np.ones((2, 1, 3), np.float32), "c": np.array(False)}
    done = simplify(folded_branches(), {"x": (2, 1, 3)}, [inputs])
    assert done.model.inputs[0].shape == ("steps", "b", 3)
    assert EXECUTOR.open(done.model.data, SessionOptions()).run(inputs)["y"].shape == (2, 1, 3)
