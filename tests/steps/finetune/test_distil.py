from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from taught_nets import PICTURES, RECIPE, dense, pruned, recipe_file

pytest.importorskip("torch", reason="torch is not installed")

import edgeopt.steps.finetune.distil as module
import edgeopt.steps.finetune.loop as loop
import edgeopt.steps.finetune.standing as standing
from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.steps.finetune.distil import Distilled, distil, require_alike, split

STEPS = 40


class Stop(Exception):
    pass


class StopsAt(Silence):
    """A listener that ends the training at a check."""

    def __init__(self, step: int) -> None:
        self.step = step

    def say(self, text: str) -> None:
        if text.startswith(f"  step {self.step}:"):
            raise Stop


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return read_recipe(recipe_file(tmp_path_factory.mktemp("recipe")))


@pytest.fixture(scope="module")
def pictures() -> Frames:
    return open_frames(PICTURES)


def taught(pictures: Frames, recipe: Recipe, folder: Path, student: Model | None = None, **options) -> Distilled:
    student = student or pruned(dense())
    return distil(student, dense(), pictures, recipe, 1.0, Silence(), folder, **{"steps": STEPS, **options})


@pytest.fixture(scope="module")
def healed(pictures: Frames, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Distilled:
    return taught(pictures, recipe, tmp_path_factory.mktemp("once"))


def test_a_pruned_net_heals_beyond_the_interval_of_held_out_pictures(healed):
    assert healed.is_better
    assert healed.gain.low > 0
    assert healed.held_out_after < 0.9 * healed.held_out_before
    assert healed.features == 4


def test_the_healed_net_keeps_names_and_shapes(healed):
    student = pruned(dense())
    assert healed.model.fingerprint != student.fingerprint
    assert [one.name for one in healed.model.proto.graph.node] == [one.name for one in student.proto.graph.node]
    stored = [{one.name: tuple(one.dims) for one in net.proto.graph.initializer} for net in (healed.model, student)]
    assert stored[0] == stored[1]
    onnx.checker.check_model(healed.model.proto)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(healed, pictures, recipe, tmp_path):
    assert taught(pictures, recipe, tmp_path).model.data == healed.model.data
    assert taught(pictures, recipe, tmp_path, seed=1).model.data != healed.model.data


def test_what_is_taken_up_ends_in_the_same_bytes(healed, pictures, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_WRITING", 1e9)
    listener = StopsAt(20)
    with pytest.raises(Stop):
        distil(pruned(dense()), dense(), pictures, recipe, 1.0, listener, tmp_path, steps=STEPS)
    assert (tmp_path / "training.npz").is_file()
    again = taught(pictures, recipe, tmp_path)
    assert again.model.data == healed.model.data
    assert [one.loss for one in again.curve] == [one.loss for one in healed.curve]
    assert not (tmp_path / "training.npz").exists()


def test_a_checkpoint_of_another_training_is_not_taken_up(healed, pictures, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_WRITING", 1e9)
    with pytest.raises(Stop):
        distil(pruned(dense()), dense(), pictures, recipe, 1.0, StopsAt(20), tmp_path, steps=STEPS, seed=5)
    assert taught(pictures, recipe, tmp_path).model.data == healed.model.data


def test_a_damaged_checkpoint_is_not_taken_up(healed, pictures, recipe, tmp_path):
    (tmp_path / "training.npz").write_bytes(b"PK\x03\x04 torn")
    assert taught(pictures, recipe, tmp_path).model.data == healed.model.data


def test_training_that_gains_nothing_returns_the_given_net(pictures, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "RATES", (1e-6,))
    student = pruned(dense())
    made = taught(pictures, recipe, tmp_path, student, steps=8)
    assert not made.is_better
    assert made.model is student
    assert "the given model stays" in made.note


def test_where_nothing_gets_better_training_goes_back_to_the_best_weights_with_half_the_rate(
    pictures, recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "RATES", (1.0,))
    returned = taught(pictures, recipe, tmp_path, steps=60)
    monkeypatch.setattr(standing, "MOST_RETURNS", 0)
    ended = taught(pictures, recipe, tmp_path, steps=60)
    assert returned.curve[-1].step == 60
    assert ended.curve[-1].step < 60
    assert min(one.loss for one in returned.curve) < min(one.loss for one in ended.curve)


def test_a_net_that_answers_as_its_teacher_needs_no_healing(pictures, recipe, tmp_path):
    with pytest.raises(EdgeoptError, match="there is nothing to heal"):
        taught(pictures, recipe, tmp_path, Model(dense().proto, "whole"))


def test_the_time_limit_ends_a_training(pictures, recipe, tmp_path):
    made = distil(pruned(dense()), dense(), pictures, recipe, 1 / 60, Silence(), tmp_path)
    assert made.curve[-1].step >= 1
    assert made.curve[-1].seconds < 30


def test_few_pictures_are_said_to_be_few(healed):
    assert any("are few" in str(one) for one in healed.notes)


def test_too_few_pictures_are_refused(pictures):
    with pytest.raises(EdgeoptError, match=r"15 pictures in .* cannot teach and judge"):
        split(pictures.select(range(15)))


def test_no_picture_both_teaches_and_judges(pictures):
    taught, watched, judged = split(pictures)
    names = [{*one.names} for one in (taught, watched, judged)]
    assert sum(map(len, names)) == len(set.union(*names)) == len(pictures)
    assert len(watched) == len(judged) == 8


def test_models_that_do_not_fit_each_other_are_refused():
    with pytest.raises(UnsupportedError, match=r"gives .* its teacher dense .*\n  -> name the dense model"):
        require_alike(pruned(dense(classes=7)), dense())
    renamed = onnx.ModelProto()
    renamed.CopyFrom(dense().proto)
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = "y"
    with pytest.raises(UnsupportedError, match="takes y float32"):
        require_alike(Model(renamed, "other"), dense())


def test_an_op_that_cannot_be_trained_is_named(pictures, recipe, tmp_path):
    proto = onnx.ModelProto()
    proto.CopyFrom(dense().proto)
    proto.graph.node[-1].op_type, proto.graph.node[-1].domain = "Mystery", "of.others"
    with pytest.raises(EdgeoptError, match="Mystery"):
        taught(pictures, recipe, tmp_path, Model(proto, "odd"))


def test_arrays_teach_too(recipe, tmp_path):
    chance = np.random.default_rng(0)
    arrays = chance.normal(size=(32, 1, 3, 24, 24)).astype(np.float32)

    def take(index: int) -> dict[str, np.ndarray]:
        return {"x": arrays[index]}

    frames = Frames(tuple(map(str, range(32))), take, Path("arrays"), tensors=take)
    of_tensors = read_recipe(recipe_file(tmp_path))
    assert taught(frames, replace(of_tensors, folder=Path()), tmp_path).is_better
    assert RECIPE
