"""Matrices of a decoder that are rounded one after the other, on what the rounded ones before them make of a text."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from first_outputs import answers
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS, cache_parts
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import load_model
from edgeopt.steps.convert.blocks import k_quant, to_nearest
from edgeopt.steps.convert.fitting import layer_by_layer
from edgeopt.steps.convert.fitting.fitted_blocks import Curvature, fit_blocks
from edgeopt.steps.convert.fitting.layer_by_layer import round_layer_by_layer
from edgeopt.steps.convert.fitting.pieces import TwoRuns
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.convert.weight_only import columns_of, large_products, make_weight_only
from edgeopt.system.processes import time_limit
from edgeopt.system.processes.time_limit import OutOfTime, limited

SHIPPED = load_model(Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx")
CACHE = cache_parts(SHIPPED.inputs, SHIPPED.outputs)
KNOWN = SHIPPED.inputs


def tokens(seed: int, windows: int) -> list[list[int]]:
    """Return texts that the model writes itself, in one batch: what it knows, and no file."""
    chance = np.random.default_rng(seed)
    rows = chance.integers(1, 1024, (windows, 1))
    for _ in range(47):
        window = {IDS: rows, "attention_mask": np.ones_like(rows)}
        past = {
            name: np.zeros((windows, *value.shape[1:]), value.dtype)
            for name, value in feeds_of([0], CACHE, KNOWN).items()
            if name not in window
        }
        logits = answers(SHIPPED, [{**window, **past}])[0][:, -1].astype(np.float64)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True)).cumsum(axis=-1)
        drawn = (shares < chance.uniform(0, shares[:, -1])[:, None]).sum(axis=-1)
        rows = np.concatenate([rows, drawn[:, None]], axis=1)
    return rows.tolist()


@pytest.fixture(scope="module")
def seen() -> list[list[int]]:
    return tokens(0, 16)


@pytest.fixture(scope="module")
def unseen() -> list[list[int]]:
    return tokens(1, 16)


def divergence(model, windows) -> float:
    """Return how far the next token's probabilities are from the float model's, in nats a token."""
    each = []
    for window in windows:
        feeds = feeds_of(window, CACHE, KNOWN)
        expected, array = (answers(other, [feeds])[0].astype(np.float64) for other in (SHIPPED, model))
        both = [rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)) for rows in (expected, array)]
        each.append((np.exp(both[0]) * (both[0] - both[1])).sum(axis=-1).mean())
    return float(np.mean(each))


@pytest.mark.parametrize("block", [32, 128])
def test_less_is_lost_on_a_text_that_it_did_not_see_than_by_each_weight_alone(seen, unseen, block):
    blocks = round_layer_by_layer(SHIPPED, seen, lambda _: (4, block), threads=1)
    assert set(blocks) == {node.name for node in large_products(Graph.from_model(SHIPPED))}
    fitted = make_weight_only(SHIPPED, 4, block, rounding=lambda node, *_: blocks[node]).model
    alone = make_weight_only(SHIPPED, 4, block, rounding=k_quant).model
    assert divergence(fitted, unseen) < 0.8 * divergence(alone, unseen)
    assert fitted.size_bytes == alone.size_bytes


def test_two_runs_give_the_same_bytes_and_matrices_in_eight_bits_are_fitted_too(seen):
    node = large_products(Graph.from_model(SHIPPED))[0].name

    def form(name: str) -> tuple[int, int]:
        return (8, 64) if name == node else (4, 32)

    first, again = (round_layer_by_layer(SHIPPED, seen[:4], form, threads=1) for _ in range(2))
    assert first[node].bits == 8
    assert first[node].block == 64
    for name, blocks in first.items():
        assert blocks.integers.tobytes() == again[name].integers.tobytes()
        assert blocks.scale.tobytes() == again[name].scale.tobytes()


@pytest.mark.parametrize(("limit_s", "is_whole"), [(200.0, True), (60.0, False)])
def test_a_fit_that_does_not_end_in_time_is_left_at_its_pace(limit_s, is_whole, seen, monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    for module in (layer_by_layer, time_limit):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now_s)
    begun = list[int]()

    def tell(done: int, of: int) -> None:
        begun.append(done)
        clock.now_s += 30.0 if done == 0 else 90.0 / of  # the first opens engines as well

    with limited(limit_s), nullcontext() if is_whole else pytest.raises(OutOfTime):
        round_layer_by_layer(SHIPPED, seen[:2], lambda _: (4, 32), threads=1, tell=tell)
    matrices = len(dict.fromkeys(node.inputs[0] for node in large_products(Graph.from_model(SHIPPED))))
    assert begun[-1] == matrices if is_whole else 0 < begun[-1] <= matrices / 4


def test_nothing_is_corrected_where_nothing_was_lost(seen):
    """The first matrix reads what the float model reads."""
    graph = Graph.from_model(SHIPPED)
    node = large_products(graph)[0]
    columns = columns_of(graph, node)
    runs = TwoRuns(graph, [feeds_of(window, CACHE, KNOWN) for window in seen], [node.inputs[0]], 1)
    runs.go_to(node.inputs[0], {})
    rows = np.concatenate([held[node.inputs[0].name][0] for held in runs.own])
    alone = fit_blocks(columns, Curvature.of(rows.T @ rows, 32), 4, 32)
    made = round_layer_by_layer(SHIPPED, seen, lambda _: (4, 32), threads=1)[node.name]
    assert np.abs(alone.real(128) - made.real(128)).max() < 1e-4 + 0.02 * np.abs(columns).max()


def test_pieces_give_what_the_whole_model_gives(seen):
    graph = Graph.from_model(SHIPPED)
    ends = [node.inputs[0] for node in large_products(graph)] + [graph.value(LOGITS)]
    feeds = [feeds_of(window, CACHE, KNOWN) for window in seen[:2]]
    runs = TwoRuns(graph, feeds, ends, 1)
    for end in dict.fromkeys(ends):
        runs.go_to(end, {})
        if end.name != LOGITS:
            runs.forget(end)
    for text, own, other in zip(feeds, runs.own, runs.other, strict=True):
        expected = answers(SHIPPED, [text])[0]
        np.testing.assert_allclose(own[LOGITS], expected, atol=2e-4)
        np.testing.assert_array_equal(own[LOGITS], other[LOGITS])
        assert set(own) == {LOGITS}, "what no later node reads is let go"


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.sampled_from([(64, 32), (100, 32), (96, 16), (70, 64)]))
def test_fitted_blocks_change_products_less_than_weights_rounded_alone(seed, sizes):
    inputs, block = sizes
    chance = np.random.default_rng(seed)
    columns = chance.standard_t(4, (5, inputs)).astype(np.float32)
    rows = (chance.standard_normal((300, 10)) @ chance.standard_normal((10, inputs))).astype(np.float32)
    rows[:, 3] = 0  # an input that is never seen
    curvature = Curvature.of(rows.T @ rows, block, damping=0.01)
    made = fit_blocks(columns, curvature, 4, block)
    for other in (to_nearest, k_quant):
        alone = other("", columns, 4, block)
        errors = [np.square(rows @ (each.real(inputs) - columns).T).sum() for each in (made, alone)]
        assert errors[0] < 0.7 * errors[1]
    assert np.isfinite(made.scale).all()
    np.testing.assert_allclose(
        curvature.matrix @ curvature.solved(columns.T.copy()), columns.T, atol=2e-2 * np.abs(columns).max()
    )


def test_a_matrix_of_zeros_stays_zero():
    curvature = Curvature.of(np.eye(64, dtype=np.float32), 32)
    made = fit_blocks(np.zeros((3, 64), np.float32), curvature, 4, 32)
    assert np.isfinite(made.scale).all()
    assert (made.real(64) == 0).all()


def test_long_columns_in_parts_make_up_for_those_before_them(monkeypatch):
    inputs = 1024
    chance = np.random.default_rng(0)
    columns = chance.standard_normal((4, inputs)).astype(np.float32)
    rows = (chance.standard_normal((200, 30)) @ chance.standard_normal((30, inputs))).astype(np.float32)
    held = [{"x": rows}]
    losses = []
    for most in (inputs, 256):
        monkeypatch.setattr(layer_by_layer, "MOST_TOGETHER", most)
        made = layer_by_layer._rounded(columns, layer_by_layer._Rows(held, held, Value(name="x")), None, 4, 32)
        losses.append(np.square(rows @ (made.real(inputs) - columns).T).sum())
    nearest = np.square(rows @ (to_nearest("", columns, 4, 32).real(inputs) - columns).T).sum()
    assert losses[0] < losses[1] < 0.3 * nearest
