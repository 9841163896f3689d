"""Heads by Ultralytics' own exporter are recognised, and read as Ultralytics reads them; masks and poses go to JSON.

`tests/heads` holds random weights, and what Ultralytics' own suppression and masks find for one made-up input:
`benchmarks/heads/ultralytics_family.py --store` makes both, and without `--store` does the same with every whole model.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks import make_task

HEADS = Path(__file__).parents[1] / "heads"
SIZE = (64, 96)


def head(name: str, *, with_metadata: bool = True) -> Model:
    proto = onnx.load_model_from_string(gzip.decompress((HEADS / f"{name}.onnx.gz").read_bytes()))
    if not with_metadata:
        del proto.metadata_props[:]
    return Model(proto, name)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("v8_detect", "yolov8"),
        ("v10_detect", "yolov10"),
        ("yolo26_detect", "yolov10"),
        ("v8_segment", "yolov8_segment"),
        ("yolo26_segment", "yolo26_segment"),
        ("v8_pose", "yolov8_pose"),
        ("yolo26_pose", "yolo26_pose"),
        ("rtdetr_ultralytics", "rtdetr_rows"),
    ],
)
def test_a_head_is_recognised_and_read_as_ultralytics_reads_it(name: str, recipe: str) -> None:
    model = head(name)
    choice = choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
    assert choice.recipe.name == recipe
    picture = np.random.default_rng(1).uniform(0, 1, model.inputs[0].shape).astype(np.float32)
    session = EXECUTOR.open(model.data, SessionOptions())
    outputs = session.run({"images": picture})
    session.close()
    numbers = replace(choice.recipe.postprocess, score_threshold=0.25, iou_threshold=0.45, max_detections=100)
    bound = replace(choice.recipe, postprocess=numbers)
    task = make_task(bound, model.inputs, model.outputs, evaluating=False)
    found = task.postprocess(outputs, Geometry.of_input(SIZE))
    wanted = np.load(HEADS / f"{name}.npz")
    assert len(found) == len(wanted["scores"]) >= 5
    order, other = (np.lexsort((one[:, 0], -scores.round(3))) for one, scores in _rows(found, wanted))
    for part in {"boxes", "scores", "classes", "points"} & set(wanted.files):
        np.testing.assert_allclose(getattr(found, part)[order], wanted[part][other], rtol=1e-3, atol=5e-2)
    if "masks" in wanted.files:
        count = len(found) * SIZE[0] * SIZE[1]
        masks = np.unpackbits(wanted["masks"])[:count].reshape(len(found), *SIZE)
        differ = sum(np.count_nonzero(found.mask(a) != masks[b]) for a, b in zip(order, other, strict=True))
        assert differ <= 2 * len(found)
        assert masks.sum() > 200
    assert next(iter(task.as_json(found).values()))


def _rows(found, wanted):
    return (found.boxes, found.scores), (wanted["boxes"], wanted["scores"])


def test_masks_are_recognised_without_metadata_and_poses_are_not() -> None:
    for name, recipe in (("v8_segment", "yolov8_segment"), ("yolo26_segment", "yolo26_segment")):
        model = head(name, with_metadata=False)
        assert choose_recipe(None, None, model.inputs, model.outputs, {}).recipe.name == recipe
    model = head("v8_pose", with_metadata=False)
    assert choose_recipe(None, None, model.inputs, model.outputs, {}).recipe.task == "detection"


def test_turned_boxes_are_refused() -> None:
    model = head("v8_obb")
    with pytest.raises(
        UnsupportedError, match=r"this model is for 'obb' \(oriented .* turned ones\), which no recipe reads"
    ):
        choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
