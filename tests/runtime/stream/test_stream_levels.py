"""The levels of real bundles: the bundle's own models, the least light first, and a smaller input where it is free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_bundles import packed
from fixture_models import model

from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import Bundle, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream.levels import levels_of, smaller_size
from edgeopt.system.declared.target import find_target

CPU = find_target("cpu-x86-vnni")
FRAME = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)


def made(folder: Path, shape: str, size: tuple[int, int], lighter: int = 0) -> Bundle:
    weights = np.random.default_rng(1).normal(size=(3, 10)).astype(np.float32)
    text = f"""net (float[{shape}] x) => (float[1,10] y) {{
        pooled = ReduceMean <axes = [2, 3], keepdims = 0> (x)
        y = MatMul(pooled, w) }}"""
    net = model(text, w=weights)
    recipe = find_recipe("imagenet").with_size(*size)
    models = [packed(f"{i}.onnx", "fp32", net.data, CPU, 1) for i in range(lighter + 1)]
    return write_bundle(folder, models[:1], CPU, recipe, {}, {}, lighter=models[1:])


def test_the_least_light_model_comes_before_the_lightest(tmp_path):
    """A bundle names the fastest first."""
    with Runtime.load(made(tmp_path, "1,3,64,64", (64, 64), lighter=2).folder) as runtime:
        levels = levels_of(runtime, smaller_input=True)
        assert [one.name for one in levels] == [
            "full",
            "every 2nd frame",
            "lighter model 2.onnx",
            "lighter model 1.onnx",
        ]
        with levels[-1].open() as lightest:
            assert lightest.artefact.file == "1.onnx"
            assert lightest.predict(FRAME).indices.tolist() == runtime.predict(FRAME).indices.tolist()


@pytest.mark.parametrize(("size", "smaller"), [((128, 128), (96, 96)), ((64, 224), (32, 160)), ((32, 32), None)])
def test_a_model_of_free_shape_may_take_a_smaller_input(tmp_path, size, smaller):
    with Runtime.load(made(tmp_path, "1,3,h,w", size).folder) as runtime:
        assert smaller_size(runtime) == smaller
        assert len(levels_of(runtime)) == 2
        if smaller is None:
            return
        last = levels_of(runtime, smaller_input=True)[-1]
        assert last.name == f"input of {smaller[0]}x{smaller[1]}"
        with last.open() as other, other.begin() as work:
            work.preprocess(FRAME)
            assert work._inputs["x"].shape[2:] == smaller
            work.execute()
            assert work.postprocess().indices[0] == runtime.predict(FRAME).indices[0]


def test_a_runtime_on_a_lighter_model_is_not_offered_it_again(tmp_path):
    bundle = made(tmp_path, "1,3,64,64", (64, 64), lighter=1)
    with Runtime.load(bundle.folder) as runtime, runtime.with_artefact(runtime.bundle.lighter[0]) as lighter:
        assert [one.name for one in levels_of(lighter)] == ["full", "every 2nd frame"]
