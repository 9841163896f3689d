"""Decoders whose matrices came in blocks: what their products read, their floats, and logits of the last tokens."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_decoders import VOCABULARY, random_weights, write_decoder

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.packed import PackedMatrix, grouped, side_by_side, with_low
from edgeopt.graph.model import Model, save_model
from edgeopt.optimization.generation.forms.kinds import precision_of
from edgeopt.optimization.generation.forms.prompts_elsewhere import FORMS_ELSEWHERE, WHOLE
from edgeopt.steps.convert.blocks import Blocks
from edgeopt.steps.convert.decoder_fusion import answers_last
from edgeopt.steps.convert.kept_blocks import bits_of_blocks, bytes_in_floats, in_floats, round_inputs
from edgeopt.steps.convert.last_logits import keep_last_logits


class BlockWeights:
    """Random weights in blocks with lows, their inputs in another order."""

    def __init__(self, *, kind: str = "llama") -> None:
        self._plain = random_weights(kind=kind, is_tied=True)

    def __contains__(self, name: str) -> bool:
        return name in self._plain

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        packed = self.packed(name, shape)
        return self._plain[name] if packed is None else packed.real()

    has_blocks = True

    def packed(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        if len(shape) < 2:
            return None
        chance = np.random.default_rng(len(name))
        integers = chance.integers(0, 16, (shape[0], shape[1] // 16, 16), np.uint8)
        scale = chance.uniform(1, 2, integers.shape[:2]).astype(np.float16).astype(np.float32) / 64
        low = -chance.uniform(0, 16, integers.shape[:2]).astype(np.float16).astype(np.float32) / 64
        made = with_low(integers, scale, low, 4, shape[1])
        if "embed" in name:
            return made
        return PackedMatrix(made.blocks, shape[1], made.low, chance.permutation(shape[1]))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = read_configuration(write_decoder(tmp_path_factory.mktemp("source"), is_tied=True))
    return write_llama(config, BlockWeights(), "small")


def logits(model: Model, tokens: list[int]) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions())
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True)
    made = decoder.run(tokens)
    session.close()
    return made


def test_floats_are_what_the_blocks_stand_for(decoder):
    floats = in_floats(decoder)
    assert floats.changes == {"matrices in floats": 16}
    ops = {node.op_type for node in floats.model.proto.graph.node}
    assert not {"MatMulNBits", "GatherBlockQuantized"} & ops
    constants = {constant.name: numpy_helper.to_array(constant) for constant in floats.model.proto.graph.initializer}
    weights = BlockWeights()
    expected = weights.packed("model.layers.1.mlp.down_proj.weight", (64, 80))
    ours = constants["layer.1.down.weight_floats"]
    np.testing.assert_array_equal(ours.T[:, np.argsort(expected.order)], expected.real())
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 12).tolist()
    np.testing.assert_allclose(logits(floats.model, tokens), logits(decoder, tokens), atol=2e-4)


def test_lows_and_orders_leave_each_token_alone_so_that_the_last_ones_suffice(decoder):
    assert keep_last_logits(decoder).changes["logits of the last tokens"] > 20
    assert answers_last(decoder, 512, VOCABULARY)


def test_bits_and_bytes_are_those_of_the_products(decoder):
    assert (bits_of_blocks(decoder), precision_of(decoder)) == (4, "w4")
    floats = in_floats(decoder).model
    assert 0.9 * floats.size_bytes < bytes_in_floats(decoder) < 2 * floats.size_bytes
    assert bytes_in_floats(floats) == 0
    assert (bits_of_blocks(floats), precision_of(floats), in_floats(floats).changes) == (0, "fp32", {})
    assert round_inputs(decoder, of_bits=(8,)).changes == {}
    assert round_inputs(round_inputs(decoder).model).changes == {}


def product(zero: np.ndarray, bias: np.ndarray) -> Model:
    """Return a product as other tools write it: without an accuracy level, with a bias."""
    chance = np.random.default_rng(0)
    constants = {
        "data": chance.integers(0, 256, (6, 3, 8), np.uint8), "scale": chance.uniform(1, 2, (6, 3)).astype(np.float32),
        "zero": zero, "bias": bias,
    }  # fmt: skip
    node = helper.make_node(
        "MatMulNBits", ["x", "data", "scale", "zero", "", "bias"], ["y"], domain="com.microsoft",
        K=40, N=6, bits=4, block_size=16,
    )  # fmt: skip
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 40), ("y", 6))
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", sides[:1], sides[1:], stored)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return Model(helper.make_model(graph, opset_imports=imports, ir_version=9), "product")


def test_products_of_other_tools_are_read_with_their_bias():
    zero = np.random.default_rng(1).integers(0, 256, (6, 2), np.uint8)
    model = product(zero, np.arange(6, dtype=np.float32))
    x = {"x": np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32)}
    both = [EXECUTOR.open(made.data, SessionOptions()).run(x)["y"] for made in (model, in_floats(model).model)]
    np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-3)
    assert round_inputs(model).changes == {"products of rounded inputs": 1}


def test_zeros_in_floats_stay_as_they_are():
    model = product(np.full((6, 3), 7.5, np.float32), np.zeros(6, np.float32))
    assert in_floats(model).changes == {}


@pytest.mark.parametrize(("group", "block"), [(32, 32), (48, 16), (512, 256), (40, 128), (24, 0), (1000, 128)])
def test_groups_are_cut_in_blocks_that_kernels_take(group, block):
    inputs = 96 if group != 40 else 40
    inputs = 1000 if group > 500 else inputs
    chance, groups = np.random.default_rng(0), -(-inputs // group)
    integers, zero = (chance.integers(0, 16, (4, count), np.uint8) for count in (inputs, groups))
    scale = chance.uniform(1, 2, (4, groups)).astype(np.float32)
    made = grouped(integers, scale, zero, 4, group)
    if not block:
        assert made is None
        return
    of = np.arange(inputs) // group
    expected = (integers.astype(np.float32) - zero[:, of]) * scale[:, of]
    assert made.blocks.block == block
    np.testing.assert_array_equal(made.real(), expected)


def test_a_low_is_split_into_a_whole_zero_and_a_rest_without_rounding():
    chance = np.random.default_rng(0)
    integers = chance.integers(0, 16, (64, 8, 32), np.uint8)
    scale = chance.uniform(0.01, 2, (64, 8)).astype(np.float16).astype(np.float32) * 63
    low = chance.uniform(-2000, 500, (64, 8)).astype(np.float16).astype(np.float32)
    scale[0, 0], low[1, 1], scale[2, 2], low[2, 2] = 0, 0, 1e-7, -60000
    made = with_low(integers, scale, low, 4, 256)
    wide = (integers - made.blocks.zero[..., None].astype(np.float64)) * scale[..., None] + made.low[..., None]
    np.testing.assert_array_equal(wide, integers * scale[..., None].astype(np.float64) + low[..., None])
    assert (made.blocks.zero[low < -scale] > 0).mean() > 0.95
    assert with_low(integers, scale, np.zeros_like(low), 4, 256).low is None


def test_matrices_of_different_kinds_do_not_lie_side_by_side():
    blocks = Blocks(np.zeros((4, 2, 16), np.uint8), np.ones((4, 2), np.float32), None, 4)
    plain, ordered = PackedMatrix(blocks, 32), PackedMatrix(blocks, 32, None, np.arange(32)[::-1])
    assert side_by_side([plain, plain]).outputs == 8
    assert side_by_side([ordered, ordered]).order is ordered.order
    assert side_by_side([plain, ordered]) is None
    assert side_by_side([plain, None]) is None
    assert side_by_side([]) is None


@pytest.mark.parametrize(("block", "more"), [(0, ""), (32, "bias")])
def test_experts_that_floats_cannot_hold_stay_in_their_blocks(block, more):
    """A scale a row, as onnxruntime's own tools write them, and biases, which a mixture in floats would lack."""
    chance, experts, width = np.random.default_rng(0), 4, 64
    scales = (experts, 2 * width, width // block) if block else (experts, 2 * width)
    stored = {
        "w1": chance.integers(0, 255, (experts, 2 * width, width // 2), dtype=np.uint8),
        "s1": np.full(scales, 0.01, np.float32),
        "b1": chance.normal(size=(experts, 2 * width)).astype(np.float32),
        "w2": chance.integers(0, 255, (experts, width, width // 2), dtype=np.uint8),
        "s2": np.full((experts, width, *scales[2:]), 0.01, np.float32),
    }
    own = {"k": 2, "expert_weight_bits": 4, "activation_type": "swiglu", "swiglu_fusion": 1}
    inputs = ["x", "scores", "w1", "s1", "b1" if more else "", "w2", "s2"]
    own |= {"block_size": block} if block else {}
    node = helper.make_node("QMoE", inputs, ["y"], "mixture", domain="com.microsoft", **own)
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, size])
        for name, size in (("x", width), ("scores", experts), ("y", width))
    ]
    graph = helper.make_graph(
        [node],
        "mixture",
        tensors[:2],
        tensors[2:],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = Model(helper.make_model(graph, opset_imports=opsets), "mixture")
    assert bits_of_blocks(model) == 4
    assert bytes_in_floats(model) > 4 * experts * 3 * width * width
    assert in_floats(model).model is model


def test_blocks_whose_lows_are_floats_are_no_form_in_bfloat16(decoder, tmp_path):
    save_model(decoder, tmp_path / "model.onnx")
    start = SimpleNamespace(file=tmp_path / "model.onnx")
    place = SimpleNamespace(file_of=lambda name: tmp_path / name / "model.onnx", start=start)
    (form,) = (form for form in FORMS_ELSEWHERE if form.name == WHOLE)
    assert any(node.op_type == "MatMul" for node in decoder.proto.graph.node), "the sums times the lows"
    assert form.make_prompts(place) is None
    assert form.make_whole(place) is None
