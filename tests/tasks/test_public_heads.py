"""UltraFace and NanoDet by their authors' own scripts, against the authors' own reading of the outputs.

No package carries them as they are: EDGEOPT_ULTRAFACE and EDGEOPT_NANODET name checkouts of their repositories, and
EDGEOPT_HEADS a Python that has what they need (torch, torchvision, onnx, onnxruntime, onnxsim, OpenCV; NanoDet's
`requirements.txt`), if this one has not. `tests/heads` holds small ones that need none of this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks import make_task

PROGRAM = Path(__file__).parents[1] / "fixtures" / "fixture_public_heads.py"
REPOSITORIES = {
    "EDGEOPT_ULTRAFACE": "https://github.com/Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB",
    "EDGEOPT_NANODET": "https://github.com/RangiLyu/nanodet",
}


@pytest.mark.parametrize(
    ("kind", "variable", "recipe", "least", "overlap"),
    [
        ("slim", "EDGEOPT_ULTRAFACE", "ultraface", 0.85, 0.3),
        ("RFB", "EDGEOPT_ULTRAFACE", "ultraface", 0.85, 0.3),
        ("nanodet", "EDGEOPT_NANODET", "nanodet", 0.6, 0.6),
        ("nanodet_plus", "EDGEOPT_NANODET", "nanodet_plus", 0.6, 0.6),
    ],
)
def test_a_repositorys_own_export_is_read_as_the_repository_reads_it(
    kind: str, variable: str, recipe: str, least: float, overlap: float, tmp_path: Path
) -> None:
    checkout = os.environ.get(variable)
    if not checkout:
        pytest.skip(f"{variable} names no checkout: git clone {REPOSITORIES[variable]}")
    size = (240, 320) if variable == "EDGEOPT_ULTRAFACE" else (320, 320)
    picture = np.random.default_rng(1).normal(0, 1, (1, 3, *size)).astype(np.float32)
    np.save(tmp_path / "picture.npy", picture)
    python = os.environ.get("EDGEOPT_HEADS", sys.executable)
    ran = subprocess.run(
        [python, PROGRAM, kind, checkout, tmp_path], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    wanted = without_second_classes(dict(np.load(tmp_path / "found.npz")))

    model = Model(onnx.load(tmp_path / "net.onnx"), kind)
    chosen = choose_recipe(None, None, model.inputs, model.outputs, model.metadata).recipe
    assert chosen.name == recipe
    numbers = replace(chosen.postprocess, score_threshold=least, iou_threshold=overlap)
    task = make_task(replace(chosen, postprocess=numbers), model.inputs, model.outputs, evaluating=False)
    session = EXECUTOR.open(model.data, SessionOptions())
    outputs = session.run({model.inputs[0].name: picture})
    session.close()
    found = task.postprocess(outputs, Geometry.of_input(size))

    assert len(found) == len(wanted["scores"]) >= 5
    order = np.argsort(-wanted["scores"], kind="stable")
    np.testing.assert_allclose(found.scores, wanted["scores"][order], atol=1e-4)
    np.testing.assert_array_equal(found.classes, wanted["classes"][order])
    theirs, away = wanted["boxes"][order], 0.05
    if variable == "EDGEOPT_ULTRAFACE":  # cut to whole pixels, and not to the picture
        theirs, away = np.clip(theirs, 0, [size[1], size[0]] * 2), 1.01
    np.testing.assert_allclose(found.boxes, theirs, atol=away)


def without_second_classes(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the best class of each box: NanoDet tells a box once for each class that is above the threshold."""
    best: dict[tuple[float, ...], int] = {}
    for i in np.argsort(found["scores"], kind="stable").tolist():
        best[tuple(found["boxes"][i].round(2).tolist())] = i
    rows = sorted(best.values()) if found["boxes"].dtype.kind == "f" else [*range(len(found["scores"]))]
    return {name: one[rows] for name, one in found.items()}
