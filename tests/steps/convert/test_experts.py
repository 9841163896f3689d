"""Experts of a mixture in blocks of integers, and what a calibration text tells of their rounding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_decoders import export_small
from small_mixtures import KINDS

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.facts.integers import read_integers
from edgeopt.graph.facts.mixtures import DOWN, UP
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.blocks import k_quant, to_nearest
from edgeopt.steps.convert.expert_inputs import expert_grams_of
from edgeopt.steps.convert.experts import expert_name, store_experts
from edgeopt.steps.convert.fitting.grams import rounding_with
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.inspection.tensors import read_tensors

HIDDEN, INNER, EXPERTS = 64, 96, 5


def layer(chosen: int = 2, *, is_normed: bool = True, inner: int = INNER) -> Model:
    """One mixture behind its router."""
    chance = np.random.default_rng(0)
    shapes = {"router": (HIDDEN, EXPERTS), "up": (EXPERTS, 2 * inner, HIDDEN), "down": (EXPERTS, HIDDEN, inner)}
    constants = [
        numpy_helper.from_array((chance.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    constants.append(numpy_helper.from_array(np.array([-1, EXPERTS]), "rows"))
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["scores"], name="router"),
        helper.make_node("Reshape", ["scores", "rows"], ["flat"], name="flat"),
        helper.make_node(
            "MoE", ["x", "flat", "up", "", "down"], ["y"], name="mixture", domain="com.microsoft", k=chosen,
            activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
            normalize_routing_weights=int(is_normed),
        ),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "tokens", HIDDEN]) for name in "xy"]
    graph = helper.make_graph(nodes, "layer", ends[:1], ends[1:], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return Model(helper.make_model(graph, opset_imports=imports, ir_version=10), "layer")


def answer(model: Model, tokens: int) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(threads=1))
    x = np.random.default_rng(1).standard_normal((1, tokens, HIDDEN)).astype(np.float32)
    try:
        return np.asarray(session.run({"x": x})["y"])
    finally:
        session.close()


def noise_db(expected: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10(np.square(expected).mean() / np.square(expected - found).mean()))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("rounding", [to_nearest, k_quant])
def test_experts_in_blocks_compute_what_their_numbers_say(bits, is_normed, rounding):
    model = layer(3, is_normed=is_normed)
    rounded = Graph.from_model(model)
    node = rounded.nodes("MoE", domain="com.microsoft")[0]
    for place in (UP, DOWN):
        real = [rounding("", matrix, bits, 32).real(matrix.shape[1]) for matrix in rounded.constant(node.inputs[place])]
        rounded.set_input(node, place, np.stack(real))
    made = make_weight_only(model, bits, 32, rounding=rounding)
    assert made.changes == {f"matrices of experts in {bits} bits": 2 * EXPERTS}, "the router stays in float"
    for tokens in (1, 9):
        expected = answer(rounded.to_model(), tokens)
        assert noise_db(expected, answer(made.model, tokens)) > 35  # activations are rounded to 8 bits
    assert noise_db(answer(model, 9), answer(made.model, 9)) > (12 if bits == 4 else 35)


def test_a_block_divides_the_rows_of_both_matrices():
    graph = Graph.from_model(layer(inner=48))
    assert store_experts(graph, 4, 128, to_nearest) == 2 * EXPERTS
    node = graph.to_model().proto.graph.node
    sizes = [a.i for one in node if one.op_type == "QMoE" for a in one.attribute if a.name == "block_size"]
    assert sizes == [16]
    assert noise_db(answer(layer(inner=48), 5), answer(graph.to_model(), 5)) > 12
    odd = Graph.from_model(layer(inner=40))
    assert store_experts(odd, 4, 32, to_nearest) == 0, "no kernel takes blocks that end inside a row"


def test_inspection_tells_of_experts_in_blocks():
    made = make_weight_only(layer(), 4).model
    assert read_integers(layer()).kind is None
    assert read_integers(made).by_kind == {"weight-only": 1}
    assert {tensor.dtype for tensor in read_tensors(made)} == {"uint4"}


def mixture_decoder(folder, kind="qwen3_moe"):
    from small_mixtures import write_by_transformers

    from edgeopt.export.export import export

    config, more = KINDS[kind]
    write_by_transformers(folder / "source", config, **more)
    return load_model(export(f"hf:{folder / 'source'}", out=folder / "made" / "model.onnx").file)


def windows(count=9, length=48):
    chance = np.random.default_rng(5)
    return [chance.integers(0, 300, length).tolist() for _ in range(count)]


def test_a_calibration_text_makes_the_products_of_experts_nearer(tmp_path):
    model = mixture_decoder(tmp_path)
    grams = expert_grams_of(model, windows(), threads=1)
    graph = Graph.from_model(model)
    node = graph.nodes("MoE", domain="com.microsoft")[0]
    better = 0
    for place in (UP, DOWN):
        for i, matrix in enumerate(graph.constant(node.inputs[place])):
            name = expert_name(node, place, i)
            gram = grams[name]
            losses = []
            for rounding in (to_nearest, rounding_with(grams)):
                error = (rounding(name, matrix, 4, 32).real(matrix.shape[1]) - matrix).astype(np.float64)
                losses.append(float(((error @ gram.parts[0]) * error).sum()))
            assert losses[1] <= losses[0]
            better += losses[1] < 0.9 * losses[0]
    assert better >= 8, "of twelve matrices"


def test_every_form_of_a_mixture_is_made_and_runs(tmp_path):
    model = mixture_decoder(tmp_path, "qwen2_moe")
    material = DecoderMaterial(model, find_device("cpu"), windows(4), 1, 0, 0.02, Silence())
    for form in FORMS:
        made = form.make(material)
        if not made.changes:
            continue
        ops = [node.op_type for node in made.model.proto.graph.node]
        assert ops.count("QMoE") == 2, form.name
        assert ops.count("MoE") == 0, form.name
        onnx.checker.check_model(made.model.proto)
        EXECUTOR.open(made.model.data, SessionOptions(threads=1)).close()


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_two_experts_a_token_have_exact_answers_where_blocks_have_and_three_have_none(kind, tmp_path):
    made = make_weight_only(mixture_decoder(tmp_path, kind), 8, 32).model
    (tmp_path / "made" / "model.onnx").write_bytes(made.data)
    with open_language_model(tmp_path / "made" / "model.onnx", 1)[0] as model:
        if kind == "qwen3_moe":
            assert model.sums is Sums.APART
            with pytest.raises(UnsupportedError, match="no answer of this model is exact"):
                model.generate([1, 2, 3], AnswerOptions(4, exact=True))
            with SharedModel(model, 2) as shared:
                assert "experts" in shared.turns_told
            return
        prompts = [windows(1, length)[0] for length in (9, 20, 13)]
        asked = AnswerOptions(12, ends=False, exact=True if model.sums is Sums.PAIRED else None)
        if model.sums is Sums.APART:
            pytest.skip("this processor sums the rows of an expert otherwise than one")
        alone = [[piece.token for piece in model.generate(prompt, asked)] for prompt in prompts]
        for prompt, expected in zip(prompts, alone, strict=True):
            model.forget()
            cut = AnswerOptions(12, ends=False, exact=asked.exact, chunk_tokens=3, guesses=3)
            assert [piece.token for piece in model.generate(prompt, cut)] == expected


def test_a_decoder_without_experts_has_no_sums_of_them(tmp_path):
    assert expert_grams_of(load_model(export_small(tmp_path)), windows(1), threads=1) == {}
