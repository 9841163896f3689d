"""A task names the outputs that its decoder reads: scores move with scores, boxes with boxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from detector_decoders import DECODERS, HEADS, WITHOUT, heads_of

from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.recipes.outputs.learned import heads_of as heads_of_task
from edgeopt.recipes.recipe import Postprocess, Scores, read_recipe
from edgeopt.tasks import make_task

SIZE = (64, 96)
CELLS = 96 + 24 + 6
TWO = ((8.0, 8.0, 16.0, 16.0),) * 3
"""Two anchors a stride."""
PLANES = ((8, 12), (4, 6), (2, 3))
FREE = {"dbnet", "dbnet_upright"}
"""Decoders that give no box for each place."""

CASES: dict[str, tuple[Postprocess, tuple[tuple[int, ...], ...]]] = {
    "yolox": (Postprocess("yolox"), ((1, CELLS, 8),)),
    "yolov5": (Postprocess("yolov5", scores=Scores.LOGITS), ((1, CELLS, 8),)),
    "yolov5_heads": (
        Postprocess("yolov5_heads", strides=(8, 16, 32), anchors=TWO),
        tuple((1, 16, *plane) for plane in PLANES),
    ),
    "yolov5_heads, anchors apart": (
        Postprocess("yolov5_heads", strides=(8, 16, 32), anchors=TWO),
        tuple((1, 2, *plane, 8) for plane in PLANES),
    ),
    "yolov8": (Postprocess("yolov8"), ((1, 7, CELLS),)),
    "yolov8_dfl": (Postprocess("yolov8_dfl"), ((1, 64 + 3, CELLS),)),
    "yolov8_dfl, two": (Postprocess("yolov8_dfl"), ((1, 3, CELLS), (1, 64, CELLS))),
    "yolov8_dfl, planes": (
        Postprocess("yolov8_dfl", bins=1),
        tuple((1, count, *plane) for plane in PLANES for count in (4, 3)),
    ),
    "nanodet": (Postprocess("nanodet", strides=(8, 16, 32)), ((1, CELLS, 3 + 32),)),
    "ssd_corners": (Postprocess("ssd_corners", background=True), ((1, 20, 4), (1, 20, 3))),
    "ssd_offsets": (
        Postprocess("ssd_offsets", strides=(8, 16, 32), anchors=TWO, background=True),
        ((1, 2 * CELLS, 4), (1, 2 * CELLS, 3)),
    ),
    "ssd_offsets_yx": (
        Postprocess("ssd_offsets_yx", strides=(8, 16, 32), anchors=TWO, background=True),
        ((1, 2 * CELLS, 4), (1, 2 * CELLS, 3)),
    ),
    "detr": (Postprocess("detr"), ((1, 20, 5), (1, 20, 4))),
    "rtdetr": (Postprocess("rtdetr"), ((1, 20, 5), (1, 20, 4))),
    "rtdetr, one": (Postprocess("rtdetr"), ((1, 300, 7),)),
    "dbnet": (Postprocess("dbnet"), ((1, 1, 16, 24),)),
    "dbnet_upright": (Postprocess("dbnet_upright"), ((1, 1, 16, 24),)),
}


def specs_of(shapes: tuple[tuple[int, ...], ...]) -> list[TensorSpec]:
    return [TensorSpec(f"out{i}", "float32", shape) for i, shape in enumerate(shapes)]


def made_up(specs: list[TensorSpec]) -> Tensors:
    rng = np.random.default_rng(0)
    return {one.name: rng.uniform(0.1, 0.9, one.shape).astype(np.float32) for one in specs}


def shifted(outputs: Tensors, columns: Iterator[Columns], by: float) -> Tensors:
    """Return a copy whose named columns are random others."""
    found, rng = {name: value.copy() for name, value in outputs.items()}, np.random.default_rng(1)
    for one in columns:
        array = found[one.output]
        parts = np.split(array, one.blocks, one.axis) if one.blocks > 1 else [array]
        for part in parts:
            view = np.moveaxis(part, one.axis, -1)[..., one.first : one.end]
            view += by * rng.uniform(0.1, 1, view.shape)
        found[one.output] = np.concatenate(parts, one.axis) if one.blocks > 1 else array
    return found


def decoded(name: str, numbers: Postprocess, outputs: Tensors) -> tuple[np.ndarray, np.ndarray]:
    boxes, scores, _ = DECODERS[name]([*outputs.values()], numbers, SIZE, -1.0)
    return boxes, scores


def test_every_decoder_says_what_is_learned_of_it_or_that_rows_have_no_order() -> None:
    assert HEADS.keys() | WITHOUT == DECODERS.keys()
    assert not HEADS.keys() & WITHOUT
    assert {case.partition(",")[0] for case in CASES} == HEADS.keys()


@pytest.mark.parametrize("case", CASES)
def test_columns_are_those_that_the_decoder_reads(case: str) -> None:
    name, (numbers, shapes) = case.partition(",")[0], CASES[case]
    specs = specs_of(shapes)
    heads, outputs = heads_of(numbers, specs, SIZE), made_up(specs)
    assert heads
    if name in FREE:
        assert [one.boxes for one in heads] == [None]
        return
    boxes, scores = decoded(name, numbers, outputs)
    places = [one.boxes for one in heads if one.boxes]
    sure = [part for one in heads for part in (one.scores, one.objectness) if part]
    moved, same = decoded(name, numbers, shifted(outputs, places, 1.0))
    np.testing.assert_array_equal(same, scores)
    whole = [0, 0, SIZE[1], SIZE[0]]  # a box that covers the input, and is cut at its edges, stays
    assert ((moved != boxes).any(axis=1) | (boxes == whole).all(axis=1)).all()
    same, moved = decoded(name, numbers, shifted(outputs, sure, 0.1))
    np.testing.assert_array_equal(same, boxes)
    assert (moved != scores).all()


@pytest.mark.parametrize("case", CASES)
def test_every_number_that_is_read_belongs_to_a_head(case: str) -> None:
    numbers, shapes = CASES[case]
    specs = specs_of(shapes)
    seen = {one.name: np.zeros(one.shape, np.float32) for one in specs}
    for head in heads_of(numbers, specs, SIZE):
        seen = shifted(seen, [part for part in (head.scores, head.objectness, head.boxes) if part], 1.0)
    assert all((one > 0).all() and (one <= 1).all() for one in seen.values())


def test_a_background_is_told_apart_from_classes() -> None:
    numbers, shapes = CASES["ssd_offsets"]
    assert [(one.background, one.scale) for one in heads_of(numbers, specs_of(shapes), SIZE)] == [(0, Scale.SOFTMAX)]
    numbers, shapes = CASES["detr"]
    assert [(one.background, one.scale) for one in heads_of(numbers, specs_of(shapes), SIZE)] == [(-1, Scale.SOFTMAX)]


def test_shapes_that_are_free_say_nothing() -> None:
    specs = [TensorSpec("a", "float32", (1, None, "h", "w")), TensorSpec("b", "float32", (1, None, "h", "w"))]
    assert heads_of(Postprocess("yolov8_dfl"), specs, SIZE) == ()


def heads_by(folder: Path, task: str, decoder: str, shape: tuple[int, ...], more: str = "") -> tuple[LearnedHead, ...]:
    metric = {"classification": "top1", "segmentation": "mIoU"}[task]
    path = folder / "recipe.toml"
    path.write_text(
        f'name = "x"\ntask = "{task}"\ndescription = "x"\nlicense = "none"\nsource = "here"\n[input]\nsize = [8, 8]\n'
        f'[preprocess]\nscale = 1.0\n[postprocess]\ndecoder = "{decoder}"\n{more}[evaluation]\nmetric = "{metric}"\n',
        "utf-8",
    )
    inputs, outputs = [TensorSpec("x", "float32", (1, 3, 8, 8))], [TensorSpec("y", "float32", shape)]
    return tuple(heads_of_task(make_task(read_recipe(path), inputs, outputs, evaluating=True)))


def test_classes_exclude_one_another(tmp_path: Path) -> None:
    assert heads_by(tmp_path, "classification", "logits", (1, 10)) == (LearnedHead(Columns("y", 1), Scale.SOFTMAX),)
    assert heads_by(tmp_path, "classification", "logits", (1, 1, 1, 10)) == (
        LearnedHead(Columns("y", 3), Scale.SOFTMAX),
    )
    (found,) = heads_by(tmp_path, "classification", "probabilities", (1, 11), "background = true\n")
    assert found == LearnedHead(Columns("y", 1, 1), Scale.SHARES)


def test_pixels_have_classes_and_a_map_of_classes_says_nothing(tmp_path: Path) -> None:
    assert heads_by(tmp_path, "segmentation", "argmax", (1, 4, 8, 8)) == (LearnedHead(Columns("y", 1), Scale.SOFTMAX),)
    assert heads_by(tmp_path, "segmentation", "argmax", (1, 1, 8, 8)) == (LearnedHead(Columns("y", 1), Scale.SIGMOID),)
    assert heads_by(tmp_path, "segmentation", "class_map", (1, 8, 8)) == ()
