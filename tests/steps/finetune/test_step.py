from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
from taught_nets import PICTURES, dense, pruned, recipe_file

pytest.importorskip("torch", reason="torch is not installed")

from edgeopt.errors import EdgeoptError, NoteKind
from edgeopt.graph.model import save_model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.candidates.engines import open_engine
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import read_recipe
from edgeopt.steps._context import Context, Setting
from edgeopt.steps.finetune import distil as training
from edgeopt.steps.finetune import step as module
from edgeopt.steps.finetune.record import RECORD
from edgeopt.steps.finetune.step import heal
from edgeopt.system.declared.target import find_target


@dataclass
class Folder:
    """An output folder."""

    root: Path
    written: list[str] = field(default_factory=list)

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, data: str | bytes) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(data.encode() if isinstance(data, str) else data)
        self.written.append(name)


@pytest.fixture(autouse=True)
def so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train by steps: no time decides a test."""
    monkeypatch.setattr(module, "distil", partial(module.distil, steps=60))


def context_in(folder: Path, **more) -> Context:
    target = find_target("cpu")
    return Context(
        recipe=read_recipe(recipe_file(folder)).with_size(24, 24),
        target=target,
        engine=open_engine(target, 1),
        original=dense(),
        frames=open_frames(PICTURES),
        files=Folder(folder),
        quantizes=False,
        may_quantize=False,
        threads=1,
        **{"is_calibrated": True, "listener": Silence(), "ends_at": float("inf"), **more},
    )


def setting_of(context: Context) -> Setting:
    return Setting(context.engine, "fp32", "finetune")


def why_unchanged(model, context: Context) -> str:
    (left,) = heal(model, context, setting_of(context))
    assert left.is_unchanged
    assert left.model is model
    assert [note.kind for note in left.notes] == [NoteKind.SKIPPED]
    return str(left.notes[0])


@pytest.fixture(scope="module")
def healed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """Return what one training makes, and its output folder."""
    folder = tmp_path_factory.mktemp("healed")
    context = context_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "distil", partial(training.distil, steps=60))
        (made,) = heal(pruned(dense()), context, setting_of(context)) or pytest.fail(str(context.notes))
    return made, folder


def test_a_pruned_model_is_healed_and_a_replay_takes_the_stored_weights(healed, tmp_path):
    made, source = healed
    assert made.changes["trained weights"] == 8
    assert any("training lowered the loss" in str(note) for note in made.notes)
    folder = source / "candidates" / "finetune"
    assert (folder / RECORD).is_file()
    save_model(made.model, folder / "model.onnx")

    again = context_in(tmp_path, replay=SimpleNamespace(source=source))
    (replayed,) = heal(pruned(dense()), again, setting_of(again))
    assert replayed.model.data == made.model.data
    assert any("nothing was trained here" in str(note) for note in replayed.notes)
    with pytest.raises(EdgeoptError, match="trained another model"):
        heal(pruned(dense(), 0.25), again, setting_of(again))
    save_model(dense(), folder / "model.onnx")
    with pytest.raises(EdgeoptError, match="was changed since it was trained"):
        heal(pruned(dense()), again, setting_of(again))


def test_nothing_is_trained_where_nothing_was_lost(tmp_path):
    context = context_in(tmp_path)
    whole = module._teacher(context, setting_of(context))
    assert "nothing to heal" in why_unchanged(whole, context)


def test_made_up_pictures_teach_nothing(tmp_path):
    context = context_in(tmp_path, is_calibrated=False)
    assert "no real pictures" in why_unchanged(pruned(dense()), context)


def test_a_model_of_another_input_is_left_as_it_is(tmp_path):
    context = replace(context_in(tmp_path), original=pruned(dense(classes=7)))
    assert "no finetune: pruned gives" in why_unchanged(pruned(dense()), context)


class Stop(Exception):
    pass


class Hears(Silence):
    """A listener that keeps what is said, and ends the training at a check."""

    def __init__(self, stops_at: int = -1) -> None:
        self.stops_at = stops_at
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)
        if text.startswith(f"  step {self.stops_at}:"):
            raise Stop


def test_what_was_interrupted_under_a_time_limit_goes_on_however_much_time_is_left(healed, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_EVERY_S", 0.0)
    monkeypatch.setattr(training, "_WRITING", 1e9)
    limits = {"time_limit_s": 900.0, "training_s": 300.0}
    first = context_in(tmp_path, listener=Hears(45), ends_at=monotonic() + 900, **limits)
    with pytest.raises(Stop):
        heal(pruned(dense()), first, setting_of(first))

    second = context_in(tmp_path, listener=Hears(), ends_at=monotonic() + 700, **limits)
    (made,) = heal(pruned(dense()), second, setting_of(second))
    assert any(text.startswith("taken up at step 4") for text in second.listener.said)
    assert made.model.data == healed[0].model.data


def test_a_training_ends_when_its_run_must(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "distil", training.distil)
    context = context_in(tmp_path, time_limit_s=1.0, ends_at=monotonic() + 1.5, training_s=3600.0)
    began_s = monotonic()
    heal(pruned(dense()), context, setting_of(context))
    assert monotonic() - began_s < 60
