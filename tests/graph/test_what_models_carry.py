"""Files carry along values that contradict them: shapes of another input size, weights that are no numbers."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fixture_models import model, numbers
from onnx import TensorProto, helper
from small_nets import Net

from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.written_shapes import drop_stale_shapes
from edgeopt.graph.model import Model, fix_inputs, load_model, save_model
from edgeopt.measurement.opening.given import open_given
from edgeopt.steps.simplify import simplify


def pyramid(written: int, size: int) -> Model:
    """A net that resizes to a computed size, with shapes of one input size beside its tensors and another declared."""
    net = Net(size=written)
    early = net.op("Relu", net.conv("x", 3, 16, 3, stride=2))
    late = net.op("Relu", net.conv(early, 16, 16, 3, stride=2))
    two, four, kept = (net.constant(f"n{i}", np.array(v, np.int64)) for i, v in enumerate([[2], [4], [1, 16]]))
    sizes = net.op("Concat", kept, net.op("Slice", net.op("Shape", early), two, four), axis=0)
    large = net.op("Resize", late, "", "", sizes, mode="nearest")
    made = net.model(net.conv(net.op("Concat", early, large, axis=1), 32, 6), name="pyramid")
    return declared(made, size)


def declared(made: Model, size: int | str) -> Model:
    """The model with another height and width of its input."""
    for dim in made.proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.CopyFrom(onnx.TensorShapeProto.Dimension(**{"dim_param" if isinstance(size, str) else "dim_value": size}))
    return Model(made.proto, made.name)


def test_shapes_of_another_input_size_are_left_out_and_told(tmp_path: Path) -> None:
    save_model(pyramid(64, 48), tmp_path / "edited.onnx")
    given = open_given(str(tmp_path / "edited.onnx"), "cpu", "tensors")
    (note,) = [one for one in given.choice.notes if "contradict" in one.detail]
    assert "6 tensors" in note.detail
    assert "conv_0 is 1x16x24x24, not 1x16x32x32" in note.detail
    assert not given.model.proto.graph.value_info
    assert given.model.outputs[0].shape == (1, 6, 24, 24)
    simple = simplify(given.model, {})
    assert not [one for one in simple.notes if one.kind == "warning"]
    assert simple.changes["onnxslim"] > 0


def test_shapes_that_a_free_size_contradicts_are_left_out_as_it_is_fixed() -> None:
    net = Net(size=64)
    traced = declared(net.model(net.conv(net.op("Relu", net.conv("x", 3, 16, 3, stride=2)), 16, 6)), "side")
    simple = simplify(traced, {"x": (1, 3, 48, 48)})
    assert any("they are derived anew" in one.detail for one in simple.notes)
    assert not [one for one in simple.notes if one.kind == "warning"]
    assert fix_inputs(traced, {"x": (1, 3, 48, 48)}).outputs[0].shape == (1, 6, 24, 24)


def test_shapes_that_are_right_stay() -> None:
    right = pyramid(64, 64)
    before = right.proto.SerializeToString()
    assert drop_stale_shapes(right.proto) == ()
    assert right.proto.SerializeToString() == before


def test_a_pool_that_rounds_up_contradicts_nothing() -> None:
    pool = model(
        "pool (float[1,1,6,6] x) => (float[1,1,2,2] y) { p = MaxPool <kernel_shape = [1,1], strides = [4,4], "
        "ceil_mode = 1> (x) y = Relu(p) }"
    )
    pool.proto.graph.value_info.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [1, 1, 2, 2]))
    assert drop_stale_shapes(pool.proto) == ()
    assert len(pool.proto.graph.value_info) == 1


def spoiled(kind: type[np.generic] | np.dtype, *, in_a_branch: bool = False) -> Model:
    weight = numbers(4, 4)
    weight[1, 2] = np.nan
    name = np.dtype(kind).name
    to = {"float32": "", "float16": " c = Cast <to = 1> (w)", "bfloat16": " c = Cast <to = 1> (w)"}[name]
    read = "c" if to else "w"
    body = f"{to} y = MatMul(x, {read})"
    if in_a_branch:
        body = (
            "s = ReduceSum <keepdims = 0> (x) z = Constant <value = float {0}> () b = Greater(s, z) "
            "y = If (b) <then_branch = t () => (float[2,4] p) { p = MatMul(x, w) }, "
            "else_branch = e () => (float[2,4] q) { q = Neg(x) }>"
        )
    return model(f"spoiled (float[2,4] x) => (float[2,4] y) {{ {body} }}", w=weight.astype(kind))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_a_weight_that_is_nan_is_named(kind: type[np.generic], tmp_path: Path) -> None:
    onnx.save(spoiled(kind).proto, tmp_path / "spoiled.onnx")
    with pytest.raises(InvalidFileError, match="weight 'w' is NaN in 1 of 16"):
        load_model(tmp_path / "spoiled.onnx")


def test_a_weight_that_is_nan_in_a_branch_is_named(tmp_path: Path) -> None:
    onnx.save(spoiled(np.float32, in_a_branch=True).proto, tmp_path / "spoiled.onnx")
    with pytest.raises(InvalidFileError, match="weight 'w' is NaN"):
        load_model(tmp_path / "spoiled.onnx")


def test_a_nan_that_only_fills_is_no_weight(tmp_path: Path) -> None:
    filled = model(
        "filled (float[4] x) => (float[4] y) "
        "{ z = Constant <value = float {0}> () b = Greater(x, z) y = Where(b, x, n) }",
        n=np.array([np.nan], np.float32),
    )
    onnx.save(filled.proto, tmp_path / "filled.onnx")
    assert load_model(tmp_path / "filled.onnx").name == "filled"


@pytest.mark.parametrize(
    "words",
    [
        ["optimize", "-t", "cpu"],
        ["quantize", "-t", "cpu", "--calib", "c.npz"],
        ["check", "-b", "b.json", "--update"],
        *(["prune"], ["bench"], ["inspect"]),
    ],
    ids=str,
)
def test_commands_end_with_that_line(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(spoiled(np.float32).proto, tmp_path / "spoiled.onnx")
    np.savez(tmp_path / "c.npz", x=numbers(4, 2, 4))
    command, *rest = words
    result = CliRunner().invoke(cli, [command, "spoiled.onnx", *rest])
    assert result.exit_code > 0
    assert "weight 'w' is NaN in 1 of 16" in " ".join(result.output.split())
