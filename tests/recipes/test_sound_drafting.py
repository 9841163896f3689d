"""Models that hear get a recipe of sounds from their names or an example; what neither tells is asked, or marked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tones import KEYWORDS, RATE, keyword, talk

from edgeopt.cli import cli
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.drafted import Facts
from edgeopt.recipes.drafting.drafting import draft_recipe
from edgeopt.recipes.drafting.questions import RecipeQuestion, nobody
from edgeopt.recipes.inputs.audio import Features
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.recipes.recipe import read_recipe

TRAINED = Path(__file__).parents[1] / "trained"


def spec(name: str, *shape: int | str, op: str = "") -> TensorSpec:
    return TensorSpec(name, "float32", shape, op)


def facts(folder: Path, inputs: list[TensorSpec], outputs: list[TensorSpec], rate_hz: int = 0) -> Facts:
    return Facts("net", folder / "net.onnx", 17, tuple(inputs), tuple(outputs), {}, sound_rate_hz=rate_hz)


def answering(answers: dict[str, str]) -> Callable[[RecipeQuestion], Any]:
    """Answers by a word of the question, each of which must be asked."""

    def ask(question: RecipeQuestion) -> Any:
        typed = next((one for word, one in answers.items() if word in question.text), None)
        return None if typed is None else question.answer(typed)

    return ask


def test_a_net_of_mel_bands_is_asked_about_sounds_and_not_about_pictures(tmp_path: Path) -> None:
    asked = []

    def ask(question: RecipeQuestion) -> Any:
        asked.append(question.text)
        answers = {"second": "8000", "makes": "1", "bands": "24", "frame": "256 128", "outputs": "1"}
        return next((question.answer(one) for word, one in answers.items() if word in question.text), ())

    labels = tmp_path / "names.txt"
    labels.write_text("\n".join(KEYWORDS))
    mel, scores = spec("mel", 1, 1, 24, 32), spec("scores", 1, len(KEYWORDS), op="Gemm")
    found = draft_recipe(facts(tmp_path, [mel], [scores]), None, ask)
    audio = found.recipe.audio
    assert (found.recipe.kind, found.recipe.task) == ("sound", "classification")
    assert (audio.rate_hz, audio.features, audio.bands) == (8000, Features.TORCHAUDIO, 24)
    assert (audio.frame, audio.step, audio.samples) == (256, 128, 31 * 128)
    assert found.not_known == ("audio.mean", "audio.std")
    assert len(asked) == 6
    assert not any("picture" in one or "pixel" in one for one in asked)


@pytest.mark.parametrize(
    ("mel", "bands", "frames"), [((1, 80, "frames"), 80, 0), ((1, 100, 64), 64, 100), ((1, 1, 40, 40), 40, 40)]
)
def test_what_nobody_answers_is_marked(mel: tuple[int | str, ...], bands: int, frames: int, tmp_path: Path) -> None:
    found = draft_recipe(facts(tmp_path, [spec("log_mel", *mel)], [spec("y", 1, 5, 7)]), None, nobody)
    assert (found.recipe.kind, found.recipe.task) == ("sound", "tensors")
    assert {"audio.rate_hz", "audio.features", "audio.step", "audio.mean"} <= {*found.not_known}
    assert ("audio.samples" in found.not_known) == (not frames)
    shape = found.recipe.input.shapes["log_mel"]
    assert bands in shape
    assert not frames or frames in shape


def test_arrays_and_pictures_are_not_taken_for_sounds(tmp_path: Path) -> None:
    for name, shape in (("features", (1, 64)), ("images", (1, 3, 64, 64)), ("x", (1, 400)), ("model", (1, 80, 100))):
        found = draft_recipe(facts(tmp_path, [spec(name, *shape)], [spec("y", 1, 4, op="Gemm")]), None, nobody)
        assert found.recipe.kind != "sound", name


def test_frames_that_lie_beside_each_other_are_not_taken_for_bands(tmp_path: Path) -> None:
    """FunASR's detector of speech takes 400 numbers a frame: five frames of 80 bands."""
    of = facts(tmp_path, [spec("speech", 1, "feats_length", 400)], [spec("logits", 1, "n", 248, op="Softmax")])
    assert draft_recipe(of, None, nobody).recipe.kind != "sound"


def test_states_that_names_do_not_tell_are_asked_and_noted(tmp_path: Path) -> None:
    inputs, outputs = [spec("x", 1, 16), spec("memory", 1, 32)], [spec("y", 1, 4), spec("carry", 1, 32)]
    told = draft_recipe(facts(tmp_path, inputs, outputs), None, answering({"memory": "2"}))
    assert told.recipe.input.states == {"memory": "carry"}
    assert told.comments["input.states"] == "memory as answered"
    guess = draft_recipe(facts(tmp_path, inputs, outputs), None, nobody)
    assert not guess.recipe.input.states
    assert guess.comments["input.states"] == "not known: memory may take carry of the sample before"
    numbered = [spec("x", 1, 16), spec("h0", 1, 1, 32)], [spec("y", 1, 4), spec("h1", 1, 1, 32)]
    sure = draft_recipe(facts(tmp_path, *numbered), None, nobody)
    assert sure.recipe.input.states == {"h0": "h1"}
    assert "input.states" not in sure.not_known


def test_a_sound_as_example_makes_a_recipe_of_sounds_that_is_read_again(tmp_path: Path) -> None:
    for name, sound in (("keywords", keyword(1, 0)), ("talking", talk(1.0, 0)[0])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "net.onnx").write_bytes((TRAINED / f"{name}.onnx").read_bytes())
        write_wav(folder / "one.wav", Sound(sound, RATE))
        told = CliRunner().invoke(cli, ["recipe", str(folder / "net.onnx"), "--picture", str(folder / "one.wav")])
        assert told.exit_code == 0, told.output
        assert "--calib SOUNDS" in " ".join(told.output.split())
        assert "Answers to one" in told.output
        assert "[preprocess]" not in (folder / "recipe.toml").read_text()
        assert read_recipe(folder / "recipe.toml").audio.rate_hz == RATE
    recipe = read_recipe(tmp_path / "talking" / "recipe.toml")
    assert (recipe.task, recipe.audio.hop, dict(recipe.input.states)) == ("voice_activity", 192, {"h": "hn"})
