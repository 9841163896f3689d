"""Sessions with tiles of attention or without: the same numbers, and the environment as it was."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_decoders import bundle_small, export_small

from edgeopt import Runtime
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, OnnxRuntime
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.executors.onnxruntime.flash_attention import VARIABLE, flash_attention
from edgeopt.recipes.recipe import read_recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.runtime.decoding.opening import open_language_model

TINY = Path(__file__).parents[2] / "models" / "tiny_lm" / "model.onnx"
TOKENS = np.random.default_rng(0).integers(1, 1000, 200).tolist()


@pytest.fixture
def seen(monkeypatch) -> list[str | None]:
    """Values of the variable whenever a session was made."""
    monkeypatch.delenv(VARIABLE, raising=False)
    found, opened = list[str | None](), OnnxRuntime.open

    def open_one(self, source, options):
        found.append(os.environ.get(VARIABLE))
        return opened(self, source, options)

    monkeypatch.setattr(OnnxRuntime, "open", open_one)
    return found


def logits(wanted: bool, parts: tuple[int, ...]) -> np.ndarray:
    with flash_attention(wanted):
        session = EXECUTOR.open(TINY, SessionOptions(threads=1))
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 256, shares=True)
    found = [decoder.run(TOKENS[decoder.past : decoder.past + count]) for count in parts]
    session.close()
    return np.concatenate(found)


def test_a_prompt_has_the_same_logits_in_tiles_and_in_pieces_at_once_and_in_parts():
    expected = logits(True, (200,))
    for parts in ((200,), (128, 72), (199, 1)):
        np.testing.assert_allclose(logits(False, parts), expected, atol=2e-4)


def test_the_environment_is_as_it_was_even_after_an_error(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for wanted, inside in ((True, None), (False, "1")):
        with flash_attention(wanted):
            assert os.environ.get(VARIABLE) == inside
        assert VARIABLE not in os.environ
        with pytest.raises(ZeroDivisionError), flash_attention(wanted):
            _ = 1 / 0
        assert VARIABLE not in os.environ


@pytest.mark.parametrize("wanted", [True, False])
def test_what_the_user_wrote_into_the_environment_stands(monkeypatch, wanted):
    monkeypatch.setenv(VARIABLE, "0")
    with flash_attention(wanted):
        assert os.environ[VARIABLE] == "0"
    assert os.environ[VARIABLE] == "0"


def test_a_recipe_says_how_a_file_and_its_draft_are_opened(seen, tmp_path):
    file = export_small(tmp_path / "exported")
    written = file.parent / "recipe.toml"
    recipe = read_recipe(written)
    del seen[:]
    open_language_model(file, 1)[0].close()
    told = replace(recipe.generation, flash_attention=False, draft=file.name, guesses=2)
    written.write_text(recipe_text(replace(recipe, generation=told), name="small", labels=""), "utf-8")
    with open_language_model(file, 1)[0] as model:
        model.generate("abc").text()
    assert seen == [None, "1", "1"], "as without the key; the model; its draft"
    assert VARIABLE not in os.environ


def test_a_bundle_says_how_it_is_opened(seen, tmp_path):
    file = export_small(tmp_path / "exported")
    written = file.parent / "recipe.toml"
    recipe = read_recipe(written)
    told = replace(recipe.generation, flash_attention=False)
    written.write_text(recipe_text(replace(recipe, generation=told), name="small", labels=""), "utf-8")
    bundle = bundle_small(file, tmp_path / "made")
    del seen[:]
    Runtime.load(bundle).close()
    assert seen == ["1"]
