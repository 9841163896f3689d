import numpy as np
import onnx
import pytest
from fixture_models import activation, assert_same, if_body, indices, model, numbers, ops, scalar, shape_chain
from onnx import helper

from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import TensorSpec


def chain() -> Model:
    return activation("a = Mul(x, p) b = Add(a, p) c = Constant <value = float {2}> () y = Div(b, c)", p=scalar(3))


def test_a_model_goes_through_a_graph_unchanged_with_its_metadata() -> None:
    before = if_body()
    before.proto.metadata_props.add(key="stride", value="32")
    before.proto.producer_name = "exporter"
    fingerprint = before.fingerprint
    after = Graph.from_model(before).to_model("renamed")
    assert (after.name, after.metadata, after.proto.producer_name) == ("renamed", {"stride": "32"}, "exporter")
    assert (after.opset, ops(after)) == (before.opset, ops(before))
    assert Model(before.proto, "").fingerprint == fingerprint
    assert_same(before, after)


def test_a_formula_is_shown_as_a_free_size_and_a_name_as_itself() -> None:
    """PyTorch writes the number of cells so, in 200 letters and more."""
    cells = "(floor(height/2 - 1/2) + 1)*(floor(width/2 - 1/2) + 1)"
    assert str(TensorSpec("y", "float32", ("batch", 22, cells, None, "sequence length"))) == (
        "y float32 batchx22x?x?xsequence length"
    )


def test_constants_listed_as_inputs_are_only_constants_afterwards() -> None:
    before = activation("y = Mul(x, p)", p=scalar(3), opset=9)
    before.proto.ir_version = 3
    before.proto.graph.input.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, []))
    after = Graph.from_model(before).to_model()
    assert [one.name for one in after.proto.graph.input] == ["x"]
    assert after.proto.ir_version == 4
    require_valid(after.proto, "after")


def test_nodes_are_found_by_op_and_domain_in_order_as_a_snapshot() -> None:
    before = model(
        """mixed (float[4] x) => (float[4] y) {
            a = com.microsoft.Gelu(x)
            b = Gelu(a)
            y = Add(b, a)
        }""",
        opset=20,
    )
    graph = Graph.from_model(before)
    assert [node.op_type for node in graph.nodes()] == ["Gelu", "Gelu", "Add"]
    assert [node.op_type for node in graph.nodes("Add", "Gelu")] == ["Gelu", "Add"]
    assert [node.outputs[0].name for node in graph.nodes("Gelu", domain="com.microsoft")] == ["a"]
    found = graph.nodes("Add")
    graph.insert("Neg", [found[0].outputs[0]])
    assert len(found) == 1


def test_every_node_has_a_name_of_its_own() -> None:
    graph = Graph.from_model(chain())
    assert [node.name for node in graph.nodes()] == ["Mul", "Add", "Constant", "Div"]


def test_producers_and_consumers_are_told_with_branches_and_outputs_in_mind() -> None:
    graph = Graph.from_model(if_body())
    a, b, y = graph.value("a"), graph.value("b"), graph.value("y")
    assert (a, b, y) != (None, None, None)
    assert [node.op_type for node in graph.consumers(a)] == ["Relu", "Mul"]
    assert graph.sole_producer(a, "Identity") is None, "a branch reads it too"
    assert graph.sole_consumer(b) is None, "its one reader sits inside a branch"
    assert graph.producer(a, "Identity") is not None
    assert graph.producer(a, "Relu") is None
    assert graph.sole_producer(y, "If") is None, "an output is never taken"
    assert graph.value("nowhere") is None


def test_constants_come_from_initializers_and_constant_nodes() -> None:
    graph = Graph.from_model(chain())
    mul, _, constant, div = graph.nodes()
    found = graph.constants([mul.inputs[1], constant.outputs[0], div.inputs[1]])
    assert found is not None
    assert [float(one) for one in found] == [3, 2, 2]
    assert graph.constants([mul.inputs[0], mul.inputs[1]]) is None
    assert graph.constant(None) is None


def test_an_input_gets_a_constant_of_its_own_and_other_readers_keep_theirs() -> None:
    before = chain()
    graph = Graph.from_model(before)
    mul, add, *_ = graph.nodes()
    graph.set_input(mul, 1, scalar(5))
    after = graph.to_model()
    assert (float(graph.constant(mul.inputs[1])), float(graph.constant(add.inputs[1]))) == (5, 3)
    assert (mul.inputs[1].name, add.inputs[1].name) == ("p_1", "p")
    require_valid(after.proto, "after")


def test_an_omitted_input_can_be_set_and_another_be_left_out() -> None:
    before = model(
        "conv (float[1,1,3,3] x) => (float[1,1,3,3] y) { y = Conv(x, w) }", w=np.ones((1, 1, 1, 1), np.float32)
    )
    graph = Graph.from_model(before)
    graph.set_input(graph.nodes()[0], 2, np.ones(1, np.float32))
    graph.set_input(graph.nodes()[0], 4, None)
    graph.remove_unused()
    assert [len(node.input) for node in graph.to_model().proto.graph.node] == [3]


def test_an_inserted_node_brings_its_domain_and_finds_its_place() -> None:
    before = activation("a = Relu(x) y = Neg(a)")
    graph = Graph.from_model(before)
    relu, neg = graph.nodes()
    first = graph.insert("Abs", [relu.outputs[0]], after=relu, outputs=["a"], name="Relu")
    second = graph.insert("FusedX", [first.outputs[0]], {"alpha": 0.5, "axes": [1, 2]}, domain="vendor", outputs=2)
    graph.set_input(neg, 0, second.outputs[1])
    proto = graph.to_model().proto
    assert [node.op_type for node in proto.graph.node] == ["Relu", "Abs", "FusedX", "Neg"], "sorted"
    assert len({node.name for node in proto.graph.node}) == 4
    assert (first.outputs[0].name, first.name) == ("a_1", "Relu_1")
    assert {one.domain: one.version for one in proto.opset_import}["vendor"] == 1
    assert (attribute(second, "alpha", 0.0), attribute(second, "axes", ()), attribute(second, "beta", 7)) == (
        0.5,
        (1, 2),
        7,
    )


def test_an_attribute_can_be_written_and_removed() -> None:
    graph = Graph.from_model(activation("y = LeakyRelu <alpha = 0.5> (x)"))
    node = graph.nodes()[0]
    graph.set_attribute(node, "alpha", 0.25)
    assert attribute(node, "alpha", 0.0) == 0.25
    graph.set_attribute(node, "alpha", None)
    assert attribute(node, "alpha", 0.01) == 0.01


def test_a_bypassed_output_hands_its_name_to_what_stays() -> None:
    before = activation("a = Relu(x) b = Abs(a) y = Identity(b)")
    graph = Graph.from_model(before)
    assert graph.bypass(graph.nodes()[-1])
    assert_same(before, graph.to_model())


@pytest.mark.parametrize(
    "before",
    [
        activation("y = Identity(x)"),
        activation("y = Identity(p)", p=numbers(2, 8)),
        model("two (float[3] x) => (float[3] a, float[3] y) { a = Relu(x) y = Identity(a) }"),
    ],
    ids=["of an input", "of a constant", "of another output"],
)
def test_an_output_is_not_bypassed_where_its_name_would_be_lost(before: Model) -> None:
    graph = Graph.from_model(before)
    assert not graph.bypass(graph.nodes("Identity")[0])
    assert_same(before, graph.to_model())


def test_what_replaces_a_value_takes_its_name_and_shape_where_that_is_asked() -> None:
    graph = Graph.from_model(activation("a = Relu(x) y = Neg(a)"))
    graph.infer_shapes()
    relu, neg = graph.nodes()
    shape = graph.shape(relu.outputs[0])
    made = graph.insert("Abs", [relu.inputs[0]], before=neg).outputs[0]
    assert graph.replace(relu.outputs[0], made, keep_name=True)
    assert (neg.inputs[0], made.name, graph.shape(made)) == (made, "a", shape)
    graph.remove_unused()
    assert [node.op_type for node in graph.to_model().proto.graph.node] == ["Abs", "Neg"]


def test_a_copy_is_edited_apart_and_shares_its_constants() -> None:
    before = model("conv (float[1,1,3,3] x) => (float[1,1,3,3] y) { y = Conv(x, w) }", w=np.ones((1, 1, 1, 1)))
    graph = Graph.from_model(before)
    copy = graph.copy()
    assert copy.to_model().proto == graph.to_model().proto
    assert copy.initializers[0].const_value is graph.initializers[0].const_value
    copy.replace(copy.outputs[0], copy.insert("Relu", [copy.outputs[0]]).outputs[0])
    copy.set_input(copy.nodes("Conv")[0], 1, np.zeros((1, 1, 1, 1)))
    assert [node.op_type for node in graph.nodes()] == ["Conv"]
    assert graph.constants([graph.nodes()[0].inputs[1]])[0].item() == 1


def test_a_node_whose_second_output_is_read_is_not_bypassed() -> None:
    before = model("drop (float[4] x) => (float[4] y, bool[4] n) { a, m = Dropout(x) y = Relu(a) n = Not(m) }")
    graph = Graph.from_model(before)
    assert not graph.bypass(graph.nodes("Dropout")[0])


def test_a_node_that_is_read_cannot_be_removed() -> None:
    graph = Graph.from_model(chain())
    with pytest.raises(ValueError, match="used"):
        graph.remove(graph.nodes()[0])


def test_unused_nodes_and_constants_are_counted_as_they_go() -> None:
    graph = Graph.from_model(activation("a = Exp(x) b = Mul(a, p) y = Relu(x)", p=scalar(2)))
    assert graph.remove_unused() == 3
    assert graph.remove_unused() == 0


def test_shapes_follow_from_a_new_input_shape_and_from_computed_numbers() -> None:
    before = shape_chain()
    before.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    graph = Graph.from_model(before)
    assert graph.shape(graph.inputs[0]) is None
    assert graph.rank(graph.inputs[0]) == 4
    graph.set_shape(graph.inputs[0], (1, 2, 4, 6))
    graph.infer_shapes()
    assert graph.shape(graph.value("sizes")) == (4,)
    assert graph.shape(graph.value("y")) == (1, 2, 8, 12)
    assert graph.dtype(graph.value("sizes")) == np.int64


def test_shapes_that_onnx_cannot_derive_stay_unknown_without_an_error() -> None:
    before = model("foreign (float[4] x) => (float[4] y) { a = com.microsoft.QuickGelu(x) y = Relu(a) }")
    graph = Graph.from_model(before)
    graph.infer_shapes()
    assert graph.shape(graph.value("a")) is None
    assert graph.rank(graph.value("a")) is None
    assert graph.shape(None) is None


def test_a_two_input_node_is_split_into_variable_and_constant() -> None:
    graph = Graph.from_model(activation("a = Sub(p, x) b = Add(x, a) y = Mul(b, q)", p=scalar(3), q=numbers(2, 1)))
    sub, add, mul = graph.nodes()
    value, constant, place = graph.split(sub)
    assert (value.name, float(constant), place) == ("x", 3, 0)
    assert graph.split(add) is None
    assert graph.split_scalar(sub)[1] == 3
    assert graph.split_scalar(mul) is None


def test_values_of_whole_numbers_keep_their_type_as_constants() -> None:
    graph = Graph.from_model(activation("y = Reshape(x, s)", s=indices(2, 8)))
    stored = graph.add_initializer("s", np.array([[1, 2]], np.int8))
    assert (stored.name, graph.dtype(stored), graph.shape(stored)) == ("s_1", np.int8, (1, 2))
