"""Make classifier.onnx, a small classifier of digits, from the labelled pictures of the shipped detector.

    python examples/pipeline/make_classifier.py [FILE]

Two convolutions with random weights, and a last layer fitted to them by ridge regression: seconds on one core, and no
framework. Pictures 1 to 120 are learned, the others tell how good it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

HERE = Path(__file__).resolve().parent
EVAL = HERE.parents[1] / "models" / "digits_detector" / "eval"
SIDE, LEARNED, SHIFTS = 32, 120, 8
Floats = NDArray[np.float32]


def read_digits(rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """Return (n, 3, 32, 32) crops, (n,) their digits, and (n,) whether they may be learned."""
    truth = json.loads((EVAL / "instances.json").read_text("utf-8"))
    files = {one["id"]: one["file_name"] for one in truth["images"]}
    pictures = {key: cv2.imread(str(EVAL / "images" / name)) for key, name in files.items()}
    crops, digits, is_learned = [], [], []
    for one in truth["annotations"]:
        learned = one["image_id"] <= LEARNED
        for _ in range(SHIFTS if learned else 1):
            left, top, width, height = one["bbox"]
            shift = rng.uniform(-0.08, 0.08, 2) * (width, height) if learned else (0.0, 0.0)
            grown = rng.uniform(0.0, 0.2) if learned else 0.1
            x0, y0 = left - grown * width + shift[0], top - grown * height + shift[1]
            x1, y1 = x0 + (1 + 2 * grown) * width, y0 + (1 + 2 * grown) * height
            picture = pictures[one["image_id"]][max(0, round(y0)) : round(y1), max(0, round(x0)) : round(x1), ::-1]
            small = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
            crops.append((small.astype(np.float32) / 255 - 0.5) / 0.25)
            digits.append(one["category_id"] - 1)
            is_learned.append(learned)
    return np.stack(crops).transpose(0, 3, 1, 2).copy(), np.array(digits), np.array(is_learned)


def make_model(weights: dict[str, NDArray[np.generic]], output: str, batch: int | str) -> ModelProto:
    """Return the network up to `features` or `scores`."""
    nodes = [
        helper.make_node("Conv", ["picture", "w1", "b1"], ["c1"], pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p2"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["p2"], ["features"]),
        helper.make_node("Gemm", ["features", "w3", "b3"], ["scores"]),
    ]
    used = nodes if output == "scores" else nodes[:-1]
    picture = helper.make_tensor_value_info("picture", TensorProto.FLOAT, [batch, 3, SIDE, SIDE])
    size = 10 if output == "scores" else 1536
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, [batch, size])
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(used, "classifier", [picture], [result], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    """Fit the last layer and write the model."""
    rng = np.random.default_rng(0)
    crops, digits, is_learned = read_digits(rng)
    edges = rng.normal(0, 1, (24, 1, 5, 5))
    edges -= edges.mean(axis=(2, 3), keepdims=True)  # brightness says nothing of a digit, and light on dark is as good
    weights = {
        "w1": np.repeat(np.concatenate([edges, -edges]) / 15, 3, axis=1).astype(np.float32),
        "b1": np.full(48, -0.1, np.float32),
        "w2": rng.normal(0, 1 / np.sqrt(432), (96, 48, 3, 3)).astype(np.float32),
        "b2": rng.normal(0, 0.3, 96).astype(np.float32),
    }
    session = onnxruntime.InferenceSession(make_model(weights, "features", "n").SerializeToString())
    features = session.run(None, {"picture": crops})[0].astype(np.float64)
    learned, wanted = features[is_learned], np.eye(10)[digits[is_learned]]
    middle = learned.mean(axis=0)
    centred = learned - middle
    fitted = np.linalg.solve(centred.T @ centred + 30.0 * np.eye(centred.shape[1]), centred.T @ (wanted - 0.1))
    fitted *= 12  # logits, so that the probabilities are sharp
    weights |= {"w3": fitted.astype(np.float32), "b3": (-middle @ fitted).astype(np.float32)}
    held = ~is_learned
    right = ((features[held] - middle) @ fitted).argmax(axis=1) == digits[held]
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "classifier.onnx"
    save(make_model(weights, "scores", 1), str(file))
    print(f"{file}: {right.mean():.3f} of {right.size} digits right that it never saw")


if __name__ == "__main__":
    main()
