"""Where ONNX Runtime's optimizer errs on a model, it is held back: in measurements, forms and the bundle alike."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from engine_faults import ARE_X86, CHANGED, HAS_SIGNALS, divided_by_constants, norm_that_widens, norm_without_the_axis
from fixture_models import model as from_text

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, NoteKind, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import DISABLED_OPTIMIZERS, FAMILIES, LEVEL, UNOPTIMIZED
from edgeopt.graph.files.large_constants import kept_in
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.opening import right_optimizations
from edgeopt.measurement.opening.right_optimizations import Correction, find_correction, made_up_samples
from edgeopt.system.declared.target import find_target

CPU = find_target("cpu")


def correction_of(model: Model) -> Correction:
    return find_correction(model, lambda: made_up_samples(model), CPU)


def answers(model: Model, inputs: Tensors, entries: dict[str, str]) -> Tensors:
    return EXECUTOR.open(model.source, SessionOptions(entries=entries)).run(inputs)


def unseen(model: Model) -> Tensors:
    chance = np.random.default_rng(7)
    return {one.name: chance.standard_normal(one.shape).astype(np.float32) for one in model.inputs}


@HAS_SIGNALS
@pytest.mark.parametrize("name", CHANGED)
def test_what_errs_is_switched_off_and_nothing_else(name: str) -> None:
    model = CHANGED[name]()
    found = correction_of(model)
    (note,) = found.notes
    family = "QDQPropagationTransformer" if name == "branches" else "LayerNormFusion"
    assert DISABLED_OPTIMIZERS in note.hint
    assert found.entries == {DISABLED_OPTIMIZERS: ";".join(FAMILIES[family])}
    assert f"{family} is switched off" in note.detail
    inputs = unseen(model)
    right = answers(model, inputs, dict(UNOPTIMIZED))["y"]
    np.testing.assert_allclose(answers(model, inputs, dict(found.entries))["y"], right, rtol=1e-5, atol=1e-6)


def test_the_node_is_named_where_answers_change() -> None:
    (note,) = correction_of(norm_without_the_axis()).notes
    assert "changes what norm_without_the_axis answers" in note.detail
    assert "first at Add node 'shift_it'" in note.detail


def test_the_node_is_named_that_the_engine_makes_and_refuses() -> None:
    (note,) = correction_of(norm_that_widens()).notes
    assert "refuses itself (LayerNormalization node 'scale': Scale and (optional) bias must match" in note.detail


@ARE_X86
def test_a_model_on_which_the_engine_aborts_in_any_way_is_one_error() -> None:
    with pytest.raises(UnsupportedError, match=r"^divided: ONNX Runtime died of SIGFPE"):
        correction_of(divided_by_constants())


@ARE_X86
@pytest.mark.parametrize("command", ["bench", "compare", "optimize", "quantize", "run"])
def test_a_command_tells_in_one_line_that_the_engine_aborts(command: str, tmp_path: Path) -> None:
    file, samples = map(str, written(divided_by_constants(), tmp_path))
    given = {"bench": ["--source"], "compare": [file, "--source"], "run": []}.get(command, ["--calib"])
    target = [] if command == "run" else ["-t", "cpu"]
    shown = CliRunner().invoke(cli, [command, file, *given, samples, *target])
    assert shown.exit_code == 1
    assert "error: divided: ONNX Runtime died of SIGFPE while first running it\n  -> " in shown.output


@ARE_X86
@pytest.mark.parametrize("command", ["inspect", "recipe"])
def test_what_needs_no_run_goes_on_without_one(command: str, tmp_path: Path) -> None:
    file, _ = written(divided_by_constants(), tmp_path)
    shown = CliRunner().invoke(cli, [command, str(file)], input="")
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    "text",
    [
        "conv (float[1,3,8,8] x) => (float[1,3,8,8] y) { r = Relu(x) s = Sigmoid(r) y = Mul(r, s) }",
        "random (float[2,3] x) => (float[2,3] y) { r = RandomNormalLike(x) y = Add(x, r) }",
        "half (float16[2,64] x) => (float16[2,64] y) { s = Softmax(x) e = Exp(s) l = Log(e) y = Mul(l, x) }",
        "indices (float[2,64] x) => (int64[2,1] y) { y = ArgMax <axis = 1> (x) }",
        "steps (float[1,4,6,6] x) => (float[1,4,6,6] y) <float s = {0.05}, uint8 z = {128}> { "
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        "a = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d) "
        "r = QuantizeLinear(a, s, z) y = DequantizeLinear(r, s, z) }",
        "words (int64[2] x) => (float[2] y) { f = Cast <to = 1> (x) y = Relu(f) }",
    ],
)
def test_what_rounds_or_is_drawn_by_chance_is_no_fault_of_the_engine(text: str) -> None:
    assert correction_of(from_text(text)) == Correction()


def test_samples_that_the_model_does_not_take_give_no_verdict() -> None:
    model = from_text("picky (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    assert find_correction(model, lambda: [{"x": np.zeros((7, 7), np.float32)}], CPU) == Correction()


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({LEVEL: "fast"}, "graph_optimization_level is 'fast'"),
        ({DISABLED_OPTIMIZERS: "A B"}, "disable_specified_optimizers is 'A B'"),
        ({DISABLED_OPTIMIZERS: "../a.so"}, "disable_specified_optimizers is"),
    ],
)
def test_entries_hold_names_and_levels_only(entries: dict[str, str], told: str) -> None:
    with pytest.raises(EdgeoptError, match=told):
        EXECUTOR.open(norm_without_the_axis().source, SessionOptions(entries=entries))


def test_weights_that_lie_outside_are_compared_from_their_files(tmp_path: Path) -> None:
    with kept_in(tmp_path / "large"):
        graph = Graph.from_model(norm_without_the_axis())
        (head,) = graph.nodes("MatMul")
        wide = np.random.default_rng(0).standard_normal((8, 4096)).astype(np.float32)
        for weight in (wide, wide.T.copy()):
            stored = graph.add_initializer("wide", weight)
            graph.set_input(head, 0, graph.insert("MatMul", [head.inputs[0], stored], before=head).outputs[0])
        model = graph.to_model()
        assert model.is_outside
        found = correction_of(model)
    assert found.entries == {DISABLED_OPTIMIZERS: ";".join(FAMILIES["LayerNormFusion"])}


def test_a_large_model_that_memory_does_not_hold_is_told_not_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model = norm_without_the_axis()
    monkeypatch.setattr(right_optimizations, "LARGE_BYTES", 0)
    monkeypatch.setattr(right_optimizations, "free_bytes", lambda: model.size_bytes)
    found = correction_of(model)
    assert found.entries == {}
    assert [one.kind for one in found.notes] == [NoteKind.SKIPPED]
    assert "is not looked at: a session of it takes" in found.notes[0].detail


WIDE = """wide (float[1, 3, 1000000, 160] x) => (float[1, 3, 1000000, 160] y) {
    y = Relu (x)
}"""


def test_an_input_too_large_to_make_up_is_a_note_of_inspect_and_no_traceback(tmp_path: Path) -> None:
    model = from_text(WIDE)
    with pytest.raises(EdgeoptError, match=r"input x .* would take 3662.11 MiB"):
        made_up_samples(model)
    file = tmp_path / "wide.onnx"
    file.write_bytes(model.data)
    shown = CliRunner().invoke(cli, ["inspect", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "whether the engine computes the model right was not tried" in shown.output


@pytest.fixture
def widens(tmp_path: Path) -> tuple[Path, Path]:
    """The model that the engine makes a refused one of, and samples."""
    return written(norm_that_widens(), tmp_path)


def written(model: Model, folder: Path) -> tuple[Path, Path]:
    file, samples = folder / f"{model.name}.onnx", folder / "in.npz"
    file.write_bytes(model.data)
    (spec,) = model.inputs
    np.savez(samples, x=np.random.default_rng(3).standard_normal((6, *spec.shape)).astype(np.float32))
    return file, samples


@pytest.mark.parametrize("command", ["bench", "compare", "check", "inspect"])
def test_every_command_that_opens_a_model_says_so(command: str, widens: tuple[Path, Path], brief: None) -> None:
    file, samples = map(str, widens)
    hurry = ["--seconds", "0.1", "--starts", "3", "--skip", "memory", "--skip", "cold_start"]
    arguments = {
        "bench": [file, "--source", samples, "--seconds", "0.1"],
        "compare": [file, file, "--source", samples, "--seconds", "0.1"],
        "check": [file, "--update", "--baseline", str(widens[0].parent / "b"), "--source", samples, *hurry],
        "inspect": [file],
    }
    shown = CliRunner().invoke(cli, [command, *arguments[command], "-t", "cpu", "--json"])
    assert "LayerNormFusion is switched off" in shown.output, shown.output
    assert "check the numbers and the shapes of the inputs" not in shown.output


def test_a_bundle_records_what_is_switched_off_and_answers_right(tmp_path: Path, brief: None) -> None:
    model = norm_without_the_axis()
    file, samples = written(model, tmp_path)
    report = edgeopt.optimize(file, target="cpu", out=tmp_path / "out", calib=str(samples), steps=("simplify", "fuse"))
    manifest = json.loads((report.folder / "bundle" / "manifest.json").read_text("utf-8"))
    assert all(DISABLED_OPTIMIZERS in one["options"] for one in manifest["artefacts"])
    assert any("LayerNormFusion is switched off" in str(note) for note in report.notes)
    inputs = unseen(model)
    with edgeopt.Runtime.load(report.folder / "bundle") as runtime:
        found = runtime.session.run(inputs)["y"]
    np.testing.assert_allclose(found, answers(model, inputs, dict(UNOPTIMIZED))["y"], rtol=1e-3, atol=1e-4)


def test_an_int8_form_follows_the_right_answers(tmp_path: Path, one_form: None) -> None:
    model = norm_without_the_axis()
    file, samples = written(model, tmp_path)
    result = edgeopt.quantize(file, target="cpu", calib=samples, out=tmp_path / "q.onnx", threads=1)
    assert any("LayerNormFusion is switched off" in str(note) for note in result.notes)
    if result.file is None:
        return  # no form is faster here, and none was kept
    assert DISABLED_OPTIMIZERS in result.options
    inputs = unseen(model)
    right = answers(model, inputs, dict(UNOPTIMIZED))["y"]
    error = answers(load_model(result.file), inputs, dict(result.options))["y"] - right
    assert np.linalg.norm(error) < 0.1 * np.linalg.norm(right)


@pytest.mark.parametrize("name", ["layernorm_keepdims0", "norm_scale_widens"])
def test_the_cases_answer_as_without_optimizations(name: str, data: Path) -> None:
    case = data / "cases" / name
    if not case.is_dir():
        pytest.skip(f"{case} is absent")
    model = load_model(case / f"{name}.onnx")
    found, fresh = correction_of(model), np.load(case / "fresh.npz")
    for i in range(3):
        answer = answers(model, {"x": fresh[f"{i}.x"]}, dict(found.entries))["y"]
        np.testing.assert_allclose(answer, fresh[f"{i}.out.y"], rtol=1e-4, atol=1e-5)
