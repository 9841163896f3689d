"""Bundles that wish for the fast cores: kept as a word, resolved where they are opened, and absent in older ones."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_bundles import CPU, packed, reseal
from fixture_models import model, numbers
from fixture_topologies import seem_to_have, topology

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import MANIFEST, read_bundle, write_bundle
from edgeopt.runtime.opening import opening_from_json, opening_of
from edgeopt.runtime.runtime import Runtime

NET = model("net (float[1,4] x) => (float[1,4] y) { y = Relu(x) }")
GIVEN = {"x": numbers(1, 4)}
HELD = replace(CPU, cores="fast")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A bundle whose model was measured on the four fast cores of a processor, with a fallback that is free."""
    models = [packed("model.onnx", "fp32", NET.data, HELD, 4), packed("fallback.onnx", "fp32", NET.data, CPU)]
    return write_bundle(tmp_path / "bundle", models, HELD, find_recipe("tensors"), {}, {}).folder


def test_a_bundle_keeps_the_wish_and_no_numbers_of_processors(folder):
    written = json.loads((folder / MANIFEST).read_text("utf-8"))
    assert [artefact["cores"] for artefact in written["artefacts"]] == ["fast", ""]
    assert written["artefacts"][0]["options"] == dict(CPU.options), "what holds them is asked on the device"
    first, second = read_bundle(folder).artefacts
    assert (opening_of(first).options.cores, opening_of(second).options.cores) == ("fast", "")
    told = opening_of(first)
    assert opening_from_json(json.loads(json.dumps(told.to_json()))) == told, "a fresh process holds it too"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux holds threads to cores")
def test_no_more_threads_than_this_device_has_fast_cores(folder, tmp_path, monkeypatch):
    (held, free) = read_bundle(folder).artefacts
    free = replace(free, threads=4)
    boards = {"four": [414] * 4 + [1024] * 4, "two": [414] * 6 + [1024] * 2, "one kind": [1024] * 8}
    used = {}
    for name, capacities in boards.items():
        seem_to_have(monkeypatch, topology(tmp_path / name, cpu_capacity=capacities), range(8))
        used[name] = [opening_of(artefact).options.threads for artefact in (held, free)]
    assert used == {"four": [4, 4], "two": [2, 4], "one kind": [4, 4]}
    with Runtime.load(folder, threads=1) as runtime:
        assert runtime.opening.options.threads == 1, "a number that is asked for comes before"


def test_an_older_bundle_opens_as_before(folder):
    def older(values):
        for artefact in values["artefacts"]:
            artefact.pop("cores")
        values["target"].pop("cores")

    reseal(folder, older)
    assert [artefact.cores for artefact in read_bundle(folder).artefacts] == ["", ""]
    with Runtime.load(folder) as runtime:
        assert runtime.opening.options.cores == runtime.bundle.target.cores == ""
        assert np.array_equal(runtime.predict(GIVEN)["y"], np.maximum(GIVEN["x"], 0))


def test_a_wish_that_there_is_not_is_refused(folder):
    reseal(folder, lambda values: values["artefacts"][0].update(cores="slow"))
    with pytest.raises(InvalidFileError, match="cores is 'slow', not 'fast', or empty for all") as caught:
        read_bundle(folder)
    assert caught.value.remedy
