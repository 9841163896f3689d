"""ExecuTorch against ONNX Runtime without optimizations: ops, integers with our own scales, what it refuses, its child."""

# ruff: noqa: E501 - a model a line

from __future__ import annotations

import gc

import numpy as np
import pytest
from engine_ops import (
    AGAIN,
    FOUND_GRIDS,
    MORE,
    OPS,
    PICTURE,
    TWICE,
    drawn,
    inputs_of,
    model_of,
    opset_model,
    quantized,
    right,
    right_by_rows,
    with_found_grids,
)
from npu_models import numbers, parse

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.executorch import EXECUTOR, conversion, program_file
from edgeopt.optimization.optimize import optimize

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

CPU = SessionOptions(("CPU",), 1)
TRIED = (
    "convolution in strides",
    "convolution with an activation",
    "transposed convolution with padding",
    "clip",
    "nearest pixels",
    "softmax over channels",
    "product by weights",
    "normalized layer of channels last",
    "heads of attention",
    "one tensor, many readers",
    "an input that is an output",
)
"""A conversion takes a second or two; every op itself is held to ONNX Runtime where torch trains with it."""


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Programs of earlier tests would stand in for conversions."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _nothing_open():
    """ExecuTorch's threads are one number for the process: no session outlives its test."""
    yield
    gc.collect()


@pytest.mark.parametrize("name", [*TRIED, "bytes of a picture", "a number alone"])
def test_ops_compute_what_onnx_says(name):
    model = opset_model(MORE.get(name) or OPS[name])
    inputs = drawn(model)
    expected, actual = right(model, inputs), EXECUTOR.open(model.data, CPU).run(inputs)
    assert list(actual) == [output.name for output in model.outputs]
    for output, value in expected.items():
        assert actual[output].dtype == value.dtype
        np.testing.assert_allclose(actual[output], value, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("zero", ["z8", "zu"])
@pytest.mark.parametrize("more", [AGAIN, TWICE], ids=["layer to layer", "several readers"])
def test_integers_are_ours_and_their_products_are_exact(more, zero):
    """A layer whose result is rounded runs on integers, and differs by a step in few places; others stay in float."""
    model = quantized(numbers(6, 6, 3, 3), 0, zero=zero, more=more.replace("z8", zero))
    session = EXECUTOR.open(model.data, CPU)
    layers = [layer.reason for layer in session.placement() if "conv" in layer.op]
    assert layers.count("int8") == 1, "the first has its result rounded, no other"
    assert layers.count("fp32") == len(layers) - 1
    for seed in range(3):
        inputs = inputs_of(model, seed)
        expected, actual = right(model, inputs)["y"], session.run(inputs)["y"]
        # halves may be rounded to the other side: a step of the first layer's grid, which 54 sums of the second read
        assert (np.abs(actual - expected) > 2e-3).mean() < 0.15
        assert np.linalg.norm(actual - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Gemm<transB=1>"])
def test_products_run_on_integers_however_their_weights_lie(product, width):
    """Weights of as many inputs as outputs fit either way round: a wrong turn would go unseen by shapes."""
    shape = (width, 8) if "transB" in product else (8, width)
    constants = {"step": np.array(0.02, np.float32), "other": np.array(0.05, np.float32), "z8": np.array(0, np.int8)}
    constants |= {"held": (np.arange(8 * width) * 7 % 255 - 127).astype(np.int8).reshape(shape)}
    constants |= {"ws": np.array(0.01, np.float32)}
    text = f"small (float[3,8] x) => (float[3,{width}] y) {{ q = QuantizeLinear(x, step, z8) d = DequantizeLinear(q, step, z8)"
    text += f" w = DequantizeLinear(held, ws, z8) p = {product}(d, w)"
    model = parse(f"{text} r = QuantizeLinear(p, other, z8) y = DequantizeLinear(r, other, z8) }}", **constants)
    inputs = drawn(model)
    session = EXECUTOR.open(model.data, CPU)
    assert [(layer.op, layer.reason) for layer in session.placement()] == [("linear", "int8")]
    actual, expected = session.run(inputs)["y"], right(model, inputs)["y"]
    assert np.abs(actual - expected).max() < 0.051, (
        "a step of the grid at most: halves may be rounded to the other side"
    )


@pytest.mark.parametrize("name", ["one row", "rows of rows", "two that read one tensor", "one after another"])
def test_products_on_grids_of_rows_that_are_found_as_it_runs(name):
    model = with_found_grids(FOUND_GRIDS[name], "executorch-cpu")
    session = EXECUTOR.open(model.data, CPU)
    assert {layer.reason for layer in session.placement() if layer.op == "linear"} == {"dynamic int8"}
    assert not {"choose_qparams", "quantize_per_tensor"} & {layer.op for layer in session.placement()}
    for seed in range(3):
        inputs = inputs_of(model, seed)
        expected = right_by_rows(FOUND_GRIDS[name], inputs, "executorch-cpu")
        np.testing.assert_allclose(session.run(inputs)["y"], expected, rtol=1e-4, atol=1e-4)


MOVED = {
    "MaxPool": "float[1,6,4,5] y) { p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)",
    "Transpose": "float[1,6,10,9] y) { p = Transpose<perm=[0,1,3,2]>(d)",
}


@pytest.mark.parametrize("op", MOVED)
def test_what_moves_from_one_grid_to_another_runs(op):
    """XNNPACK moves integers on one grid alone, and is handed these ops between two."""
    shape, moves = MOVED[op].split(" { ")
    ends = "r = QuantizeLinear(p, other, z8) y = DequantizeLinear(r, other, z8)"
    begins = "q = QuantizeLinear(x, step, z8) d = DequantizeLinear(q, step, z8)"
    constants = {"step": np.array(0.02, np.float32), "other": np.array(0.03, np.float32), "z8": np.array(0, np.int8)}
    model = parse(f"small ({PICTURE}) => ({shape} {{ {begins} {moves} {ends} }}", **constants)
    inputs = drawn(model)
    session = EXECUTOR.open(model.data, CPU)
    np.testing.assert_allclose(session.run(inputs)["y"], right(model, inputs)["y"], rtol=0, atol=1e-6)


REFUSED = {
    "every shape in numbers": "(float[1,3,H,8] x) => (float[1,3,H,8] y) { y = Relu(x) }",
    "whose integers leave the model": f"({PICTURE}) => (uint8[1,6,9,10] y) {{ y = QuantizeLinear(x, step, zu) }}",
    "executorch is given no Multinomial": "(float[1,4] x) => (int32[1,1] y) { y = Multinomial(x) }",
    "executorch is given numbers, and 'x' is": "(string[2] x) => (float[2] y) { y = Cast<to=1>(x) }",
    "is given a DynamicQuantizeLinear only": f"({PICTURE}) => (float[1,6,9,10] y) {{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }}",
    "a scale that is not above zero": f"({PICTURE}) => (float[1,6,9,10] y) {{ q = QuantizeLinear(x, nought, z8) y = DequantizeLinear(q, nought, z8) }}",
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_lacks_is_one_line(said):
    known = {"step": np.array(0.25, np.float32), "nought": np.array(0, np.float32)}
    known |= {"z8": np.array(0, np.int8), "zu": np.array(3, np.uint8)}
    text = REFUSED[said]
    model = parse(f"small {text}", **{name: value for name, value in known.items() if f" {name}" in text})
    with pytest.raises(UnsupportedError, match=said) as refused:
        EXECUTOR.open(model.data, CPU)
    assert refused.value.remedy


def test_a_file_of_its_own_holds_the_model_and_names_its_tensors(tmp_path):
    model = model_of(OPS["convolution with an activation"])
    out = tmp_path / "model.pte"
    session = EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, save_optimized_to=str(out)))
    inputs = inputs_of(model)
    again = EXECUTOR.open(out, CPU)
    np.testing.assert_array_equal(session.run(inputs)["y"], again.run(inputs)["y"])
    assert again.inputs == session.inputs == model.inputs
    assert EXECUTOR.own_files(model.data).keys() == {"model.pte"}


def test_threads_are_one_number_for_the_process_while_a_model_is_open():
    data = program_file(model_of(OPS["convolution"]).data)
    session = EXECUTOR.open(data, CPU)
    with pytest.raises(UnsupportedError, match="models are open on 1, so none opens on 2"):
        EXECUTOR.open(data, SessionOptions(("CPU",), 2))
    session.close()
    other = EXECUTOR.open(data, SessionOptions(("CPU",), 2))
    from executorch.extension.pybindings import _C

    assert _C._threadpool_get_thread_count() == 2
    other.close()


@pytest.mark.parametrize("bad", [b"", b"no model", b"\0\0\0\0ET12", b"\x1c\0\0\0ET12" + bytes(64)])
def test_bytes_that_are_no_model_are_refused(bad):
    with pytest.raises(EdgeoptError):
        EXECUTOR.open(bad, CPU)


@pytest.mark.parametrize("cut", [8, 200, 2000])
def test_a_file_that_is_cut_off_is_refused(cut):
    data = program_file(model_of(OPS["convolution"]).data)
    with pytest.raises(InvalidFileError):
        EXECUTOR.open(data[:cut], CPU)


def test_it_has_no_other_precision():
    data = model_of(OPS["convolution"]).data
    with pytest.raises(ValueError, match="fp16"):
        EXECUTOR.open(data, SessionOptions(("CPU",), 1, precision="fp16"))


def test_what_was_converted_before_is_opened_by_a_process_without_a_converter(monkeypatch):
    model = model_of(OPS["root"])
    first = program_file(model.data)
    monkeypatch.setattr(conversion, "_CONVERTER", None)
    assert program_file(model.data) == first


def test_a_conversion_that_hangs_is_ended_and_the_next_one_works(monkeypatch):
    model = model_of(OPS["exp"])
    with monkeypatch.context() as patched:
        patched.setattr(conversion, "_LONGEST_S", 0.001)
        with pytest.raises(UnsupportedError, match=r"the conversion to executorch did not answer within 0\.001 s"):
            EXECUTOR.open(model.data, CPU)
    inputs = inputs_of(model)
    np.testing.assert_allclose(EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"], rtol=1e-4)


def test_a_time_limit_ends_a_conversion_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    problem = "the time limit of 1s was over before the target's engine had run the model"
    with pytest.raises(EdgeoptError, match=problem):
        optimize("digits_detector", target="executorch-cpu", out=tmp_path / "out", threads=1, time_limit_s=1.0)
    assert not (tmp_path / "out").exists()


def test_limits_that_are_not_there_change_nothing():
    model = model_of(OPS["clip"].replace("Clip(x, low, high)", "Clip(x)"))
    inputs = drawn(model)
    np.testing.assert_array_equal(EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"])


def test_a_conversion_that_dies_is_one_line(monkeypatch):
    model = model_of(OPS["softplus"])
    monkeypatch.setattr(conversion, "_MODULE", "there_is_no_such_module")
    monkeypatch.setattr(conversion, "_CONVERTER", conversion._Converter())
    with pytest.raises(UnsupportedError, match="the conversion to executorch ended with exit code 1"):
        EXECUTOR.open(model.data, CPU)
