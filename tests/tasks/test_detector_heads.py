"""A model laid out as a family's exporter writes it is recognised, and its boxes are those of a plain reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
import pytest
from detector_decoders import DECODERS
from detector_heads import SIZE, STRIDES, Model, anchored, answers, dbnet, nanodet, queries, suppressed, yolov8

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.recognise import choose_recipe

Box = tuple[float, float, float, float, float, int]
"""Left, top, right, bottom, score, class."""


def sigmoid(x: float) -> float:
    return 1 / (1 + float(np.exp(-x)))


def decoded(model: Model, name: str, threshold: float) -> list[Box]:
    """Return what the recipe that is chosen without being named finds."""
    choice = choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
    assert choice.recipe.name == name
    recipe, outputs = choice.recipe, answers(model)
    ordered = [outputs[one.name] for one in model.outputs]
    numbers = replace(recipe.postprocess, score_threshold=threshold)
    boxes, scores, classes = DECODERS[numbers.decoder](ordered, numbers, tuple(recipe.input.size), threshold)
    assert len(boxes) == len(scores) == len(classes)
    return [(*map(float, box), float(s), int(c)) for box, s, c in zip(boxes, scores, classes, strict=True)]


def require_same(found: Sequence[Box], wanted: Sequence[Box], least: int = 5) -> None:
    assert len(wanted) >= least
    ordered = [sorted(boxes, key=lambda one: (one[5], round(one[0] * 50), one)) for boxes in (found, wanted)]
    np.testing.assert_allclose(*ordered, rtol=1e-3, atol=1e-2)


def yolov8_boxes(classes: int, bins: int, threshold: float) -> list[Box]:
    """Go through the raw planes cell by cell."""
    raw, found = answers(yolov8("planes", classes, bins)), []
    for stride in STRIDES:
        sides, scores = raw[f"box{stride}"][0], raw[f"class{stride}"][0]
        for y in range(SIZE[0] // stride):
            for x in range(SIZE[1] // stride):
                best = int(scores[:, y, x].argmax())
                if (score := sigmoid(scores[best, y, x])) <= threshold:
                    continue
                far = []
                for side in range(4):
                    values = sides[side * bins : (side + 1) * bins, y, x].astype(np.float64)
                    shares = np.exp(values) / np.exp(values).sum()
                    far.append(float((shares * range(bins)).sum()) if bins > 1 else float(values[0]))
                left, top, right, bottom = x + 0.5 - far[0], y + 0.5 - far[1], x + 0.5 + far[2], y + 0.5 + far[3]
                found.append((left * stride, top * stride, right * stride, bottom * stride, score, best))
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("pixels", "yolov8"),
        ("rows", "yolov8_dfl"),
        ("pair", "yolov8_dfl"),
        ("planes", "yolov8_dfl"),
        ("summed", "yolov8_rknn"),
    ],
)
@pytest.mark.parametrize("classes", [1, 3, 80])
def test_yolov8_with_and_without_its_last_part(kind, name, classes):
    require_same(decoded(yolov8(kind, classes), name, 0.6), yolov8_boxes(classes, 16, 0.6))


def test_yolo26_and_v10_end_to_end():
    found = decoded(yolov8("end_to_end", 3, 1), "yolov10", 0.0)
    every = sorted(yolov8_boxes(3, 1, 0.0), key=lambda one: -one[4])
    assert len(found) == 30
    np.testing.assert_allclose(found[0], every[0], rtol=1e-3, atol=1e-2)
    places = {tuple(np.round(one[:4], 2)) for one in every[:30]}
    assert {tuple(np.round(one[:4], 2)) for one in found} <= places


def queries_boxes(found: dict[str, np.ndarray], threshold: float, *, is_softmax: bool) -> list[Box]:
    """Follow the image processors of transformers, query by query."""
    kept = []
    for logits, (x, y, w, h) in zip(found["logits"][0], found["pred_boxes"][0], strict=True):
        box = [(x - w / 2) * SIZE[1], (y - h / 2) * SIZE[0], (x + w / 2) * SIZE[1], (y + h / 2) * SIZE[0]]
        if is_softmax:
            shares = (np.exp(logits) / np.exp(logits).sum())[:-1]
            pairs = [(float(shares.max()), int(shares.argmax()))]
        else:
            pairs = [(sigmoid(value), i) for i, value in enumerate(logits)]
        kept += [(*map(float, box), score, label) for score, label in pairs if score > threshold]
    return kept


@pytest.mark.parametrize(("classes", "count"), [(1, 100), (4, 300), (91, 40)])
def test_detr_and_its_class_that_is_no_object(classes, count):
    model = queries(count, classes + 1)
    require_same(decoded(model, "detr", 0.05), queries_boxes(dict(answers(model)), 0.05, is_softmax=True))


@pytest.mark.parametrize(("classes", "count"), [(2, 300), (80, 100), (5, 40)])
def test_rtdetr(classes, count):
    model = queries(count, classes, refines=True)
    wanted = queries_boxes(dict(answers(model)), 0.6, is_softmax=False)
    require_same(decoded(model, "rtdetr", 0.6), wanted)
    told = {"description": "Ultralytics rtdetr-l model", "task": "detect", "stride": "32"}
    told["names"] = repr({i: f"thing {i}" for i in range(classes)})
    wanted = queries_boxes(dict(answers(queries(300, classes, refines=True))), 0.6, is_softmax=False)
    require_same(decoded(queries(300, classes, joined=told, refines=True), "rtdetr", 0.6), wanted)


def test_boxes_of_queries_that_no_operator_explains_need_the_recipes_name():
    model = queries(100, 8)
    unknown = [replace(one, op="", before="") for one in model.outputs]
    with pytest.raises(EdgeoptError, match="no recipe fits") as refused:
        choose_recipe(None, None, model.inputs, unknown, {})
    assert "detr, rtdetr" in refused.value.remedy


def moved(prior: Sequence[float], offset: Sequence[float]) -> Sequence[float]:
    """Return corners of an anchor, centre and size, that is moved and stretched."""
    x, y = prior[0] + 0.1 * offset[0] * prior[2], prior[1] + 0.1 * offset[1] * prior[3]
    w, h = prior[2] * np.exp(0.2 * offset[2]), prior[3] * np.exp(0.2 * offset[3])
    return [float(value) for value in (x - w / 2, y - h / 2, x + w / 2, y + h / 2)]


def test_ssd_of_torchvision():
    """Anchors as `DefaultBoxGenerator` with the steps of ssd300_vgg16 makes them: sides alone are clipped."""
    names, counts, steps = ("bbox_regression", "cls_logits"), (4, 6, 6, 6, 4, 4), (8, 16, 32, 64, 100, 300)
    model = anchored((300, 300), steps, counts, names, (4, 21))
    found, scales, kept = answers(model), (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05), []
    ratios, priors = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,)), []
    for k, step in enumerate(steps):
        between = np.sqrt(scales[k] * scales[k + 1])
        sides = [(scales[k], scales[k]), (between, between)]
        for ratio in ratios[k]:
            wide, flat = scales[k] * np.sqrt(ratio), scales[k] / np.sqrt(ratio)
            sides += [(wide, flat), (flat, wide)]
        cells = -(-300 // step)
        for y in range(cells):
            for x in range(cells):
                middle = (x + 0.5) / (300 / step), (y + 0.5) / (300 / step)
                priors += [np.array([*middle, *np.clip(one, 0, 1)]) * 300 for one in sides]
    for prior, offset, logits in zip(priors, found["bbox_regression"][0], found["cls_logits"][0], strict=True):
        shares = np.exp(logits) / np.exp(logits).sum()
        best = int(shares[1:].argmax())
        if shares[best + 1] > 0.4:
            kept.append((*moved(prior, offset), float(shares[best + 1]), best))
    require_same(decoded(model, "ssd300", 0.4), kept)


def test_ssd_of_tensorflow():
    """Anchors as `create_ssd_anchors` makes them: y before x, the lowest layer with three."""
    names, strides = ("raw_outputs/box_encodings", "raw_outputs/class_predictions"), (16, 32, 64, 128, 256, 512)
    model = anchored((300, 300), strides, (3, 6, 6, 6, 6, 6), names, (4, 91), probabilities="Sigmoid")
    found, scales, kept, priors = answers(model), [*np.linspace(0.2, 0.95, 6), 1.0], [], []
    for k, cells in enumerate((19, 10, 5, 3, 2, 1)):
        pairs = [(scales[k], ratio) for ratio in (1, 2, 0.5, 3, 1 / 3)] + [(np.sqrt(scales[k] * scales[k + 1]), 1)]
        pairs = pairs if k else [(0.1, 1), (0.2, 2), (0.2, 0.5)]
        for y in range(cells):
            for x in range(cells):
                places = (x + 0.5) / cells, (y + 0.5) / cells
                priors += [np.array([*places, s * np.sqrt(a), s / np.sqrt(a)]) * 300 for s, a in pairs]
    for prior, (y, x, h, w), scores in zip(priors, found[names[0]][0], found[names[1]][0], strict=True):
        best = int(scores[1:].argmax())
        if scores[best + 1] > 0.95:
            kept.append((*moved(prior, (x, y, w, h)), float(scores[best + 1]), best))
    require_same(decoded(model, "ssd_mobilenet", 0.95), kept)


def test_retinaface_on_an_input_that_no_stride_divides():
    size, names = (100, 148), ("output", "outputt", "outputtt")
    model = anchored(size, STRIDES, (2, 2, 2), names, (4, 2, 10), probabilities="Softmax", picture="input")
    found, kept, row = answers(model), [], 0
    for stride, sides in zip(STRIDES, ((16, 32), (64, 128), (256, 512)), strict=True):
        for y in range(-(-size[0] // stride)):
            for x in range(-(-size[1] // stride)):
                for side in sides:
                    score = float(found["outputt"][0, row, 1])
                    if score > 0.7:
                        prior = ((x + 0.5) * stride, (y + 0.5) * stride, side, side)
                        kept.append((*moved(prior, found["output"][0, row]), score, 0))
                    row += 1
    require_same(decoded(model, "retinaface", 0.7), kept)


@pytest.mark.parametrize(
    ("name", "strides", "shift"), [("nanodet_plus", (8, 16, 32, 64), 0.0), ("nanodet", STRIDES, 0.5)]
)
@pytest.mark.parametrize("size", [(64, 96), (104, 88)])
def test_nanodet(name, strides, shift, size):
    model, kept, row = nanodet(size, strides, 80), [], 0
    found = answers(model)["output"][0]
    for stride in strides:
        for y in range(-(-size[0] // stride)):
            for x in range(-(-size[1] // stride)):
                best = int(found[row, :80].argmax())
                if found[row, best] > 0.9:
                    far = []
                    for side in range(4):
                        values = np.exp(found[row, 80 + 8 * side : 88 + 8 * side].astype(np.float64))
                        far.append(float((values / values.sum() * range(8)).sum()) * stride)
                    cx, cy = (x + shift) * stride, (y + shift) * stride
                    box = cx - far[0], cy - far[1], cx + far[2], cy + far[3]
                    inside = [min(max(place, 0), size[1 - i % 2]) for i, place in enumerate(box)]
                    kept.append((*inside, float(found[row, best]), best))
                row += 1
    require_same(decoded(model, name, 0.9), kept)


def test_dbnet():
    """As PaddleOCR: a rounded polygon around each rectangle, made of points, and the rectangle around that."""
    size = (96, 128)
    model = dbnet(size)
    found, kept = answers(model)["sigmoid_0.tmp_0"][0, 0], []
    regions, _ = cv2.findContours((found > 0.3).astype(np.uint8) * 255, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    circle = np.stack([np.cos(turn := np.linspace(0, 2 * np.pi, 721)), np.sin(turn)], axis=1)
    for region in regions:
        rectangle = cv2.minAreaRect(region)
        corners, sides = cv2.boxPoints(rectangle), rectangle[1]
        if min(sides) < 3:
            continue
        mask = np.zeros(size, np.uint8)
        low = np.floor(corners.min(axis=0)).clip(0)
        cv2.fillPoly(mask, [((corners - low).astype(np.int32) + low.astype(np.int32))], 1)
        score = float(found[mask > 0].mean())
        away = cv2.contourArea(corners) * 1.5 / cv2.arcLength(corners, True)
        outer = np.concatenate([corner + away * circle for corner in corners]).astype(np.float32)
        around = cv2.boxPoints(cv2.minAreaRect(outer))
        if score > 0.4 and min(cv2.minAreaRect(outer)[1]) >= 5:
            kept.append((*map(float, (*around.min(axis=0), *around.max(axis=0))), score, 0))
    got = decoded(model, "dbnet", 0.4)
    assert len(got) == len(kept) >= 5
    ordered = [sorted(boxes, key=lambda one: (round(one[4], 3), one)) for boxes in (got, kept)]
    np.testing.assert_allclose(*ordered, rtol=1e-3, atol=0.05)


def test_a_mask_that_ends_in_a_convolution_is_not_read_as_text():
    model = dbnet((96, 128), ends_in="Conv")
    with pytest.raises(EdgeoptError) as refused:
        choose_recipe(None, None, model.inputs, model.outputs, {})
    assert "dbnet" in f"{refused.value} {refused.value.remedy}"


@pytest.mark.parametrize("kind", ["torchvision", "tensorflow"])
def test_an_ssd_that_is_exported_whole(kind):
    """Both kinds hold the same net, so the boxes of one are those of the other."""
    found = answers(suppressed("torchvision"))
    rows = zip(found["boxes"].tolist(), found["scores"].tolist(), found["labels"].tolist(), strict=True)
    kept = [(*box, score, label - 1) for box, score, label in rows if score > 0.5]
    require_same(decoded(suppressed(kind), f"{kind}_detection", 0.5), kept)
