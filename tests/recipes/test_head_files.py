"""A detector's head is one file: nothing else of ours names it, and a package may bring its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from fixture_models import model

import edgeopt
from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.recipes import heads
from edgeopt.recipes.heads import find_head
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.recipe import Postprocess, find_recipe
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.system.declared import registry
from edgeopt.tasks import make_task

PACKAGE = Path(edgeopt.__file__).parent
WORDS = {"columns", "detections"}
"""Heads whose names are words of other things too."""
NAMED_BY = {"recipes/drafting/hugging_face.py", "recipes/metadata.py"}
"""Which head an architecture of transformers has; a word that Ultralytics writes into a description."""
TURNED = """
from dataclasses import replace

from edgeopt.recipes.heads import yolov8


def _turned(outputs):
    return [output.transpose(0, 2, 1) for output in outputs]


def _write(rows, outputs):
    (output,) = outputs
    name = rows.nodes("Transpose", output.name, perm=[0, 2, 1])
    shape = (output.shape[0], output.shape[2], output.shape[1])
    return yolov8.HEAD.write(rows, [replace(output, name=name, shape=shape)])


HEAD = replace(
    yolov8.HEAD,
    why_unfit=lambda shapes, numbers, size: "" if len(shapes[0]) == 3 else "1 x boxes x (4 + classes)",
    decode=lambda outputs, *numbers: yolov8.HEAD.decode(_turned(outputs), *numbers),
    write=_write,
    count_classes=lambda shapes: shapes[0][2] - 4,
)
"""


def forget() -> None:
    """Installed packages do not change in a process, so that they are read once."""
    registry.names_in.cache_clear()
    registry._installed.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package whose head has the numbers of YOLOv8 in rows."""
    package = tmp_path / "turned-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: turned\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[edgeopt.recipes.heads]\nturned = turned_head\n")
    (tmp_path / "turned_head.py").write_text(TURNED)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield
    forget()


def test_a_head_of_another_package_is_checked_decoded_and_embedded(installed: None) -> None:
    recipe = replace(find_recipe("yolox").with_size(64, 96), postprocess=Postprocess("turned"), class_names=())
    net = model("turned (float[1,3,64,96] x, float[1,126,9] raw) => (float[1,126,9] y) { y = Identity(raw) }")
    raw = np.zeros((1, 126, 9), np.float32)
    raw[0, 7, :4], raw[0, 7, 6] = (32, 18, 24, 16), 0.72
    task = make_task(recipe, net.inputs, net.outputs, evaluating=False)
    answer = task.postprocess({"y": raw}, Geometry.of_input((64, 96)))
    np.testing.assert_allclose(answer.boxes, [[20, 10, 44, 26]], atol=1e-4)
    assert answer.classes.tolist() == [2]
    session = ort.InferenceSession(embed_postprocess(net, recipe).data, providers=["CPUExecutionProvider"])
    boxes, *_ = session.run(None, {"x": np.zeros((1, 3, 64, 96), np.float32), "raw": raw})
    np.testing.assert_allclose(boxes, answer.boxes, atol=1e-4)
    flat = model("flat (float[1,3,64,96] x, float[126,9] raw) => (float[126,9] y) { y = Identity(raw) }")
    with pytest.raises(UnsupportedError, match=r"decoder 'turned' reads 1 x boxes x \(4 \+ classes\)"):
        make_task(recipe, flat.inputs, flat.outputs, evaluating=False)


def test_a_head_that_nobody_has_is_told_with_those_there_are() -> None:
    with pytest.raises(NotFoundError, match="no decoder of task detection named 'turned'") as refused:
        find_head("turned")
    assert "choose from: columns, dbnet" in refused.value.remedy


def test_no_file_but_its_own_names_a_head() -> None:
    names = "|".join(sorted({*registry.names(heads)} - WORDS))
    for path in PACKAGE.rglob("*.py"):
        told = re.search(rf"""["']({names})["']""", path.read_text("utf-8"))
        assert told is None or str(path.relative_to(PACKAGE)) in NAMED_BY, f"{path} names {told}"
