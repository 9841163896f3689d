"""Both steps on the real models, on real images."""

from collections.abc import Callable, Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest
from fixture_models import ops, run

from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.model import load_model
from edgeopt.steps._checked import Expectation
from edgeopt.steps.fuse import fuse
from edgeopt.steps.simplify import simplify

Inputs = Mapping[str, np.ndarray]


def yolox_input(path: Path) -> Inputs:
    frame = cv2.imread(str(path))
    ratio = 416 / max(frame.shape[:2])
    small = cv2.resize(frame, (round(frame.shape[1] * ratio), round(frame.shape[0] * ratio)))
    square = np.full((416, 416, 3), 114, np.float32)
    square[: small.shape[0], : small.shape[1]] = small
    return {"images": np.ascontiguousarray(square.transpose(2, 0, 1)[None])}


def squeezenet_input(path: Path) -> Inputs:
    square = cv2.resize(cv2.imread(str(path)), (224, 224)).astype(np.float32) - np.float32([104, 117, 123])
    return {"data_0": np.ascontiguousarray(square.transpose(2, 0, 1)[None])}


MODELS = {
    "yolox_nano_416": (yolox_input, "coco/val"),
    "squeezenet_224": (squeezenet_input, "imagenet/val"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_reaches_opset_17_smaller_or_equal_and_computes_the_same(name: str, data: Path) -> None:
    reader, folder = MODELS[name]
    images = sorted((data / folder).glob("*.*"))
    before = load_model(data / "models" / f"{name}.onnx")
    simple = simplify(before, {}, [reader(path) for path in images[:2]])
    fused = fuse(simple.model, [reader(path) for path in images[:2]])
    assert simple.notes + fused.notes == ()
    assert fused.model.opset == 17
    assert fused.model.size_bytes <= before.size_bytes * 1.01
    require_valid(fused.model.proto, name)
    unseen = [reader(path) for path in images[2:6]]
    assert Expectation.of(before, unseen).drift_of(fused.model).sqnr_db > 90
    assert_close(before, fused.model, unseen)


def assert_close(before, after, inputs: list[Inputs], run: Callable = run) -> None:
    for one in inputs:
        for output, value in run(before, one).items():
            np.testing.assert_allclose(run(after, one)[output], value, rtol=1e-3, atol=1e-4 * np.abs(value).max())


@pytest.mark.slow
def test_the_eight_slices_of_yolox_become_one_conv_of_stride_two(data: Path) -> None:
    before = load_model(data / "models" / "yolox_nano_416.onnx")
    image = [yolox_input(sorted((data / "coco/val").glob("*.jpg"))[0])]
    fused = fuse(before, image)
    assert fused.changes["fuse_focus"] == 1
    assert ops(before).count("Slice") == 8
    assert "Slice" not in ops(fused.model)
    assert Expectation.of(before, image).drift_of(fused.model).max_abs < 1e-2
