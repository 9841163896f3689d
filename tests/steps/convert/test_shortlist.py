"""A head in 4 bits finds the likeliest tokens, whose logits are computed again in 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.runtime.decoding.sampling import Chooser, Sampling
from edgeopt.steps.convert.blocks import fitting_block
from edgeopt.steps.convert.kept_blocks import in_floats
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.shortlist import make_shortlist, tied_head
from edgeopt.steps.convert.weight_only import large_products, make_weight_only

TINY = Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx"
VOCABULARY = 1024
TOKENS = np.random.default_rng(3).integers(1, 1000, 40).tolist()


def logits(model: Model, last: int = 0) -> np.ndarray:
    session = EXECUTOR.open(model.source, SessionOptions(threads=1))
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True)
    rows = decoder.run(TOKENS, last)
    session.close()
    return rows


@pytest.fixture(scope="module")
def rounded() -> Model:
    """`tiny_lm` with its head alone in 4 bits, the other matrices and the table in 8."""
    model = load_model(TINY)
    inner = [str(node.name) for node in large_products(Graph.from_model(model))][:-1]
    return make_weight_only(model, 4, wide=inner, wide_block=64, tables=True).model


def test_the_likeliest_logits_are_those_of_the_table_and_the_others_stay(rounded):
    first, listed = logits(rounded), logits(make_shortlist(rounded, 64).model)
    from_table = logits(make_shortlist(rounded, VOCABULARY - 1).model)
    likeliest = np.argsort(-first, axis=-1)[:, :64]
    is_listed = np.zeros(first.shape, bool)
    np.put_along_axis(is_listed, likeliest, values=True, axis=-1)
    np.testing.assert_array_equal(listed[~is_listed], first[~is_listed])
    np.testing.assert_allclose(listed[is_listed], from_table[is_listed], rtol=1e-4, atol=1e-4)
    exact = logits(load_model(TINY))
    assert np.square(listed - exact)[is_listed].mean() < 0.1 * np.square(first - exact)[is_listed].mean()


def shares_of(rows: np.ndarray, temperature: float) -> np.ndarray:
    """Return the probabilities that a token is drawn with, as `Chooser` has them."""
    scaled = (rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)) / temperature
    shares = np.exp(scaled)
    return shares / shares.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def heads(rounded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of a head wholly in 8 bits, of the shortlist, and of 4 bits alone."""
    models = make_shortlist(rounded, VOCABULARY - 1).model, make_shortlist(rounded).model, rounded
    whole, listed, four = (logits(model) for model in models)
    return whole, listed, four


def test_the_likeliest_token_is_that_of_the_whole_head(heads):
    whole, listed, four = heads
    assert (listed.argmax(axis=-1) == whole.argmax(axis=-1)).all()
    assert (four.argmax(axis=-1) != whole.argmax(axis=-1)).any(), "else the list would change nothing"


@pytest.mark.parametrize(("temperature", "most"), [(0.5, 0.005), (1.0, 0.02), (2.0, 0.05)])
def test_what_is_drawn_is_nearer_to_the_whole_head_than_in_4_bits(temperature, most, heads):
    whole, listed, four = (shares_of(rows, temperature) for rows in heads)
    apart, of_four = (np.abs(other - whole).sum(axis=-1).mean() / 2 for other in (listed, four))
    assert apart < most
    assert apart < of_four / (2 if temperature <= 1 else 1.5)


@pytest.mark.parametrize("top_p", [0.5, 0.9])
def test_the_nucleus_is_that_of_the_whole_head(top_p, heads):
    whole, listed, _ = (shares_of(rows, 1.0) for rows in heads)
    for exact, near in zip(whole, listed, strict=True):
        order, other = np.argsort(-exact), np.argsort(-near)
        count = int(np.searchsorted(np.cumsum(exact[order]), top_p)) + 1
        kept = set(order[:count].tolist()) & set(other[: count + 2].tolist())
        assert exact[[*kept]].sum() >= 0.95 * exact[order[:count]].sum()


def test_biases_bans_and_forms_reach_tokens_that_are_not_on_the_list(heads):
    _, listed, four = heads
    chance = np.random.default_rng(0)
    for near, first in zip(listed, four, strict=True):
        rare = np.argsort(-first)[64:]
        token = int(chance.choice(rare))
        assert Chooser(Sampling(logit_bias={token: 100.0})).choose(near, ()) == token
        banned = dict.fromkeys(np.argsort(-near)[:5].tolist(), -100.0)
        assert Chooser(Sampling(logit_bias=banned)).choose(near, ()) not in banned
        allowed = chance.choice(rare, 5, replace=False)
        masked = np.full_like(near, -np.inf)
        masked[allowed] = near[allowed]
        for sampling in (Sampling(), Sampling(temperature=1.0, seed=int(token)), Sampling(temperature=5.0, top_p=0.5)):
            assert Chooser(sampling).choose(masked, ()) in allowed


def test_a_vocabulary_no_larger_than_the_list_keeps_its_head(rounded):
    assert make_shortlist(rounded, VOCABULARY).changes == {}


def test_a_prompt_computes_the_shortlist_of_its_last_token_alone(rounded):
    made = make_shortlist(rounded)
    assert made.changes == {"logits computed again": 64}
    kept = keep_last_logits(made.model)
    apart = keep_last_logits(rounded).changes["logits of the last tokens"]
    assert kept.changes["logits of the last tokens"] == apart + 6, "all six nodes of the shortlist"
    np.testing.assert_array_equal(logits(kept.model, last=1), logits(kept.model)[-1:])


def test_floats_made_of_it_have_one_head_again(rounded):
    made, before = in_floats(make_shortlist(rounded).model).model, in_floats(rounded).model
    assert not {"ScatterElements", "TopK"} & {node.op_type for node in made.proto.graph.node}
    assert made.size_bytes < 1.01 * before.size_bytes
    np.testing.assert_array_equal(logits(made), logits(before))


def test_a_head_that_is_no_table_or_not_in_blocks_of_4_bits_stays_as_it_is():
    model = load_model(TINY)
    assert tied_head(model) == VOCABULARY * 128
    assert make_shortlist(model).changes == {}
    proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
    head = next(node for node in proto.graph.node if node.output[0] == "logits")
    weight = next(constant for constant in proto.graph.initializer if constant.name == head.input[1])
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0, 0] += 1
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    assert tied_head(Model(proto, "untied")) == 0


@pytest.mark.parametrize(
    ("inputs", "longest", "bits", "block"),
    [
        (576, 128, 4, 64),
        (1536, 128, 4, 128),
        (1000, 128, 4, 128),
        (96, 64, 4, 32),
        (576, 32, 4, 32),
        (576, 128, 8, 128),
    ],
)
def test_blocks_are_shorter_where_the_last_would_be_filled_up_with_nothing(inputs, longest, bits, block):
    assert fitting_block(inputs, longest, bits) == block
