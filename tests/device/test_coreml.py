"""Core ML packages: their programs, read back from the file, compute what ONNX says; what is refused.

No Core ML runs here. The numbers are those of `executors/coreml/reading`, which `test_coreml_reading.py` holds to
programs that Apple's own converter writes.
"""

# ruff: noqa: E501 - a model a line

from __future__ import annotations

import gc
import gzip
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_ops import AGAIN, MORE, OPS, PICTURE, TRAINING, TWICE, constants, drawn, inputs_of, opset_model, quantized
from engine_ops import right as reference
from fixture_brief import briefly
from npu_models import numbers, parse

from edgeopt.errors import EdgeoptError, InvalidFileError, NoteKind, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.coreml import EXECUTOR, CoreMLSession
from edgeopt.executors.coreml.conversion import FLOAT_FORMS, INTEGER_FORMS, PackageForm, forms_of, to_package
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.optimize import optimize

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

HEADS = Path(__file__).parents[1] / "heads"
HALF, FLOAT = FLOAT_FORMS
ROUNDED, WEIGHTS = INTEGER_FORMS
EXACT = PackageForm("exact.mlpackage", "fp32", "int8", "")
"""As `ROUNDED`, in float32: what half precision rounds to another integer is none of the writer."""
REFUSED_OPS = {"order of windows", "a number alone", "bytes of a picture"}
GRIDS = "u = QuantizeLinear(c, s2, zu) y = DequantizeLinear(u, s2, zu) }"


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """coremltools collects garbage after each conversion; what lives on needs no looking at."""
    from edgeopt.executors.coreml.loading import coremltools

    coremltools()
    gc.freeze()
    yield
    gc.unfreeze()


def session_of(model: Model, form: PackageForm, folder: Path) -> CoreMLSession:
    for path, data in to_package(model, form).files.items():
        file = folder / form.file / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return EXECUTOR.open(folder / form.file, SessionOptions())


def ops_of(session: CoreMLSession) -> list[str]:
    return [place.op for place in session.placement()]


@pytest.mark.parametrize("name", [*(OPS.keys() - REFUSED_OPS), *(MORE.keys() - REFUSED_OPS)])
def test_every_op_computes_what_onnx_says(name, tmp_path):
    model = opset_model(MORE.get(name) or OPS[name])
    inputs = drawn(model)
    expected, actual = reference(model, inputs), session_of(model, FLOAT, tmp_path).run(inputs)
    assert list(actual) == [output.name for output in model.outputs]
    for output, value in expected.items():
        np.testing.assert_allclose(actual[output], value, rtol=2e-4, atol=2e-4)


ALSO = {
    "picture at places": "(float[1,3,5,6] x, float[1,4,4,2] z) => (float[1,3,4,4] y) { y = GridSample<align_corners = 1>(x, z) }",
    "picture at places, edges repeated": '(float[1,3,5,6] x, float[1,4,4,2] z) => (float[1,3,4,4] y) { y = GridSample<mode = "nearest", padding_mode = "border">(x, z) }',
    "elements by coordinates": "(float[4,3] x) => (float[2] y) { y = GatherND(x, pairs2) }",
    "rows that are named backwards": f"({PICTURE}) => (float[1,6,9,5] y) {{ y = Slice(x, minus, least, axis3, minus_two) }}",
    "one or the other": f"({PICTURE}) => (float[1,6,9,10] y) {{ a = Greater(x, half) b = Less(x, low) c = Xor(a, b) n = Neg(x) y = Where(c, x, n) }}",
    "transposed convolution, cut behind": f"({PICTURE}) => (float[1,4,18,20] y) {{ y = ConvTranspose<strides = [2,2], pads = [0,0,1,1]>(x, t64) }}",
}
ALSO_TABLES = {"pairs2": [[3, -1], [0, 1]], "minus_two": [-2], "minus": [-1], "least": [-100]}


@pytest.mark.parametrize("name", ALSO)
def test_ops_that_other_engines_lack(name, tmp_path):
    known = constants() | {key: np.array(value, np.int64) for key, value in ALSO_TABLES.items()}
    read = set(re.findall(r"\w+", ALSO[name]))
    model = parse(f"small {ALSO[name]}", **{key: array for key, array in known.items() if key in read})
    inputs = {key: np.clip(value, -1.2, 1.2) for key, value in inputs_of(model).items()}
    for output, value in reference(model, inputs).items():
        actual = session_of(model, FLOAT, tmp_path).run(inputs)[output]
        np.testing.assert_allclose(actual, value, rtol=2e-4, atol=2e-4)


def test_half_precision_rounds_what_is_stored_and_handed_on(tmp_path):
    model = opset_model(OPS["normalized layer of channels last"])
    inputs = drawn(model)
    expected = reference(model, inputs)["y"]
    session = session_of(model, HALF, tmp_path)
    error = np.abs(session.run(inputs)["y"] - expected).max()
    assert 1e-5 < error < 2e-2
    assert {place.reason for place in session.placement()} == {"fp16", "fp32"}, "inputs and outputs stay float32"


@pytest.mark.parametrize("zero", ["z8", "zu"])
@pytest.mark.parametrize("more", [AGAIN, TWICE], ids=["layer to layer", "several readers"])
def test_integers_are_ours(more, zero, tmp_path):
    more = more.replace("z8", zero)
    model = quantized(numbers(6, 6, 3, 3), 0, zero=zero, more=more if "q2" in more else more + GRIDS)
    inputs = inputs_of(model)
    expected = reference(model, inputs)["y"]
    session = session_of(model, EXACT, tmp_path)
    assert {"quantize", "dequantize", "constexpr_affine_dequantize"} <= {*ops_of(session)}
    actual = session.run(inputs)["y"]
    # halves may be rounded to the other side: a step of the first layer's grid, which 54 sums of the second read
    assert (np.abs(actual - expected) > 2e-3).mean() < 0.15
    assert np.linalg.norm(actual - expected) < 0.01 * np.linalg.norm(expected)


def test_weights_alone_may_be_integers(tmp_path):
    model = quantized(numbers(6, 6, 3, 3), 0, more=AGAIN + GRIDS if "q2" not in AGAIN else AGAIN)
    assert forms_of(model) == INTEGER_FORMS
    inputs = inputs_of(model)
    expected = reference(model, inputs)["y"]
    session = session_of(model, WEIGHTS, tmp_path)
    assert "constexpr_affine_dequantize" in ops_of(session)
    assert not {"quantize", "dequantize"} & {*ops_of(session)}
    assert np.linalg.norm(session.run(inputs)["y"] - expected) < 0.1 * np.linalg.norm(expected)


LAST = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> small (float[1,6,9,10] x) => (float[1,4,5,8] y) {
  t = Transpose<perm = [0,2,3,1]>(x)
  q = QuantizeLinear(t, s, z)
  c = com.microsoft.QLinearConv<channels_last = 1, pads = [1,1,1,1]>(q, s, z, w, ws, wz, s2, z2, b)
  g = com.microsoft.QLinearSigmoid(c, s2, z2, unit, z)
  m = com.microsoft.QLinearMul(c, s2, z2, g, unit, z, s2, z2)
  p = com.microsoft.NhwcMaxPool<kernel_shape = [2,2], strides = [2,2]>(m)
  f = com.microsoft.MatMulIntegerToFloat(p, v, s2, vs, z2, vz, row)
  y = com.microsoft.QuickGelu<alpha = 1.0>(f)
}"""


def integer_ops() -> Model:
    """ONNX Runtime's own integer ops, channels last, as edgeopt writes them for its processor kernels."""
    chance = np.random.default_rng(0)
    known = {
        "s": np.array(0.03, np.float32),
        "z": np.array(0, np.uint8),
        "s2": np.array(0.05, np.float32),
        "z2": np.array(120, np.uint8),
        "unit": np.array(1 / 256, np.float32),
        "w": chance.integers(-127, 128, (6, 6, 3, 3)).astype(np.int8),
        "ws": chance.uniform(0.001, 0.003, 6).astype(np.float32),
        "wz": np.zeros(6, np.int8),
        "b": chance.integers(-900, 900, 6).astype(np.int32),
        "v": chance.integers(-127, 128, (6, 8)).astype(np.int8),
        "vs": chance.uniform(0.005, 0.01, 8).astype(np.float32),
        "vz": np.zeros(8, np.int8),
        "row": numbers(8),
    }
    proto = onnx.parser.parse_model(LAST)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in known.items())
    return Model(proto, "small")


def test_integer_ops_of_onnx_runtime_are_pairs_and_need_one_transpose(tmp_path):
    model = integer_ops()
    inputs = {"x": np.abs(inputs_of(model)["x"])}
    expected = reference(model, inputs)["y"]
    session = session_of(model, EXACT, tmp_path)
    ops = ops_of(session)
    assert ops.count("transpose") == 1, "where the output leaves"
    assert ops.count("conv") == 2, "the product is a convolution of 1x1"
    error = np.abs(session.run(inputs)["y"] - expected)
    assert error.mean() < 0.01 * np.abs(expected).mean()


REFUSED = {
    "Core ML has no Dropout in training": TRAINING,
    "Core ML has no tensors of 6 axes": OPS["order of windows"],
    "Core ML takes no numbers without axes": MORE["a number alone"],
    "'x' is uint8, which no Core ML file": MORE["bytes of a picture"],
    "'x' is float64": "(double[1,4] x) => (double[1,4] y) { y = Relu(x) }",
    "every shape in numbers": "(float[1,3,H,8] x) => (float[1,3,H,8] y) { y = Relu(x) }",
    "Core ML has no Resize in mode cubic": f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "cubic">(x, , twice) }}',
    "Core ML has no NonZero": f"({PICTURE}) => (int64[4,N] y) {{ y = NonZero(x) }}",
    "Core ML has no Div of whole numbers": "(int64[1,4] x) => (int64[1,4] y) { y = Div(x, three) }",
    "Core ML has no Mod with its input 1 computed": "(int64[1,4] x) => (int64[1,4] y) { y = Mod(x, x) }",
    "Core ML has no Gather of places beyond 10": f"({PICTURE}) => (float[1,6,9,1] y) {{ y = Gather<axis = 3>(x, far) }}",
    "Core ML has no Conv with a bias of 6 for 8 channels": f"({PICTURE}) => (float[1,8,7,8] y) {{ y = Conv(x, w86, b6) }}",
    "Core ML has no Conv whose groups or kernel": f"({PICTURE}) => (float[1,8,8,9] y) {{ y = Conv<kernel_shape = [2,2]>(x, w86) }}",
    "Core ML has no outputs of 8-bit integers": f"({PICTURE}) => (uint8[1,6,9,10] y) {{ y = QuantizeLinear(x, step, z_unsigned) }}",
    "Core ML has no QuantizeLinear to other than 8 bits": f"({PICTURE}) => (float[1,6,9,10] y) {{ q = QuantizeLinear(x, step, z16) y = DequantizeLinear(q, step, z16) }}",
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_lacks_is_one_line_that_names_the_node(said):
    known = constants() | {"z16": np.array(0, np.uint16), "z_unsigned": np.array(3, np.uint8)}
    read = set(re.findall(r"\w+", REFUSED[said]))
    model = parse(f"small {REFUSED[said]}", **{key: array for key, array in known.items() if key in read})
    with pytest.raises(UnsupportedError, match=said) as refused:
        to_package(model, FLOAT)
    assert "\n" not in refused.value.problem
    assert refused.value.remedy


def test_a_node_that_core_ml_does_not_take_is_one_line():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> small (float[1,4] x) => (float[4,1] y) { y = Transpose<perm = [1,1]>(x) }'
    )
    with pytest.raises(UnsupportedError, match="does not take the Transpose node"):
        to_package(Model(model, "small"), FLOAT)


def test_names_that_core_ml_does_not_take_are_kept_beside_its_own(tmp_path):
    proto = parse(f"small ({PICTURE}) => (float[1,6,9,10] y) {{ y = Relu(x) }}").proto
    model = Model(onnx.ModelProto.FromString(proto.SerializeToString().replace(b"x", b"/")), "small")
    (name,) = (spec.name for spec in model.inputs)
    session = session_of(model, FLOAT, tmp_path)
    assert name == "/"
    assert [spec.name for spec in session.inputs] == ["/"]
    inputs = {name: inputs_of(model)["/"]}
    np.testing.assert_array_equal(session.run(inputs)["y"], np.maximum(inputs[name], 0))


def test_a_package_holds_no_folder_that_copies_of_files_would_lose(tmp_path):
    for text, has_weights in (
        (f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Relu(x) }}", False),
        (OPS["convolution"], True),
    ):
        files = to_package(opset_model(text), FLOAT).files
        listed = {entry["path"] for entry in json.loads(files["Manifest.json"])["itemInfoEntries"].values()}
        assert ("com.apple.CoreML/weights" in listed) is has_weights


def test_a_package_that_is_cut_off_is_refused(tmp_path):
    session_of(opset_model(OPS["convolution"]), FLOAT, tmp_path)
    file = tmp_path / FLOAT.file / "Data" / "com.apple.CoreML" / "model.mlmodel"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InvalidFileError, match="is no Core ML package of edgeopt"):
        EXECUTOR.open(tmp_path / FLOAT.file, SessionOptions())
    with pytest.raises(EdgeoptError):
        EXECUTOR.open(tmp_path / "none.mlpackage", SessionOptions())


def test_no_model_is_run_by_core_ml_here():
    with pytest.raises(UnavailableError, match="no model is run by Core ML"):
        EXECUTOR.open(opset_model(OPS["convolution"]).data, SessionOptions())
    assert not EXECUTOR.has_device(())


@pytest.mark.parametrize("name", ["squeezenet_224", "yolox_nano_416"])
def test_the_real_models_come_out_right(data, name, tmp_path):
    model = load_model(data / "models" / f"{name}.onnx")
    inputs = {model.inputs[0].name: np.random.default_rng(0).uniform(0, 255, model.inputs[0].shape).astype(np.float32)}
    expected = reference(model, inputs)
    for form, least_db in ((FLOAT, 100), (HALF, 35)):
        session = session_of(model, form, tmp_path)
        assert measure_drift(expected, session.run(inputs)).sqnr_db > least_db
        assert ops_of(session).count("transpose") <= 1


@pytest.mark.parametrize("name", ["ssd300", "nanodet", "v8_pose", "yolo26_detect", "yolov5"])
def test_heads_of_other_exporters_come_out_right(name, tmp_path):
    model = Model(onnx.load_model_from_string(gzip.decompress((HEADS / f"{name}.onnx.gz").read_bytes())), name)
    inputs = drawn(model)
    assert measure_drift(reference(model, inputs), session_of(model, FLOAT, tmp_path).run(inputs)).sqnr_db > 100


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    out = tmp_path_factory.mktemp("o")
    with briefly():
        return optimize("digits_detector", target="cpu", out=out, threads=1, steps=("fuse",), emit=("coreml",))


def test_the_packages_of_a_run_hold_its_choice_and_say_that_no_core_ml_ran(optimized):
    assert optimized.emitted == ("emitted/coreml",)
    folder = optimized.folder / "emitted" / "coreml"
    facts = json.loads((folder / "edgeopt.json").read_text("utf-8"))
    assert facts["engine"] == "coreml"
    assert facts["speed"] is None
    assert facts["speed_verdict"].startswith("not measured")
    assert facts["recipe"]["preprocess"]["resize"] == "letterbox"
    assert {file for file in facts["files"] if not (folder / file).is_file()} == set()
    assert facts["packages"].keys() == {HALF.file, FLOAT.file}
    assert facts["packages"][FLOAT.file]["sqnr_db"] > 80
    assert facts["packages"][HALF.file]["sqnr_db"] > 40
    note = next(note for note in optimized.notes if note.detail.startswith("emitted/coreml"))
    assert "not run, which takes Core ML" in note.detail
    assert note.kind is NoteKind.WARNING, "a terminal shows it"


def test_without_coremltools_it_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.executors.coreml.loading.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="coremltools is not installed") as refused:
        optimize("digits_detector", target="cpu", out=tmp_path / "o", emit=("coreml",))
    assert "edgeopt[coreml]" in refused.value.remedy
    assert not (tmp_path / "o" / "candidates").exists()
