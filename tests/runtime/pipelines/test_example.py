"""The example of the page runs: its file is the page's, its classifier is made, its look-up answers."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from ast import literal_eval
from pathlib import Path

import cv2
import pytest

from edgeopt.measurement.pipelines.given import open_pipeline

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pipeline"
PAGE = (ROOT / "docs" / "pipelines.md").read_text("utf-8")


@pytest.fixture(scope="session")
def example(tmp_path_factory) -> Path:
    """A copy of the example with its classifier, which the calibration pictures of the repository fit."""
    folder = tmp_path_factory.mktemp("example")
    for file in EXAMPLE.glob("*.*"):
        if file.suffix != ".onnx":
            shutil.copy(file, folder)
    described = (folder / "pipeline.toml").read_text("utf-8")
    calib = (ROOT / "models" / "digits_detector" / "calib").as_posix()
    (folder / "pipeline.toml").write_text(described.replace("../../models/digits_detector/calib", calib), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_classifier.py", str(folder / "classifier.onnx")])
        runpy.run_path(str(EXAMPLE / "make_classifier.py"), run_name="__main__")
    return folder


def test_the_page_shows_the_file_itself():
    shown = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown == [(EXAMPLE / "pipeline.toml").read_text("utf-8")]


def test_the_page_runs_on_its_bundle(example, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out" / "shop-cpu"
    open_pipeline(str(example / "pipeline.toml"), target="cpu", threads=1, code=example, folder=folder)
    picture = sorted((ROOT / "models" / "digits_detector" / "calib").glob("*.jpg"))[1]
    cv2.imwrite(str(tmp_path / "frame.jpg"), cv2.imread(str(picture)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(example))
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], {})
    products, runs, lookup_ms = capsys.readouterr().out.splitlines()
    assert len(literal_eval(products)) == int(runs) >= 5
    assert float(lookup_ms) > 0
