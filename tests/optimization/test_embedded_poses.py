"""Bundles whose model reads maps of points itself: app, `run --json` and `compare` take them as any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from figures import POINTS, rod, write_rods
from fixture_bundles import packed

from edgeopt import Runtime, compare
from edgeopt.cli import cli
from edgeopt.graph.model import load_model
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.inputs.preprocess import Input, Preprocess, Resize
from edgeopt.recipes.recipe import Centres, find_recipe
from edgeopt.recipes.scoring.keypoints import Keypoints
from edgeopt.runtime.bundle import write_bundle
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.system.declared.target import find_target

NETWORK = Path(__file__).parents[1] / "trained" / "keypoints.onnx"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of the trained network alone, and with its maps read inside."""
    folder, target, model = tmp_path_factory.mktemp("poses"), find_target("cpu-x86-vnni"), load_model(NETWORK)
    recipe, told = find_recipe("hrnet"), Keypoints(names=POINTS, sigmas=(0.06, 0.06, 0.06))
    numbers = replace(recipe.postprocess, centres=Centres.MIDDLE)
    recipe = replace(recipe, postprocess=numbers, keypoints=told, input=Input(model.inputs[0].name, (64, 64)))
    plain = Preprocess(resize=Resize.STRETCH, scale=1 / 255)
    recipe = replace(recipe, name="rods", preprocess=plain, labels="", class_names=("rod",))
    for name, one, parts in (
        ("alone", model, ()),
        ("inside", embed_postprocess(model, recipe), (Embedded.POSTPROCESS,)),
    ):
        made = [packed("model.onnx", "fp32", one.data, target, 1)]
        write_bundle(folder / name, made, target, recipe.with_embedded(*parts), {}, {})
    return {name: folder / name for name in ("alone", "inside")}


def test_a_runtime_gives_the_same_poses(bundles: dict[str, Path]) -> None:
    frames = [cv2.resize(rod(i)[0], (90 + 20 * i, 200 - 30 * i)) for i in range(4)]
    with Runtime.load(bundles["alone"]) as alone, Runtime.load(bundles["inside"]) as inside:
        assert not inside.notes
        for wanted, found in zip(alone.predict_batch(frames), inside.predict_batch(frames), strict=True):
            assert len(found) == len(wanted) == 1
            np.testing.assert_allclose(found.points, wanted.points, rtol=1e-6, atol=1e-4)
            np.testing.assert_allclose(found.boxes, wanted.boxes, rtol=1e-6, atol=1e-4)
            np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)


def test_run_tells_the_same_poses_as_json(bundles: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "rod.png"
    cv2.imwrite(str(file), rod(3)[0])
    told = []
    for name in ("alone", "inside"):
        shown = CliRunner().invoke(cli, ["run", str(bundles[name]), str(file), "--json"])
        assert shown.exit_code == 0, shown.output
        told.append(json.loads(shown.stdout)["poses"])
    assert told[0] == told[1]
    assert [one["name"] for one in told[0][0]["keypoints"]] == [*POINTS]


def test_compare_finds_the_same_poses_and_says_that_a_threshold_is_inside(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    labels = write_rods(tmp_path, range(12))
    found = compare(bundles["alone"], bundles["inside"], eval=str(labels), seconds=0.2)
    assert any("drops boxes below 0.2" in str(note) for note in found.notes)
    before, after = (row.quality.value for row in found.rows)
    assert before == pytest.approx(after, abs=1e-9)
    assert before > 0.8
