"""Decoders of other exporters get the ops of ONNX Runtime, and the same logits with a past in one shared memory."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from exported_decoders import CONTEXT, LAYERS, NAMES, VOCABULARY, exported_decoder

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts, shares_cache
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.passes import Phase, passes_of
from edgeopt.steps.convert.decoder_fusion import DecoderExpectation, fuse_decoder


def ops(model: Model) -> Counter[str]:
    return Counter(node.op_type for node in model.proto.graph.node)


def logits(model: Model, parts: list[int], capacity: int) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(threads=1))
    cache = cache_parts(session.inputs, session.outputs)
    decoder = Decoder(session.engine, cache, capacity, shares=shares_cache(session, cache))
    chance = np.random.default_rng(3)
    return np.concatenate([decoder.run(chance.integers(0, VOCABULARY, count).tolist()) for count in parts])


@cache
def fused_decoder(name: str) -> Outcome:
    return fuse_decoder(exported_decoder(name), CONTEXT, VOCABULARY)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_another_exporter_is_fused_and_shares_its_cache(name):
    given, fused = exported_decoder(name), fused_decoder(name)
    assert fused.notes == ()
    found = ops(fused.model)
    assert found["GroupQueryAttention"] == LAYERS
    assert found["SkipSimplifiedLayerNormalization"] == 2 * LAYERS
    assert not found["Softmax"] + found["Attention"] + found["RotaryEmbedding"] + found["Cos"] + found["Range"]
    products = 7 if "qwen3" in name else 5  # norms of heads stand between the products and the attention
    assert found["MatMul"] == LAYERS * products + 1
    assert len(fused.model.proto.graph.node) < 100 < len(given.proto.graph.node)
    assert [one.name for one in fused.model.inputs][:2] == ["input_ids", "attention_mask"]
    assert [one.name for one in fused.model.outputs] == [one.name for one in given.outputs]
    parts = [17, 1, 1, 5, 1]
    expected = logits(given, parts, 40)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(logits(fused.model, parts, 40), expected, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_fused_graph_holds_nothing_more_to_fuse(name):
    fused = fused_decoder(name)
    assert fuse_decoder(fused.model, CONTEXT, VOCABULARY).changes == {}


def test_a_window_is_read_from_the_mask():
    for name in NAMES:
        fused = fused_decoder(name).model
        windows = {a.i for node in fused.proto.graph.node for a in node.attribute if a.name == "local_window_size"}
        assert windows == ({6} if "mistral" in name else {-1, 6} if "gemma2" in name else {-1}), name


def test_a_pass_that_changes_logits_is_left_out_and_named(monkeypatch):
    known = passes_of(Phase.DECODER)

    def spoil(graph: Graph) -> int:
        for node in graph.nodes("SkipSimplifiedLayerNormalization", domain="com.microsoft"):
            scale = graph.constant(node.inputs[2])
            if node.inputs[2].name != "spoilt":
                graph.set_input(node, 2, graph.add_initializer("spoilt", scale * np.float32(1.5)))
                return 1
        return 0

    def offered(phase: Phase):
        return {**known, "spoil": spoil} if phase is Phase.DECODER else passes_of(phase)

    monkeypatch.setattr("edgeopt.steps.convert.decoder_fusion.passes_of", offered)
    given = exported_decoder("optimum-llama")
    fused = fuse_decoder(given, CONTEXT, VOCABULARY)
    assert [str(note).split(" was")[0].rsplit(" ", 1)[-1] for note in fused.notes] == ["spoil"]
    assert ops(fused.model)["GroupQueryAttention"] == LAYERS
    assert DecoderExpectation(given, CONTEXT, VOCABULARY).why_not(fused.model) is None


def test_scores_that_are_moved_and_not_only_hidden_stay_products():
    """As the slopes of ALiBi move them: GroupQueryAttention knows no such mask."""
    graph = Graph.from_model(exported_decoder("torch-mistral-20-eager"))
    for softmax in graph.nodes("Softmax"):
        add = graph.producer(softmax.inputs[0], "Add")
        place = next(i for i, one in enumerate(add.inputs) if graph.producer(one, "Mul") is None)
        half = graph.add_initializer("half", np.array(0.5, np.float32))
        graph.set_input(add, place, graph.insert("Add", [add.inputs[place], half], before=add).outputs[0])
    fused = fuse_decoder(graph.to_model(), CONTEXT, VOCABULARY)
    assert ops(fused.model)["GroupQueryAttention"] == 0
    assert ops(fused.model)["RotaryEmbedding"] == 2 * LAYERS
    assert ops(fused.model)["SkipSimplifiedLayerNormalization"] == 2 * LAYERS
    assert fused.notes == ()
