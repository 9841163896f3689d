"""Every task has all of a task, and one from outside goes from the command to the runtime."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import fixture_models
import numpy as np
import pytest
from click.testing import CliRunner

from edgeopt import optimize, tasks
from edgeopt.cli import cli
from edgeopt.graph.model import Model, save_model
from edgeopt.recipes.metrics import metrics_of
from edgeopt.system.declared import registry
from edgeopt.tasks import Task, find_task

ENTRIES = """
[edgeopt.tasks]
light = segmentation.task
[edgeopt.recipes.metrics]
overlap = segmentation.miou
[edgeopt.recipes.labels]
bitmaps = segmentation.masks
"""
RECIPE = """
name = "sky"
task = "light"
description = "light and dark"
license = "ours"
source = "ours"
labels = "classes.txt"
[preprocess]
scale = 0.00392156862745098
[postprocess]
decoder = "argmax"
[evaluation]
metric = "overlap"
"""
NEEDED = [name for name in dir(Task) if not name.startswith("_")] + list(Task.__annotations__)


@pytest.mark.parametrize("name", registry.names(tasks))
def test_a_task_has_all_of_the_protocol(name: str) -> None:
    made = find_task(name)
    for part in NEEDED:
        found, wanted = getattr(made, part), getattr(Task, part, None)
        if callable(wanted):
            assert list(inspect.signature(found).parameters) == list(inspect.signature(wanted).parameters), part
        else:
            assert isinstance(found, property if isinstance(wanted, property) else bool | tuple | None), part
    assert "agreement" in metrics_of(name)


def net() -> Model:
    """Class 1 where the mean of the channels, blurred by a weight, is above a half."""
    hidden, head = np.zeros((16, 3, 3, 3), np.float32), np.zeros((2, 16, 1, 1), np.float32)
    hidden[:, :, 1, 1] = np.abs(fixture_models.numbers(16, 3))
    hidden /= hidden.sum(axis=(1, 2, 3), keepdims=True)
    head[1] = 1 / 16
    text = """sky (float[1,3,32,32] x) => (float[1,2,32,32] y) {
        a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, hidden)
        h = Relu(a)
        y = Conv(h, head, bias)
    }"""
    return fixture_models.model(text, hidden=hidden, head=head, bias=np.array([0.5, 0], np.float32))


def forget() -> None:
    """Installed packages do not change in a process, so that they are read once."""
    registry.names_in.cache_clear()
    registry._installed.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a task of its own, a model, pictures and masks."""
    package = tmp_path / "site" / "segmentation-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: segmentation\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(package.parent))
    forget()
    save_model(net(), tmp_path / "sky.onnx")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "classes.txt").write_text("ground\nsky\n")
    chance = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for i in range(12):
        mask = np.zeros((32, 32), np.uint8)
        mask[: chance.integers(4, 28)] = 1
        picture = np.repeat((mask * 120 + 60)[..., None], 3, axis=2) + chance.integers(0, 40, (32, 32, 3))
        cv2.imwrite(str(tmp_path / "images" / f"{i}.png"), picture.astype(np.uint8))
        cv2.imwrite(str(tmp_path / "masks" / f"{i}.bmp"), mask)
    yield tmp_path
    forget()


def test_a_task_of_another_package_is_scored_deployed_told_and_drawn(installed: Path) -> None:
    report = optimize(
        installed / "sky.onnx",
        out=installed / "out",
        eval=installed / "masks",
        skip=("quantize",),
        threads=1,
        time_limit_s=20,
    )
    assert report.candidates[0].score.metric == "overlap"
    assert report.candidates[0].score.value == 1.0
    sheet = cv2.imread(str(report.folder / "answers.png"))
    assert sheet.shape[0] > 3 * 320
    command = ["run", str(report.folder), str(installed / "images"), "--limit", "1"]
    told = CliRunner().invoke(cli, command)
    assert told.exit_code == 0, told.output
    assert "0.png: ground " in told.stdout
    shown = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert sum(shown["shares"].values()) == pytest.approx(1)
    assert CliRunner().invoke(cli, [*command, "--save", str(installed / "drawn")]).exit_code == 0
    assert cv2.imread(str(installed / "drawn" / "0.png")).shape == (28 + 320 + 4, 320, 3)


def test_labels_of_another_kind_are_refused(installed: Path) -> None:
    (installed / "images" / "classes.csv").write_text("0.png,1\n1.png,0\n")
    command = [
        "optimize",
        str(installed / "sky.onnx"),
        "-t",
        "cpu",
        "--eval",
        str(installed / "images" / "classes.csv"),
    ]
    shown = CliRunner().invoke(cli, [*command, "--out", str(installed / "out")])
    assert shown.exit_code == 1
    assert "classes.csv holds no masks" in shown.output
