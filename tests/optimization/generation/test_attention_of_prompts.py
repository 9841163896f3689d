"""How attention of prompts is computed is found out on one of the model, once, and never at the price of memory."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation.forms import attention
from edgeopt.optimization.generation.forms.attention import AttentionTrials, alone_in, piece_over_tiles
from edgeopt.recipes.recipe import read_recipe

TINY = Path(__file__).parents[3] / "models" / "tiny_lm"
FASTER = Ratio(2.0, 1.9, 2.1, Change.FASTER)
RECIPE = read_recipe(TINY / "recipe.toml")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TINY / "model.onnx")


def edited(model: Model, change) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for node in proto.graph.node:
        if node.op_type == "GroupQueryAttention":
            change(node)
    return Model(proto, "edited")


def test_one_attention_runs_alone_as_it_does_in_the_model(model):
    alone = alone_in(model)
    assert (alone.heads, alone.past[:2]) == (4, (2, 32))
    session = EXECUTOR.open(alone.model.SerializeToString(), SessionOptions(threads=1))
    made = session.run(alone.feed(5, 3))
    session.close()
    assert made["made"].shape == (1, 5, 128)
    assert made["present_key"].shape == (1, 2, 8, 32)


@pytest.mark.parametrize("tokens", [1, 5, 600])
def test_both_ways_are_timed_in_turns(model, tokens):
    found = piece_over_tiles(alone_in(model), tokens, 256, 1)
    assert 0 < found.low <= found.speedup <= found.high < math.inf


def test_what_reads_more_than_constants_and_what_is_no_such_op_is_not_tried(model):
    assert alone_in(edited(model, lambda node: node.input.extend(["", "", "a_bias"][len(node.input) - 9 :]))) is None
    assert alone_in(edited(model, lambda node: setattr(node, "op_type", "Other"))) is None


def test_forms_with_the_same_attention_are_tried_once(model, monkeypatch):
    tried = []
    monkeypatch.setattr(attention, "piece_over_tiles", lambda *given: tried.append(given[1:]) or FASTER)
    trials, told = AttentionTrials(512, 1), replace(RECIPE, generation=replace(RECIPE.generation, chunk=256))
    for one in (model, edited(model, lambda _: None)):
        assert not trials.choose(one, told).generation.flash_attention
    assert tried == [(512, 256, 1)]
    assert [note.detail for note in trials.notes()] == [
        "attention of prompts in one piece: 2.00x [1.90, 2.10] as fast as in ONNX Runtime's tiles (flash_attention)"
    ]


def test_tiles_stay_where_pieces_are_not_proven_faster_or_would_take_much_memory(model, monkeypatch):
    undecided = replace(FASTER, verdict=Change.INCONCLUSIVE)
    monkeypatch.setattr(attention, "piece_over_tiles", lambda *_: undecided)
    trials = AttentionTrials(512, 1)
    assert trials.choose(model, RECIPE).generation.flash_attention
    assert trials.notes() == []
    monkeypatch.setattr(attention, "piece_over_tiles", lambda *_: FASTER)
    long = replace(RECIPE, generation=replace(RECIPE.generation, context=1 << 17))
    assert AttentionTrials(512, 1).choose(model, long).generation.flash_attention
    assert AttentionTrials(8, 1).choose(model, long).generation.flash_attention  # longer ones come too, part by part


def test_an_attention_that_does_not_open_keeps_tiles(model, monkeypatch):
    def fail(*_):
        raise InvalidFileError("refused", remedy="none")

    monkeypatch.setattr(attention, "piece_over_tiles", fail)
    assert AttentionTrials(8, 1).choose(model, RECIPE).generation.flash_attention


def test_random_numbers_of_a_feed_are_the_same_each_time(model):
    first, second = (alone_in(model).feed(4, 2) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
