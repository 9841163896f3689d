"""Frame to tensor, edgeopt against the obvious NumPy and OpenCV ways, in turns.

    python benchmarks/preprocess.py

Prints how many times as long each way takes as edgeopt's, with the 95 % interval, and checks that all agree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.recipes.inputs.preprocess import Colour, Input, PictureInput, Preprocess, Resize

SIZE = 416
FRAME = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
SCALE = 1 / 255
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def letterbox(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    factor = min(SIZE / frame.shape[0], SIZE / frame.shape[1])
    height, width = int(frame.shape[0] * factor), int(frame.shape[1] * factor)
    canvas = np.full((SIZE, SIZE, 3), 114, np.uint8)
    canvas[:height, :width] = cv2.resize(frame, (width, height))
    return canvas


def numpy_way(frame: NDArray[np.uint8], mean: NDArray[np.float32], std: NDArray[np.float32]) -> NDArray[np.float32]:
    pixels = letterbox(frame)[..., ::-1].astype(np.float32) * np.float32(SCALE)
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)[None])


def opencv_way(frame: NDArray[np.uint8], mean: NDArray[np.float32], std: NDArray[np.float32]) -> NDArray[np.float32]:
    blob = cv2.dnn.blobFromImage(letterbox(frame), SCALE, mean=(mean / SCALE).tolist(), swapRB=True)
    blob /= std.reshape(1, 3, 1, 1)
    return blob


def measure(name: str, mean: NDArray[np.float32], std: NDArray[np.float32]) -> None:
    how = Preprocess(Colour.RGB, Resize.LETTERBOX, scale=SCALE, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    ours = PictureInput(Input(size=(SIZE, SIZE)), how, reuse=True)
    ways: dict[str, Callable[[], NDArray[np.float32]]] = {
        "edgeopt": lambda: ours(FRAME)[0],
        "NumPy": partial(numpy_way, FRAME, mean, std),
        "cv2.dnn.blobFromImage": partial(opencv_way, FRAME, mean, std),
    }
    expected = ways["NumPy"]()
    for way, run in ways.items():
        np.testing.assert_allclose(run(), expected, rtol=1e-4, atol=1e-4, err_msg=way)
    runs = {way: (lambda _, run=run: run()) for way, run in ways.items()}
    for way, ratio in compare_calls(runs, baseline="edgeopt", seconds=6).items():
        print(f"{name:<24} {way:<22} {ratio} edgeopt's speed")


if __name__ == "__main__":
    cv2.setNumThreads(1)
    measure("letterbox, scale", np.zeros(3, np.float32), np.ones(3, np.float32))
    measure("letterbox, mean and std", MEAN, STD)
