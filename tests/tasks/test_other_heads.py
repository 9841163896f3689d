"""Graphs by the exporters of other families are recognised, and read as the families themselves read them.

`tests/heads` holds them with random weights, and what the family's own code finds for one made-up input. The scripts
of `benchmarks/heads` make both; its README.md says of which packages.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import onnx
import pytest
from detector_decoders import DECODERS, landmarks

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.drafting.raw_values import fitting_numbers
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks import make_task
from edgeopt.tasks.detection.boxes import Detections

HEADS = Path(__file__).parents[1] / "heads"
LEAST = 0.6
"""Score above which the families were asked."""
FREE_SIZE = (128, 192)
"""Shape of an input whose height and width are free."""


def head(name: str) -> tuple[Model, Recipe, tuple[int, int], dict[str, np.ndarray]]:
    """Return a graph, the recipe that is recognised, the input's size and the outputs for one made-up picture."""
    proto = onnx.load_model_from_string(gzip.decompress((HEADS / f"{name}.onnx.gz").read_bytes()))
    model = Model(proto, name)
    recipe = choose_recipe(None, None, model.inputs, model.outputs, model.metadata).recipe
    shape = [*model.inputs[0].shape]
    if shape[0] != 3:
        shape[0] = 1
    height, width = (one if isinstance(one, int) else other for one, other in zip(shape[-2:], FREE_SIZE, strict=True))
    picture = np.random.default_rng(1).uniform(0, 1, (*shape[:-2], height, width)).astype(np.float32)
    session = EXECUTOR.open(model.data, SessionOptions())
    outputs = session.run({model.inputs[0].name: picture})
    session.close()
    return model, recipe.with_size(height, width), (height, width), dict(outputs)


def nearest(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> np.ndarray:
    """Return for each of the family's things the row of ours that is nearest, each another one."""
    assert len(found["scores"]) == len(wanted["scores"]) >= 3
    apart = np.abs(found["boxes"][None] - wanted["boxes"][:, None]).sum(2)
    apart += 100 * np.abs(found["scores"][None] - wanted["scores"][:, None])
    apart += 1e-6 * np.abs(np.subtract.outer(np.arange(len(apart)), np.arange(len(apart))))  # alike: in their order
    rows = (apart + 1000 * (found["classes"][None] != wanted["classes"][:, None])).argmin(1)
    assert len(set(rows.tolist())) == len(rows)
    return rows


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("retinaface", "retinaface"),
        ("ultraface", "ultraface"),
        ("nanodet_plus", "nanodet_plus"),
        ("nanodet", "nanodet"),
        ("nanodet_apart", "nanodet"),
        ("dbnet_paddle", "dbnet"),
        ("dbnet_doctr", "dbnet_doctr"),
        ("ssd300", "ssd300"),
        ("yolox", "yolox"),
        ("yolox_decoded", "yolox"),
        ("yolov5", "yolov5"),
        ("detr", "detr"),
        ("rtdetr", "rtdetr"),
    ],
)
def test_candidates_are_those_of_the_family(name: str, recipe: str) -> None:
    model, chosen, size, outputs = head(name)
    assert chosen.name == recipe
    ordered = [outputs[one.name] for one in model.outputs]
    numbers = fitting_numbers(chosen.postprocess, size, [ordered])  # a YOLOX may have its grid applied
    boxes, scores, classes = DECODERS[numbers.decoder](ordered, numbers, size, LEAST)
    wanted = dict(np.load(HEADS / f"{name}.npz"))
    if name.startswith(("dbnet", "ssd")):  # these families clip boxes before suppression
        boxes = np.clip(boxes, 0, [size[1], size[0], size[1], size[0]])
    found = {"boxes": boxes, "scores": scores, "classes": classes}
    rows = nearest(found, wanted)
    away = 2.01 if name == "dbnet_paddle" else 0.05  # PaddleOCR cuts points to whole pixels twice
    np.testing.assert_allclose(boxes[rows], wanted["boxes"], rtol=1e-3, atol=away)
    np.testing.assert_allclose(scores[rows], wanted["scores"], rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(classes[rows], wanted["classes"])
    if "points" in wanted:
        points = landmarks(ordered, numbers, size, LEAST)
        np.testing.assert_allclose(points[rows], wanted["points"], rtol=1e-3, atol=0.05)


def test_points_of_a_face_are_told_and_drawn() -> None:
    model, chosen, size, outputs = head("retinaface")
    task = make_task(chosen, model.inputs, model.outputs, evaluating=False)
    answer = task.postprocess(outputs, Geometry(0.5, 0.5, 0, 0, 2 * size[1], 2 * size[0]))
    assert answer.points is not None
    assert answer.points.shape == (len(answer), 5, 2)
    told = task.as_json(answer)["detections"][0]["points"]
    assert [one["name"] for one in told] == ["left_eye", "right_eye", "nose", "left_mouth", "right_mouth"]
    assert (told[0]["x"], told[0]["y"]) == pytest.approx(answer.points[0, 0].tolist(), abs=0.01)
    assert f"(left_eye {answer.points[0, 0, 0]:.0f}, " in task.as_text(answer)
    place = np.array([[[60, 80]]], np.float32).repeat(5, axis=1)
    one = Detections(np.array([[10, 20, 30, 40]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64), place)
    drawn = task.draw(np.zeros((2 * size[0], 2 * size[1], 3), np.uint8), one, 2 * size[0])
    assert drawn[80, 60].any()
    assert not drawn[100, 60].any()


BOXES = (
    TensorSpec("boxes", "float32", ("Concatboxes_dim_0", 4)),
    TensorSpec("labels", "int64", ("Gatherlabels_dim_0",)),
    TensorSpec("scores", "float32", ("Gatherlabels_dim_0",)),
)
MASKS = TensorSpec("masks", "float32", ("a", "b", "c", "d"))
POINTS = TensorSpec("keypoints", "float32", ("a", "b", "c")), TensorSpec("keypoints_scores", "float32", ("a", "b"))


@pytest.mark.parametrize(
    ("more", "recipe"),
    [((), "torchvision_detection"), ((MASKS,), "torchvision_instances"), (POINTS, "torchvision_keypoints")],
)
@pytest.mark.parametrize("batch", [(), (1,)])
def test_an_export_of_torchvision_takes_a_picture_without_a_batch(more, recipe: str, batch: tuple[int, ...]) -> None:
    """Names and free sizes as torchvision 0.29 exports them; it takes a list of pictures."""
    shape, outputs = (*batch, 3, 96, 128), [*BOXES, *more]
    inputs = [TensorSpec("images_tensors", "float32", shape)]
    chosen = choose_recipe(None, None, inputs, outputs, {}).recipe
    assert chosen.name == recipe
    assert chosen.input.layout == ("NCHW" if batch else "CHW")
    frame = np.random.default_rng(2).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    fed, geometry = make_task(chosen, inputs, outputs, evaluating=False).preprocess(frame)
    assert fed["images_tensors"].shape == shape
    np.testing.assert_allclose(
        fed["images_tensors"].reshape(3, 96, 128), frame[..., ::-1].transpose(2, 0, 1) / 255, atol=1e-6
    )
    assert geometry == Geometry.of_input((96, 128))


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("torchvision_mask", "torchvision_instances"), ("torchvision_keypoint", "torchvision_keypoints")],
)
def test_masks_and_points_of_torchvision_are_its_own(name: str, recipe: str) -> None:
    model, chosen, size, outputs = head(name)
    assert chosen.name == recipe
    answer = make_task(chosen, model.inputs, model.outputs, evaluating=False).postprocess(
        outputs, Geometry.of_input(size)
    )
    kept = np.flatnonzero(answer.scores > LEAST)
    wanted = dict(np.load(HEADS / f"{name}.npz"))
    found = {part: getattr(answer, part)[kept] for part in ("boxes", "scores", "classes")}
    rows = nearest(found, wanted)
    for part, one in found.items():
        np.testing.assert_allclose(one[rows], wanted[part], rtol=1e-3, atol=0.05)
    if "points" in wanted:
        np.testing.assert_allclose(answer.points[kept[rows]], wanted["points"], rtol=1e-3, atol=0.05)
    else:
        masks = np.stack([answer.mask(int(i)) for i in kept[rows]])
        assert np.count_nonzero(masks != wanted["masks"]) <= 2 * len(rows) < wanted["masks"].sum()
