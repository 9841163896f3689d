"""An app degrades only to models that keep, on all samples, what the recipe asks of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fixture_models import model

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, save_model
from edgeopt.measurement.accuracy.pool import HERE
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.deployment.lighter import judged_lighter
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.tasks import make_task

ORIGINAL = Candidate(BASELINE, "", (), "fp32", "baseline.onnx", 100)
RECIPE = find_recipe("tensors")


def clipped(limit: float) -> Model:
    """Return a net that answers as the original does where inputs are no larger than a limit."""
    limits = {"low": np.float32(-limit), "high": np.float32(limit)}
    return model("net (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Clip(x, low, high) }", **limits)


@pytest.fixture
def run(tmp_path) -> SimpleNamespace:
    """A run whose original and two forms of it lie in a folder, with samples of which most are large."""
    for name, limit in (("baseline", 1e9), ("wrong", 1.0), ("right", 100.0)):
        save_model(clipped(limit), tmp_path / f"{name}.onnx")
    random = np.random.default_rng(0)
    np.savez(tmp_path / "samples.npz", x=random.normal(0, 5, (32, 3, 8, 8)).astype(np.float32))

    def opened(given: Model):
        return EXECUTOR.open(given.source, SessionOptions(threads=1))

    frames = open_frames(tmp_path / "samples.npz")
    context = SimpleNamespace(
        least_agreement=RECIPE.least_agreement,
        pictures=frames,
        judged_pictures=frames.spread(16),
        time_limit_s=None,
        ends_at=float("inf"),
        original=clipped(1e9),
        task=lambda given, evaluating: make_task(RECIPE, given.inputs, given.outputs, evaluating=evaluating),
        open=opened,
        engine=SimpleNamespace(target=SimpleNamespace(float_precision="fp32")),
        runnable=lambda *_: None,
        pool=HERE,
    )
    return SimpleNamespace(
        context=context,
        labelled=None,
        frame_ms=0.0,
        judged_scores={},
        workspace=SimpleNamespace(path=lambda file: tmp_path / file),
        listener=SimpleNamespace(progress=lambda *_: None),
        open_candidate=lambda one, given: opened(given),
        runnable_of=lambda *_: None,
    )


def form(name: str, agreement: float, speedup: float = 2.0) -> Candidate:
    speed = Ratio(speedup, speedup * 0.99, speedup * 1.01, Change.FASTER, processes=8)
    return replace(ORIGINAL, name=name, file=f"{name}.onnx", speed=speed, agreement=agreement)


def lighter_of(run, *forms: Candidate) -> tuple[list[str], list[str]]:
    notes = []
    found = judged_lighter(run, [ORIGINAL, *forms], ORIGINAL, notes)
    return [one.name for one in found], [one.detail for one in notes]


def test_a_form_that_was_right_on_a_few_samples_is_judged_on_all(run):
    found, notes = lighter_of(run, form("right", 0.995), form("wrong", 0.994, 3.0))
    assert found == ["right"]
    (note,) = notes
    assert note.startswith("wrong is no lighter model of the bundle: it agrees in 0.")
    assert note.endswith("on 32 samples, 0.99 is asked")


def test_what_agrees_less_than_the_recipe_asks_is_no_lighter_model_whatever_its_speed(run):
    assert lighter_of(run, form("wrong", 0.85, 3.0)) == ([], []), "0.85 of tensors is an error of 0.4 of the signal"
