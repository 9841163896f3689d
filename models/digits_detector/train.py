"""Train the digits detector from scratch and write everything that this folder ships.

    pip install torch scikit-learn numpy opencv-python-headless onnx onnxruntime pycocotools
    python models/digits_detector/train.py

`scenes.py` composes the pictures. The evaluation digits are set aside first: no training or calibration scene
shows one of them.

Conventions, the same as YOLOX's raw output (Ge et al., 2021, arXiv:2107.08430):
    images  float32 (1, 3, 160, 160): RGB, 0..1, letterboxed into the top left corner, padding 114 / 255.
    output  float32 (1, 525, 15): the cells of stride 8, then 16, then 32, each row by row. Columns: tx, ty,
            tw, th, then objectness and one score a class, these eleven after the sigmoid.
    box     centre = (t_xy + cell_xy) * stride, size = exp(t_wh) * stride, in pixels of the letterboxed image.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import shutil
import time
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scenes import Digits, Floats, Image, compose_scene, split_digits
from torch import Tensor, nn
from torch.nn import functional

Split = Literal["train", "eval", "calib"]

HERE = Path(__file__).resolve().parent
INPUT = 160  # side of the network's input, pixels
PADDING = 114
CLASSES = 10
STRIDES = (8, 16, 32)
LEARNS = ((0, 36), (24, math.inf), (40, math.inf))  # longer side, in pixels, of the digits each stride learns
CENTRE_RADIUS = 1.0  # cells around a digit's centre that learn it
EVAL_IMAGES, CALIB_IMAGES, JPEG_QUALITY = 160, 64, 82
SEED_OFFSET: dict[Split, int] = {"train": 0, "eval": 1, "calib": 2}
SCORE_THRESHOLD, NMS_IOU, MAX_DETECTIONS = 0.01, 0.65, 100


# --- Pictures -----------------------------------------------------------------------------------------------


def encode_jpeg(image: Image, quality: int) -> NDArray[np.uint8]:
    """Return the bytes of `image` as a JPEG file."""
    settings = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    return cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), settings)[1]


def decode_jpeg(data: NDArray[np.uint8]) -> Image:
    """Return the RGB picture in the bytes of a JPEG file."""
    return cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def letterbox(image: Image) -> tuple[Image, float]:
    """Return `image` scaled to fit the input's top left corner, the rest padded, and the scale."""
    height, width = image.shape[:2]
    scale = min(INPUT / width, INPUT / height)
    size = int(width * scale), int(height * scale)
    boxed = np.full((INPUT, INPUT, 3), PADDING, np.uint8)
    boxed[: size[1], : size[0]] = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
    return boxed, scale


# --- Network ----------------------------------------------------------------------------------------------


def unit(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch normalization, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution within each channel, then a 1x1 convolution across them."""
    return nn.Sequential(unit(inputs, inputs, 3, stride, groups=inputs), unit(inputs, outputs))


class Residual(nn.Module):
    """A separable convolution with a shortcut around it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = separable(channels, channels)

    def forward(self, features: Tensor) -> Tensor:
        return features + self.body(features)


class Head(nn.Module):
    """Predict the raw columns of one scale, class and box from separate features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.box_features = nn.Sequential(separable(channels, channels), separable(channels, channels))
        self.class_features = nn.Sequential(separable(channels, channels), separable(channels, channels))
        self.box = nn.Conv2d(channels, 4, 1)
        self.objectness = nn.Conv2d(channels, 1, 1)
        self.classes = nn.Conv2d(channels, CLASSES, 1)
        nn.init.constant_(self.objectness.bias, -4.0)  # at first, few cells hold a digit
        nn.init.constant_(self.classes.bias, -2.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boxes, and the logits of objectness and classes."""
        box, kind = self.box_features(features), self.class_features(features)
        return self.box(box), torch.cat([self.objectness(box), self.classes(kind)], dim=1)


class Detector(nn.Module):
    """A small backbone, a top-down and bottom-up pyramid, and one head a stride."""

    def __init__(self, neck: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(unit(3, 16, 3, 2), unit(16, 32, 3, 2), Residual(32), Residual(32))
        self.stage8 = nn.Sequential(separable(32, 64, 2), Residual(64), Residual(64), Residual(64))
        self.stage16 = nn.Sequential(separable(64, 128, 2), Residual(128), Residual(128))
        self.stage32 = nn.Sequential(separable(128, 128, 2), Residual(128))
        self.lateral8, self.lateral16, self.lateral32 = unit(64, neck), unit(128, neck), unit(128, neck)
        self.merge16, self.merge8 = separable(neck, neck), separable(neck, neck)
        self.down16, self.down32 = separable(neck, neck, 2), separable(neck, neck, 2)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.heads = nn.ModuleList(Head(neck) for _ in STRIDES)

    def logits(self, images: Tensor) -> Tensor:
        """Return (batch, cells, 15): the raw columns before any sigmoid."""
        levels = [torch.cat(parts, dim=1).flatten(2) for parts in self.predict(images)]
        return torch.cat(levels, dim=2).transpose(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return (batch, cells, 15): the raw columns, objectness and classes after the sigmoid."""
        levels = [torch.cat([box, score.sigmoid()], dim=1).flatten(2) for box, score in self.predict(images)]
        return torch.cat(levels, dim=2).transpose(1, 2)

    def predict(self, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each head's boxes and logits, the smallest stride first."""
        fine = self.stage8(self.stem(images))
        middle = self.stage16(fine)
        coarse = self.lateral32(self.stage32(middle))
        middle = self.merge16(self.lateral16(middle) + self.upsample(coarse))
        fine = self.merge8(self.lateral8(fine) + self.upsample(middle))
        middle = middle + self.down16(fine)
        coarse = coarse + self.down32(middle)
        return [head(level) for head, level in zip(self.heads, (fine, middle, coarse), strict=True)]


# --- Training ---------------------------------------------------------------------------------------------


def grid() -> tuple[Floats, Floats, Floats]:
    """Return of every cell: column and row (cells, 2), stride (cells, 1), `LEARNS` (cells, 2)."""
    sides = [INPUT // stride for stride in STRIDES]
    cells = [np.stack(np.mgrid[0:side, 0:side][::-1], axis=-1).reshape(-1, 2) for side in sides]
    counts = [side * side for side in sides]
    strides = np.repeat(np.float32(STRIDES), counts)[:, None]
    return np.concatenate(cells).astype(np.float32), strides, np.repeat(np.float32(LEARNS), counts, axis=0)


CELLS, CELL_STRIDES, CELL_LEARNS = grid()


def assign(boxes: Floats, labels: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Give each digit the cells near its centre, on each stride that suits its size.

    Returns:
        (cells, 4) the box each cell shall predict, and (cells,) its class, -1 for background.
    """
    centre, side = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).max(axis=1)
    middle = (CELLS + 0.5) * CELL_STRIDES
    distance = np.abs(middle[:, None] - centre).max(axis=2) / CELL_STRIDES  # (cells, digits)
    suits = (CELL_LEARNS[:, :1] <= side) & (side < CELL_LEARNS[:, 1:])
    distance = np.where(suits & (distance < CENTRE_RADIUS), distance, np.inf)
    nearest = distance.argmin(axis=1)
    return boxes[nearest], np.where(np.isfinite(distance.min(axis=1)), labels[nearest], -1)


def training_set(digits: Digits, seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (count, 160, 160, 3) as bytes, box targets (count, cells, 4), class targets."""
    images = np.empty((count, INPUT, INPUT, 3), np.uint8)
    boxes = np.empty((count, len(CELLS), 4), np.float32)
    classes = np.empty((count, len(CELLS)), np.int64)
    for index in range(count):
        rng = np.random.default_rng((seed, SEED_OFFSET["train"], index))
        scene = compose_scene(digits, rng)
        images[index], scale = letterbox(decode_jpeg(encode_jpeg(scene.image, int(rng.integers(70, 96)))))
        boxes[index], classes[index] = assign(scene.boxes * scale, scene.labels)
    return torch.from_numpy(images), torch.from_numpy(boxes), torch.from_numpy(classes)


def giou(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the IoU and the generalized IoU (Rezatofighi et al., 2019) of boxes (n, 4) in x1, y1, x2, y2."""
    inner = torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])
    outer = torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])
    common = inner.clamp(0).prod(1)
    union = (first[:, 2:] - first[:, :2]).prod(1) + (second[:, 2:] - second[:, :2]).prod(1) - common
    iou = common / union
    return iou, iou - 1 + union / outer.prod(1)


def detection_loss(logits: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
    """Return box, objectness and class loss of a batch; objectness learns the IoU that the box reaches."""
    positive = classes >= 0
    count = positive.sum().clamp(min=1)
    rows = positive.nonzero()[:, 1]
    cells, strides = torch.from_numpy(CELLS)[rows], torch.from_numpy(CELL_STRIDES)[rows]
    chosen, wanted = logits[positive], boxes[positive]
    centre, size = (chosen[:, :2] + cells) * strides, chosen[:, 2:4].clamp(max=4).exp() * strides
    iou, generalized = giou(torch.cat([centre - size / 2, centre + size / 2], dim=1), wanted)
    raw_centre = (wanted[:, :2] + wanted[:, 2:]) / 2 / strides - cells
    raw_size = ((wanted[:, 2:] - wanted[:, :2]) / strides).log()
    objectness = torch.zeros_like(logits[..., 4])
    objectness[positive] = iou.detach().clamp(0)
    kinds = functional.one_hot(classes[positive], CLASSES).float()
    bce = functional.binary_cross_entropy_with_logits
    return (
        5 * (1 - generalized).sum()
        + 2 * (chosen[:, :4] - torch.cat([raw_centre, raw_size], dim=1)).abs().sum()
        + 2 * bce(logits[..., 4], objectness, reduction="sum")
        + bce(chosen[:, 5:], kinds, reduction="sum")
    ) / count


def train(digits: Digits, chosen: argparse.Namespace) -> Detector:
    """Return a detector with the averaged weights (EMA) of the whole training, in evaluation mode."""
    torch.manual_seed(chosen.seed)
    steps, peak = chosen.steps, chosen.learning_rate
    images, boxes, classes = training_set(digits, chosen.seed, chosen.scenes)
    model = Detector().to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.08)
    started, running = time.perf_counter(), math.nan
    for step in range(steps):
        picked = torch.randperm(chosen.scenes)[: chosen.batch]
        pixels = images[picked][..., torch.randperm(3)].permute(0, 3, 1, 2) / 255  # colours swapped at random
        loss = detection_loss(model.logits(pixels), boxes[picked], classes[picked])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        decay = min(0.998, (step + 1) / (step + 10))
        for kept, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            kept.lerp_(new, 1 - decay) if kept.is_floating_point() else kept.copy_(new)
        running = loss.item() if math.isnan(running) else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 200 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step + 1}/{steps}  loss {running:.3f}  {seconds:.0f} s", flush=True)
    return average


# --- Files ------------------------------------------------------------------------------------------------


def write_images(folder: Path, digits: Digits, seed: int, split: Split, count: int) -> dict[str, list]:
    """Write `count` JPEG scenes into an emptied `folder`; return their labels as a COCO dictionary."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    images, annotations = [], []
    for index in range(count):
        scene = compose_scene(digits, np.random.default_rng((seed, SEED_OFFSET[split], index)))
        name = f"{index + 1:04}.jpg"
        (folder / name).write_bytes(encode_jpeg(scene.image, JPEG_QUALITY).tobytes())
        height, width = scene.image.shape[:2]
        images.append({"id": index + 1, "file_name": name, "width": width, "height": height})
        for (x1, y1, x2, y2), label in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True):
            box = [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index + 1,
                    "category_id": label + 1,
                    "bbox": box,
                    "area": round(box[2] * box[3], 2),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": label + 1, "name": str(label)} for label in range(CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def export(model: Detector, path: Path) -> None:
    """Write `model` as ONNX, opset 17, batch 1, with every BatchNormalization still a node of its own."""
    torch.onnx.export(
        model.to(memory_format=torch.contiguous_format),
        (torch.zeros(1, 3, INPUT, INPUT),),
        path,
        input_names=["images"],
        output_names=["output"],
        opset_version=17,
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def detect(session: onnxruntime.InferenceSession, image: Image) -> list[tuple[int, float, list[float]]]:
    """Return the label, score and box (x, y, width, height in pixels of `image`) of every digit found."""
    boxed, scale = letterbox(image)
    pixels = boxed.transpose(2, 0, 1)[None].astype(np.float32) / 255
    rows = session.run(None, {"images": pixels})[0][0]
    centre, size = (rows[:, :2] + CELLS) * CELL_STRIDES, np.exp(rows[:, 2:4]) * CELL_STRIDES
    boxes = np.concatenate([centre - size / 2, size], axis=1) / scale
    scores = rows[:, 4:5] * rows[:, 5:]
    cells, labels = np.nonzero(scores >= SCORE_THRESHOLD)
    found = cv2.dnn.NMSBoxesBatched(boxes[cells], scores[cells, labels], labels, SCORE_THRESHOLD, NMS_IOU)
    kept = sorted(((cells[i], labels[i]) for i in found), key=lambda pair: -scores[pair])[:MAX_DETECTIONS]
    return [(int(label), float(scores[cell, label]), boxes[cell].tolist()) for cell, label in kept]


def evaluate(model: Path, folder: Path) -> tuple[float, float]:
    """Return AP averaged over IoU 0.50 to 0.95, and AP at 0.50, of an ONNX file on a labelled folder."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    truth = COCO(str(folder / "instances.json"))
    results = []
    for picture in truth.loadImgs(truth.getImgIds()):
        image = decode_jpeg(np.fromfile(folder / "images" / picture["file_name"], np.uint8))
        for label, score, box in detect(session, image):
            results.append({"image_id": picture["id"], "category_id": label + 1, "bbox": box, "score": score})
    if not results:
        return 0.0, 0.0
    scoring = COCOeval(truth, truth.loadRes(results), "bbox")
    scoring.evaluate()
    scoring.accumulate()
    scoring.summarize()
    return float(scoring.stats[0]), float(scoring.stats[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the detector; write the model, images and labels.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into (default: this one)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--scenes", type=int, default=8192, help="training scenes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.use_deterministic_algorithms(True)
    cv2.setNumThreads(1)

    shown, held_out = split_digits(chosen.seed)
    labels = write_images(chosen.out / "eval" / "images", held_out, chosen.seed, "eval", EVAL_IMAGES)
    (chosen.out / "eval" / "instances.json").write_text(json.dumps(labels) + "\n", "utf-8")
    write_images(chosen.out / "calib", shown, chosen.seed, "calib", CALIB_IMAGES)
    (chosen.out / "labels.txt").write_text("".join(f"{label}\n" for label in range(CLASSES)), "utf-8")

    model = train(shown, chosen)
    export(model, chosen.out / "model.onnx")
    precision, precision_50 = evaluate(chosen.out / "model.onnx", chosen.out / "eval")
    print(f"AP {precision:.4f}  AP50 {precision_50:.4f}  {(chosen.out / 'model.onnx').stat().st_size} bytes")


if __name__ == "__main__":
    main()
