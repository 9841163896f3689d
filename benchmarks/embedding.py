"""The effect of embedding a recipe: answers, metric and whole frames, beside the same model alone, in turns.

    python benchmarks/embedding.py [--int8 YOLOX_INT8.onnx]

Models: the shipped detector, and SqueezeNet and YOLOX-nano of ../shared/data where that folder exists. Frames of three
sizes tell what an embedded resize costs. Prints ratios with their 95 % intervals: above 1, embedded is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Frame
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, open_labelled
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.tasks import make_task

DATA = Path(__file__).parents[2] / "shared" / "data"
SIZES = ((480, 640), (720, 1280), (1080, 1920))
CASES = {
    "digits_detector": ("digits_detector", None, None),
    "SqueezeNet": (DATA / "models/squeezenet_224.onnx", "imagenet_caffe", DATA / "imagenet/val_labels.csv"),
    "YOLOX-nano": (DATA / "models/yolox_nano_416.onnx", "yolox", DATA / "coco/instances_val.json"),
}


def opened(model: Model, recipe: Recipe, *, evaluating: bool) -> Pipeline:
    session = EXECUTOR.open(model.data, SessionOptions(threads=1))
    return make_task(recipe, model.inputs, model.outputs, evaluating=evaluating), session


def both_ways(model: Model, recipe: Recipe, *, evaluating: bool) -> tuple[Pipeline, Pipeline]:
    """Return the model alone, and with the recipe inside."""
    embedded = embed_postprocess(embed_preprocess(model, recipe), recipe)
    inside = recipe.with_embedded(*Embedded)
    return opened(model, recipe, evaluating=evaluating), opened(embedded, inside, evaluating=evaluating)


def frames_of(pipeline: Pipeline, frame: Frame) -> Callable[[int], None]:
    task, session = pipeline

    def call(_: int) -> None:
        inputs, geometry = task.preprocess(frame)
        task.postprocess(session.run(inputs), geometry)

    return call


def tell(name: str, model: Model, recipe: Recipe, labelled: LabelledFrames, seconds: float) -> None:
    low = {one: getattr(recipe.evaluation, one) for one in ("score_threshold", "iou_threshold", "max_detections")}
    evaluated = replace(recipe, postprocess=replace(recipe.postprocess, **low))
    found = [
        (task, answers(session, task, labelled.frames))
        for task, session in both_ways(model, evaluated, evaluating=True)
    ]
    (task, alone), (reader, inside) = found
    scores = f"{task.score(alone, labelled.labels)}; embedded {reader.score(inside, labelled.labels)}"
    print(f"{name}, {len(alone)} pictures: alone {scores}; agreement {task.agreement(inside, alone):.4f}")
    picture = labelled.frames.picture(0)
    for height, width in SIZES:
        frame = np.asarray(cv2.resize(picture, (width, height)), np.uint8)
        plain, embedded = both_ways(model, recipe, evaluating=False)
        runs = {"alone": frames_of(plain, frame), "embedded": frames_of(embedded, frame)}
        ratio = compare_calls(runs, baseline="alone", seconds=seconds, block=5)["embedded"]
        print(f"    frames of {width}x{height}: {ratio} as fast")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--int8", type=Path, help="an INT8 form of YOLOX-nano, from edgeopt optimize")
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    for name, (path, recipe, labels) in CASES.items():
        if isinstance(path, Path) and not path.is_file():
            print(f"{name}: {path} is absent")
            continue
        given = open_given(str(path), "cpu", recipe)
        shipped = given.recipe.path_of(given.recipe.evaluation.labels)
        labelled = open_labelled(labels or shipped or Path())
        tell(name, given.model, given.recipe, labelled, asked.seconds)
        if name == "YOLOX-nano" and asked.int8:
            tell(f"{name} in INT8", load_model(asked.int8), given.recipe, labelled, asked.seconds)


if __name__ == "__main__":
    main()
