import os

import numpy as np
import onnx
import pytest
from engine_faults import branch_behind_a_transpose
from fixture_models import (
    activation,
    assert_same,
    conv_then,
    focus_chained,
    inputs_of,
    model,
    numbers,
    ops,
    scalar,
    shape_chain,
)
from test_canonical import free, softmax_of_opset_7, with_function

from edgeopt.errors import InvalidFileError, NoteKind, StepError, UnsupportedError
from edgeopt.executors._guard import guarded
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.passes import Phase, passes_of
from edgeopt.steps._checked import Expectation, apply_checked
from edgeopt.steps.fuse import fuse
from edgeopt.steps.simplify import simplify


def of_usual_size(given: Model) -> Model:
    """The same with a description as long as a small network's weights: no names and shapes are 1 % of such a file."""
    proto = onnx.ModelProto()
    proto.CopyFrom(given.proto)
    proto.doc_string = "weights " * 10_000
    return Model(proto, given.name)


def test_what_would_make_a_file_grow_for_nothing_is_not_taken() -> None:
    tiny = model("tiny (float[2,3] x, float[2,3] z) => (float[2,3] y) { s = Add(x, z) y = Relu(s) }")
    for step in (lambda one: simplify(one, {}), fuse):
        done = step(tiny)
        assert done.model is tiny
        assert (done.changes, done.notes) == ({}, ())
    old = softmax_of_opset_7()
    done = simplify(old, {"x": (2, 3, 2, 2)}, [inputs_of(old)])
    assert done.model.size_bytes <= 1.01 * old.size_bytes
    assert "made the file grow" in done.notes[0].detail
    assert simplify(of_usual_size(old), {"x": (2, 3, 2, 2)}, [inputs_of(old)]).model.opset == 17


def test_shapes_are_fixed_even_where_the_file_grows_by_them() -> None:
    free = model("free (float[n,3] x) => (float[n,3] y) { y = Relu(x) }")
    assert simplify(free, {"x": (4, 3)}).model.inputs[0].shape == (4, 3)


def test_simplify_fixes_shapes_raises_the_opset_and_counts_each_rewrite() -> None:
    before = of_usual_size(softmax_of_opset_7())
    done = simplify(before, {"x": (2, 3, 2, 2)}, [inputs_of(before)])
    assert done.model.opset == 17
    assert done.changes["upgrade_opset"] == 10
    assert "Dropout" not in ops(done.model)
    assert done.notes == ()
    assert Expectation.of(before, [inputs_of(before)], 1e-5).why_not(done.model) is None


def test_simplify_resolves_a_free_input_and_the_shape_chain_behind_it() -> None:
    before = shape_chain()
    before.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    before.proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    before = Model(before.proto, "free")
    done = simplify(before, {"x": (1, 2, 4, 6)})
    assert ops(done.model) == ["Resize"]
    assert done.model.inputs[0].shape == (1, 2, 4, 6)


def test_simplify_refuses_a_dimension_that_nothing_fixes() -> None:
    with pytest.raises(UnsupportedError, match="dimension 0"):
        simplify(free(), {})


def test_simplify_writes_local_functions_out() -> None:
    assert ops(simplify(with_function(), {}).model) == ["Add", "Neg"]


def test_simplify_leaves_a_higher_opset() -> None:
    done = simplify(activation("y = Gelu(x)", opset=20), {})
    assert (done.model.opset, dict(done.changes)) == (20, {})


def test_an_upgrade_that_changes_the_outputs_keeps_the_old_opset_and_says_so() -> None:
    """Hardmax saw all axes from 1 on as one before opset 13; onnx's converter forgets it (seen in 1.23)."""
    before = model("old (float[2,3,2,2] x) => (float[2,3,2,2] y) { y = Hardmax <axis = 1> (x) }", opset=7)
    done = simplify(before, {}, [inputs_of(before)])
    assert done.model.opset == 7
    assert [note.kind for note in done.notes] == [NoteKind.WARNING] * 2
    assert "the upgrade from opset 7 to 17 was left out: it changes the outputs" in done.notes[0].detail
    assert "to 13" in done.notes[1].detail


def test_a_model_that_onnxslim_would_rob_of_an_input_keeps_it_with_a_warning() -> None:
    before = model("spare (float[2] x, float[2] unused) => (float[2] y) { a = Identity(x) y = Relu(a) }")
    done = simplify(before, {})
    assert [one.name for one in done.model.inputs] == ["x", "unused"]
    assert ops(done.model) == ["Relu"]
    assert [note.detail for note in done.notes] == ["OnnxSlim was left out: it changed the model's inputs or outputs"]


def test_folding_that_makes_the_file_grow_is_undone_with_a_note() -> None:
    nodes = "\n".join(f"t{i} = Expand(c{i}, size) s{i} = Mul(x, t{i})" for i in range(40))
    total = f"y = Sum({', '.join(f's{i}' for i in range(40))})"
    constants = {f"c{i}": scalar(i) for i in range(40)}
    before = model(
        f"many (float[16,15] x) => (float[16,15] y) {{ {nodes}\n{total} }}", size=np.array([16, 15]), **constants
    )
    done = simplify(before, {})
    assert ops(done.model).count("Expand") == 40
    assert done.model.size_bytes < before.size_bytes + 16 * 1024
    assert [note.kind for note in done.notes] == [NoteKind.INFO]
    assert "folding made the constants grow from" in done.notes[0].detail
    assert_same(before, done.model)


def test_a_model_that_onnx_runtime_refuses_is_an_error_of_the_file() -> None:
    before = model("foreign (float[2] x) => (float[2] y) { y = com.microsoft.NoSuchOp(x) }")
    with pytest.raises(InvalidFileError, match="ONNX Runtime refuses"):
        simplify(before, {})


def test_inputs_that_do_not_fit_the_fixed_shapes_are_refused_because_nothing_can_be_checked() -> None:
    batch_of_two = {"image": numbers(2, 3, 4, 8)}
    with pytest.raises(StepError, match=r"free cannot be checked: .*\n  -> check on inputs of the fixed shapes"):
        simplify(free(), {"image": (1, 3, 4, 8)}, [batch_of_two])


def test_fuse_goes_on_until_nothing_changes_and_counts_each_pass() -> None:
    before = conv_then(
        "n = BatchNormalization(c, s, t, t, v) a = Add(n, u) m = Mul(a, u) y = Relu(m)",
        s=numbers(8, seed=1),
        t=numbers(8, seed=2),
        v=np.abs(numbers(8, seed=3)) + 1,
        u=numbers(8, 1, 1, seed=4),
    )
    done = fuse(before, [inputs_of(before)])
    assert (ops(done.model), done.notes) == (["Conv", "Relu"], ())
    assert dict(done.changes) == {"fuse_conv_affine": 2, "fuse_conv_batchnorm": 1}
    assert_same(before, done.model)


def test_fuse_returns_the_model_itself_where_there_is_nothing_to_do() -> None:
    before = activation("y = Relu(x)")
    done = fuse(before)
    assert done.model is before
    assert (dict(done.changes), done.notes) == ({}, ())


def halve_weights(graph: Graph) -> int:
    """A wrong pass: it changes every Conv's weight, once."""
    found = 0
    for conv in graph.nodes("Conv"):
        weight = graph.constant(conv.inputs[1])
        if weight is not None and not conv.name.endswith("_halved"):
            graph.set_input(conv, 1, weight / 2)
            conv.name = f"{conv.name}_halved"
            found += 1
    return found


def break_graph(graph: Graph) -> int:
    """A wrong pass: the result does not even open."""
    for relu in graph.nodes("Relu"):
        graph.bypass(relu, keep=graph.insert("NoSuchOp", [relu.inputs[0]], domain="nowhere"))
        return 1
    return 0


def spoil_numbers(graph: Graph) -> int:
    """A wrong pass: roots of negative numbers."""
    for relu in graph.nodes("Relu"):
        graph.bypass(relu, keep=graph.insert("Sqrt", [relu.inputs[0]]).outputs[0])
        return 1
    return 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (halve_weights, "it changes the outputs ("),
        (break_graph, "ONNX Runtime refuses the model"),
        (spoil_numbers, "an output is missing, has another shape, or is NaN or infinite where it was not"),
    ],
)
def test_a_pass_that_changes_the_outputs_is_left_out_and_named_while_the_others_stay(wrong, told) -> None:
    before = focus_chained()
    functions = passes_of(Phase.FUSE) | {"wrong_pass": wrong}
    expected = Expectation.of(before, [inputs_of(before)], 1e-3)
    done = apply_checked(before, functions, expected)
    assert dict(done.changes) == {"fuse_focus": 1}
    assert ops(done.model) == ["Conv", "Relu"]
    assert [note.kind for note in done.notes] == [NoteKind.WARNING]
    assert f"pass wrong_pass was left out: {told}" in done.notes[0].detail
    assert_same(before, done.model)


def test_a_pass_that_never_rests_comes_to_an_end() -> None:
    def restless(graph: Graph) -> int:
        node = graph.nodes()[-1]
        return int(graph.bypass(node, keep=graph.insert("Relu", [node.inputs[0]], before=node)))

    before = activation("y = Relu(x)")
    done = apply_checked(before, {"restless": restless}, Expectation.of(before, [inputs_of(before)], 1e-3))
    assert ops(done.model) == ["Relu"]
    assert done.changes["restless"] == 20


def test_a_fault_of_onnxslim_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UnboundLocalError("cannot access local variable 'axes'")

    monkeypatch.setattr("onnxslim.slim", fail)
    done = simplify(model("one (float[2] x) => (float[2] y) { y = Relu(x) }"), {})
    (told,) = [note.detail for note in done.notes]
    assert told.startswith("OnnxSlim was left out: it fails on this model, by a fault of its own (")
    assert "UnboundLocalError" not in told


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals of this kind")
def test_a_rewrite_on_which_the_engine_aborts_is_left_out_with_what_it_said() -> None:
    fatal = branch_behind_a_transpose()
    before = model("before (float[1,4,4,4] x) => (float[1,4,4,4] y) { y = Relu(x) }")
    with guarded():
        expected = Expectation.of(before)
        reason = expected.why_not(fatal)
        assert expected.why_not(before) is None, "the engine is there for the next one"
    assert reason is not None
    assert reason.startswith("ONNX Runtime died of SIGABRT while opening it")
