"""How many positions a decoder has is read from its file alone, and no file breaks the reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_decoders import SHIPPED, export_small

from edgeopt.errors import EdgeoptError
from edgeopt.graph.facts.positions import positions_of
from edgeopt.runtime.decoding.opening import open_language_model


def test_the_rows_of_the_rotary_cache_are_those_that_onnx_reads():
    graph = onnx.load(SHIPPED / "model.onnx").graph
    rows = [one.dims[0] for one in graph.initializer if "cos_cache" in one.name]
    assert positions_of(SHIPPED / "model.onnx") == min(rows) == 1024


def test_a_file_that_is_no_such_graph_has_none(tmp_path):
    whole, chance = (SHIPPED / "model.onnx").read_bytes(), np.random.default_rng(0)
    for data in (
        b"",
        b"\xff" * 4096,
        whole[:100],
        chance.bytes(4096),
        *(whole[: len(whole) * i // 7] for i in range(7)),
    ):
        (tmp_path / "a.onnx").write_bytes(data)
        assert positions_of(tmp_path / "a.onnx") in (None, 1024)
    assert positions_of(tmp_path) is None


def test_a_recipe_with_a_longer_context_is_refused_when_it_is_opened(tmp_path):
    file = export_small(tmp_path)
    recipe = file.parent / "recipe.toml"
    recipe.write_text(recipe.read_text("utf-8").replace("context = 512", "context = 5000"), "utf-8")
    with pytest.raises(EdgeoptError, match="has 512 positions, and its recipe tells of a context of 5000") as caught:
        open_language_model(Path(file), 1)
    assert "context = 512" in caught.value.remedy
    opened, _ = open_language_model(Path(file), 1, context=512)
    with opened:
        assert opened.context == 512
