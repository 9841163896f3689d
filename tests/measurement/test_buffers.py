"""Whether tensors get buffers of their own is measured, and what was chosen reaches the session and the bundle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fixture_bundles import packed
from fixture_models import conv_batchnorm

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, MEMORY_REUSE
from edgeopt.graph.model import load_model
from edgeopt.measurement.opening import buffers as module
from edgeopt.measurement.opening.buffers import Buffers, choose_buffers
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import read_bundle, write_bundle
from edgeopt.steps._context import Engine
from edgeopt.system.declared.target import find_target

CPU = find_target("cpu-x86-vnni")


def inputs(model):
    return {one.name: np.zeros([size or 1 for size in one.shape], one.dtype) for one in model.inputs}


@pytest.mark.parametrize(("took", "chosen"), [(0.90, {MEMORY_REUSE: "0"}), (0.995, {}), (1.1, {})])
def test_buffers_of_their_own_must_be_faster(monkeypatch, took, chosen):
    """The times are given, since no test may be decided by a timing; the sessions are real."""

    def compared(runs, *, baseline, **_):
        for run in runs.values():
            run(0)
        assert baseline == "shared"
        return {"apart": Ratio(1 / took, 1 / took, 1 / took, Change.EQUIVALENT)}

    monkeypatch.setattr(module, "compare_calls", compared)
    model = conv_batchnorm()
    assert choose_buffers(model, CPU, 1, inputs(model)) == chosen


def test_a_target_that_says_itself_or_has_another_engine_is_not_asked():
    model = conv_batchnorm()
    says = replace(CPU, options={MEMORY_REUSE: "1"})
    assert choose_buffers(model, says, 1, inputs(model)) == {}
    assert choose_buffers(model, find_target("openvino-cpu"), 1, inputs(model)) == {}


def test_the_first_model_of_a_search_decides_for_all(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "choose_buffers", lambda *given: asked.append(given) or {MEMORY_REUSE: "0"})
    buffers = Buffers(CPU, 1, {})
    assert buffers.entries == {}
    buffers.choose(conv_batchnorm())
    buffers.choose(conv_batchnorm())
    assert len(asked) == 1
    assert buffers.entries == {MEMORY_REUSE: "0"}


def test_the_entry_changes_no_answer():
    model = conv_batchnorm()
    both = [EXECUTOR.open(model.data, SessionOptions(entries={MEMORY_REUSE: one})) for one in "01"]
    given = {key: np.random.default_rng(0).random(value.shape, np.float32) for key, value in inputs(model).items()}
    for one, other in zip(*(session.run(given).values() for session in both), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_bundle_keeps_what_was_chosen(tmp_path):
    recipe = find_recipe("digits_detector")
    model = load_model(recipe.path_of(recipe.model))
    engine = Engine(CPU, EXECUTOR, 1).with_options({MEMORY_REUSE: "0"})
    write_bundle(tmp_path, [packed("model.onnx", "fp32", model.data, engine.target)], CPU, recipe, {}, {})
    assert read_bundle(tmp_path).artefacts[0].options == {MEMORY_REUSE: "0"}
    assert CPU.options == {}
