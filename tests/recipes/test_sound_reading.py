"""Models that hear get a recipe of sounds where names and shapes make it certain, and none where they do not."""

from __future__ import annotations

import pytest

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ChosenRecipe, bind_recipe
from edgeopt.recipes.drafting.sound_reading import sound_recipe
from edgeopt.recipes.inputs.audio import Features
from edgeopt.recipes.recognise import choose_recipe


def spec(name: str, *shape: int | str | None, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


SR = spec("sr", dtype="int64")
NEXT = spec("stateN", None, None, None)


@pytest.mark.parametrize(
    ("inputs", "outputs", "context", "shape"),
    [
        ([spec("input", None, None), spec("state", 2, None, 128), SR], [spec("output", None, 1), NEXT], 64, (1, 576)),
        (
            [spec("input", 1, 576), spec("state", 2, 1, 128)],
            [spec("output", 1, 1), spec("stateN", 2, 1, 128)],
            64,
            (1, 576),
        ),
        (
            [spec("input", "b", "n"), SR, spec("h", 2, "b", 64), spec("c", 2, "b", 64)],
            [spec("output", "b", 1), spec("hn", 2, "b", 64), spec("cn", 2, "b", 64)],
            0,
            (1, 512),
        ),
    ],
)
def test_silero_is_known_by_its_states(inputs, outputs, context, shape):
    recipe, comments = sound_recipe(inputs, outputs)
    bound = bind_recipe(ChosenRecipe(recipe), inputs, outputs, {}, {}).recipe
    assert (bound.task, bound.audio.samples, bound.audio.context) == ("voice_activity", 512, context)
    assert bound.input.shapes["input"] == shape
    assert bound.input.constants == ({"sr": 16000.0} if SR in inputs else {})
    assert "Silero" in comments["task"]


def test_what_recipe_drafts_without_a_question_runs_without_a_recipe():
    """So says every command: the recipe was asked for though nothing was left to ask."""
    inputs = [spec("input", "b", "n"), spec("state", 2, "b", 128), SR]
    choice = choose_recipe(None, None, inputs, [spec("output", "b", 1), NEXT], {})
    assert (choice.recipe.name, choice.recipe.task, choice.recipe.guesses) == ("silero_vad", "voice_activity", ())
    assert choice.recipe.input.shapes["input"] == (1, 576)
    heard = [spec("input_features", "batch", 80, 3000)]
    choice = choose_recipe(None, None, heard, [spec("last_hidden_state", "batch", 1500, 384)], {})
    assert choice.recipe.guesses == ("audio.normalise",)
    assert "audio.normalise" in choice.notes[-1].detail


def test_whispers_encoder_is_known_by_its_features():
    inputs, outputs = [spec("input_features", "batch", 80, 3000)], [spec("last_hidden_state", "batch", 1500, 384)]
    recipe, comments = sound_recipe(inputs, outputs)
    assert comments["audio.normalise"].startswith("not known")
    bound = bind_recipe(ChosenRecipe(recipe), inputs, outputs, {}, {}).recipe
    assert (bound.task, bound.audio.features, bound.audio.samples) == ("tensors", Features.WHISPER, 480_000)
    assert bound.input.shapes["input_features"] == (1, 80, 3000)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([spec("input", 1, 576)], [spec("output", 1, 1)]),
        ([spec("input", 1, 400), spec("state", 2, 1, 128)], [spec("output", 1, 1), spec("stateN", 2, 1, 128)]),
        ([spec("input", 1, 576), spec("state", 2, 1, 128)], [spec("a", 1, 1), spec("b", 1), spec("stateN", 2, 1, 128)]),
        ([spec("input_features", 1, 3, 3000)], [spec("output", 1, 1)]),
    ],
)
def test_what_is_not_certain_gets_none(inputs, outputs):
    assert sound_recipe(inputs, outputs) is None
