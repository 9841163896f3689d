"""A decoder that computes what only logits need for the last tokens alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_decoders import CONTEXT, NAMES, VOCABULARY, exported_decoder
from first_outputs import signal_db

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import LAST, Decoder, cache_parts, shares_cache, takes_last
from edgeopt.executors.onnxruntime.rows import SharedRows, takes_rows
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.decoder_fusion import answers_last, fuse_decoder
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

TINY = Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx"
PARTS = [9, 1, 12, 3]


def decoder_of(model: Model, capacity: int = 40) -> Decoder:
    session = EXECUTOR.open(model.source, SessionOptions(threads=1))
    parts = cache_parts(session.inputs, session.outputs)
    return Decoder(session.engine, parts, capacity, shares=shares_cache(session, parts))


def logits(model: Model, last: int, vocabulary: int) -> list[np.ndarray]:
    decoder, chance = decoder_of(model), np.random.default_rng(1)
    return [decoder.run(chance.integers(1, vocabulary, count).tolist(), last) for count in PARTS]


FUSED = [name for name in NAMES if name in ("optimum-gemma2", "torch-mistral-20-eager", "torch-qwen3-23-sdpa")]


@pytest.mark.parametrize("name", ["fp32", "w4", *FUSED])
def test_the_last_logits_are_those_of_a_whole_run(name):
    if name in NAMES:
        model, vocabulary = fuse_decoder(exported_decoder(name), CONTEXT, VOCABULARY).model, VOCABULARY
    else:
        model, vocabulary = load_model(TINY), 1000
        model = make_weight_only(model, 4, tables=True).model if name == "w4" else model
    made = keep_last_logits(model)
    assert made.changes["logits of the last tokens"] >= 8, "the last layer's neurons, its norms and the head"
    every = logits(model, 0, vocabulary)
    for last in (0, 1, 3):
        found = logits(made.model, last, vocabulary)
        assert [len(one) for one in found] == [min(last or count, count) for count in PARTS]
        for one, whole in zip(found, every, strict=True):
            np.testing.assert_allclose(one, whole[-len(one) :], atol=2e-4)
    if name != "w4":
        assert answers_last(model, CONTEXT, vocabulary)


def test_activations_that_are_rounded_stay_near():
    model = make_dynamic(load_model(TINY), find_device("cpu").rules_here).model
    every, found = logits(model, 0, 1000), logits(keep_last_logits(model).model, 1, 1000)
    assert all(signal_db(one, whole[-1:]) > 20 for one, whole in zip(found, every, strict=True))


def test_a_caller_who_does_not_know_the_input_gets_all_logits():
    made = keep_last_logits(load_model(TINY)).model
    assert LAST not in {one.name for one in made.inputs}
    assert keep_last_logits(made).changes == {}
    session = EXECUTOR.open(made.source, SessionOptions(threads=1))
    past = {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32) for one in session.inputs[2:]}
    found = session.run({"input_ids": np.arange(1, 8)[None], "attention_mask": np.ones((1, 7), np.int64), **past})
    assert found["logits"].shape[:2] == (1, 7)


def test_an_edit_of_the_graph_leaves_the_input_to_be_listed_again():
    made = keep_last_logits(load_model(TINY)).model
    edited = Graph.from_model(made).to_model()
    again = keep_last_logits(edited).model
    opened = [EXECUTOR.open(one.source, SessionOptions(threads=1)) for one in (made, edited, again)]
    assert [takes_last(one.engine) for one in opened] == [True, False, True]
    assert len(again.proto.graph.node) == len(made.proto.graph.node)


def test_rows_of_different_lengths_answer_as_before():
    model = load_model(TINY)
    found = []
    for one in (model, keep_last_logits(model).model):
        session = EXECUTOR.open(one.source, SessionOptions(threads=1))
        parts = cache_parts(session.inputs, session.outputs)
        assert takes_rows(session.engine, parts)
        rows = SharedRows(session.engine, parts, 2, 16)
        found.append([rows.run(0, [5, 6, 7])[-1], rows.run(1, [9])[-1], *rows.run_first([3, 4])])
    np.testing.assert_array_equal(found[0], found[1])


def test_what_is_asked_for_of_every_token_is_computed():
    proto = load_model(TINY).proto
    head = next(node for node in proto.graph.node if node.output[0] == "logits")
    asked = onnx.ModelProto()
    asked.CopyFrom(proto)
    asked.graph.output.append(onnx.ValueInfoProto(name=head.input[0]))
    assert keep_last_logits(Model(asked, "asked")).changes == {"logits of the last tokens": 1}, "the head alone"


def test_a_graph_whose_attention_is_many_ops_stays_as_it_is():
    model = exported_decoder(NAMES[0])
    assert keep_last_logits(model).changes == {}
    assert not answers_last(model, CONTEXT, VOCABULARY)
