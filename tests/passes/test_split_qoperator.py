import numpy as np
import pytest
from fixture_models import assert_same, inputs_of, model, numbers, ops, run, run_pass, scalar

from edgeopt.graph.model import Model

NAME = "split_qoperator"


def integers(*shape: int, kind: type = np.int8, seed: int = 0) -> np.ndarray:
    info = np.iinfo(kind)
    return np.random.default_rng(seed).integers(info.min // 2, info.max // 2 + 1, shape).astype(kind)


def grids(*names: str, kind: type = np.int8) -> dict[str, np.ndarray]:
    made = {f"{name}s": scalar(0.02 * (i + 1)) for i, name in enumerate(names)}
    return made | {f"{name}o": np.array(3, kind) for name in names}


def qlinear_conv(*, bias: bool = True, channels: bool = True, kind: type = np.int8) -> Model:
    weights = {"ws": np.abs(numbers(6)) * 0.01 + 0.001, "wo": np.zeros(6, np.int8)} if channels else {}
    biased = {"b": integers(6, kind=np.int32) // 2**20} if bias else {}
    return model(
        f"""conv (float[1,4,7,7] x) => (float[1,6,4,4] y) {{
            q = QuantizeLinear(x, xs, xo)
            c = QLinearConv <strides = [2,2], pads = [1,1,1,1]> (q, xs, xo, w, ws, wo, ys, yo{", b" if bias else ""})
            y = DequantizeLinear(c, ys, yo)
        }}""",
        opset=21,
        **grids("x", "y", kind=kind),
        **grids("w") | weights,
        w=integers(6, 4, 3, 3),
        **biased,
    )


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_integers_becomes_one_between_pairs(bias: bool, channels: bool, kind: type) -> None:
    before = qlinear_conv(bias=bias, channels=channels, kind=kind)
    found, after = run_pass(NAME, before)
    pairs = ["DequantizeLinear"] * (3 if bias else 2)
    assert (found, ops(after)) == (1, ["QuantizeLinear", *pairs, "Conv", "QuantizeLinear", "DequantizeLinear"])
    assert_same(before, after)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products_of_integers_become_float_ones_between_pairs(op: str) -> None:
    before = model(
        f"""both (float[2,8] x) => (float[2,8] y) {{
            q = QuantizeLinear(x, xs, xo)
            c = com.microsoft.{op} (q, xs, xo, w, ws, wo, ys, yo)
            y = DequantizeLinear(c, ys, yo)
        }}""",
        **grids("x", "w", "y"),
        w=integers(8),
    )
    found, after = run_pass(NAME, before)
    assert (found, op.removeprefix("QLinear") in ops(after)) == (1, True)
    inputs = inputs_of(before)  # onnx's own evaluator has no contrib ops
    np.testing.assert_array_equal(run(after, inputs)["y"], run(before, inputs)["y"])


def qlinear_matmul(*, rows: int = 1, columns: int = 1) -> Model:
    return model(
        """product (float[2,8] x) => (float[2,5] y) {
            q = QuantizeLinear(x, xs, xo)
            c = QLinearMatMul(q, rs, ro, w, ws, wo, ys, yo)
            y = DequantizeLinear(c, ys, yo)
        }""",
        opset=21,
        **grids("x", "y"),
        rs=np.full(rows, 0.02, np.float32) if rows > 1 else scalar(0.02),
        ro=np.full(rows, 3, np.int8) if rows > 1 else np.array(3, np.int8),
        w=integers(8, 5),
        ws=np.abs(numbers(columns)) * 0.01 + 0.001,
        wo=np.zeros(columns, np.int8),
    )


@pytest.mark.parametrize("columns", [1, 5])
def test_a_matrix_product_keeps_a_scale_for_each_column(columns: int) -> None:
    before = qlinear_matmul(columns=columns)
    found, after = run_pass(NAME, before)
    assert (found, "MatMul" in ops(after)) == (1, True)
    assert_same(before, after)


def test_a_scale_for_each_row_stays_because_pairs_have_none_for_what_is_not_stored() -> None:
    assert run_pass(NAME, qlinear_matmul(rows=2))[0] == 0


def test_an_opset_without_scales_for_channels_stays() -> None:
    before = qlinear_conv(channels=False)
    before.proto.opset_import[0].version = 12
    assert run_pass(NAME, before)[0] == 0


def test_grids_that_are_no_constants_stay() -> None:
    before = model(
        """found (float[1,4,7,7] x, float s) => (float[1,6,5,5] y) {
            q = QuantizeLinear(x, s, xo)
            c = QLinearConv(q, s, xo, w, ws, wo, ys, yo)
            y = DequantizeLinear(c, ys, yo)
        }""",
        **grids("w", "y"),
        xo=np.array(0, np.int8),
        w=integers(6, 4, 3, 3),
    )
    assert run_pass(NAME, before)[0] == 0
