"""Two over-parameterised classifiers of handwritten digits, trained here in a few minutes, and their pictures.

    python benchmarks/pruning/nets.py FOLDER

writes, for `resnet` and `vgg`: the model, a recipe, 2,000 unlabelled pictures and 1,000 labelled ones of digits that no
other picture shows. Needs torch and scikit-learn, which holds the digits; downloads nothing. What is there already
stays.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray

EXAMPLE = Path(__file__).parents[2] / "models" / "digits_detector"
SIDE = 32
SEED = 7
TRAINED, UNLABELLED, LABELLED = 8192, 2000, 1000
NETS = ("resnet", "vgg")
RECIPE = """name = "digits"
task = "classification"
description = "Handwritten digits on made-up backgrounds, one a picture"
license = "Apache-2.0"
source = "benchmarks/pruning/nets.py"

[preprocess]
colour = "RGB"
resize = "stretch"
scale = 0.00392156862745098

[postprocess]
decoder = "logits"
top = 5

[evaluation]
metric = "top1"
"""


def picture(digits: object, rng: np.random.Generator) -> tuple[NDArray[np.uint8], int]:
    """Return one digit on a background, (32, 32, 3) RGB, and which it is."""
    from scenes import draw_background, draw_digit, ink_colour

    while True:
        canvas = draw_background(SIDE, SIDE, rng)
        chosen = int(rng.integers(len(digits.labels)))
        opacity, box = draw_digit(digits.images[chosen], rng.uniform(16, 27), rng)
        span = box[2:] - box[:2]
        if (span > SIDE - 2).any():
            continue
        shift = np.floor(rng.uniform(1, SIDE - span - 1) - box[:2]).astype(int)
        low, high = np.maximum(shift, 0), np.minimum(shift + opacity.shape[::-1], SIDE)
        part = opacity[low[1] - shift[1] : high[1] - shift[1], low[0] - shift[0] : high[0] - shift[0], None]
        region = canvas[low[1] : high[1], low[0] : high[0]]
        region += part * (ink_colour(region, rng) - region)
        canvas += rng.uniform(0, 8) * rng.standard_normal(canvas.shape, np.float32)
        return np.clip(canvas + 0.5, 0, 255).astype(np.uint8), int(digits.labels[chosen])


def pictures(digits: object, count: int, split: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (count, 32, 32, 3) pictures and their labels; the same for the same split."""
    made = [picture(digits, np.random.default_rng((SEED, split, i))) for i in range(count)]
    return np.stack([one for one, _ in made]), np.array([label for _, label in made])


def write_pictures(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Write the pictures for calibration and evaluation and the recipe; return those for training."""
    from scenes import split_digits

    shown, held_out = split_digits(SEED)
    if not (folder / "eval" / "labels.csv").is_file():
        for name, digits, count, split in (("calib", shown, UNLABELLED, 1), ("eval", held_out, LABELLED, 2)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            images, labels = pictures(digits, count, split)
            for i, image in enumerate(images):
                cv2.imwrite(str(folder / name / f"{i:04}.png"), image[..., ::-1])
        (folder / "recipe.toml").write_text(RECIPE, "utf-8")
        rows = [f"{i:04}.png,{label}" for i, label in enumerate(labels)]
        (folder / "eval" / "labels.csv").write_text("\n".join(["file,class_index", *rows]) + "\n", "utf-8")
    return pictures(shown, TRAINED, 0)


def network(name: str) -> object:
    """Return an untrained network: images (n, 3, 32, 32) to logits (n, 10)."""
    import torch
    from torch import nn

    def unit(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]

    class Residual(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(*unit(inputs, outputs, stride), nn.ReLU(), *unit(outputs, outputs))
            is_same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if is_same else nn.Sequential(*unit(inputs, outputs, stride, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.shortcut(x))

    if name == "resnet":
        blocks = [Residual(48, 48, 1), Residual(48, 48, 1), Residual(48, 96, 2), Residual(96, 96, 1)]
        blocks += [Residual(96, 192, 2), Residual(192, 192, 1)]
        layers = [*unit(3, 48), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10)]
        return nn.Sequential(*layers)
    layers, inputs = list[nn.Module](), 3
    for outputs in (64, 64, 0, 128, 128, 0, 256, 256, 0):
        layers += [*unit(inputs, outputs), nn.ReLU()] if outputs else [nn.MaxPool2d(2)]
        inputs = outputs or inputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 256), nn.ReLU(), nn.Linear(256, 10))


def train(name: str, images: NDArray[np.uint8], labels: NDArray[np.int64], steps: int, batch: int = 64) -> object:
    """Return a network trained on the digits, in evaluation mode."""
    import torch
    from torch.nn import functional

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    net = network(name).to(memory_format=torch.channels_last)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    wanted = torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.2)
    is_fast, began, running = torch.cpu._is_avx512_bf16_supported(), time.perf_counter(), 0.0
    for step in range(steps):
        picked = torch.randint(len(images), (batch,))
        x = functional.pad(pixels[picked].float() / 255, (2, 2, 2, 2), mode="replicate")
        left, top = torch.randint(5, (2,)).tolist()
        x = x[..., top : top + SIDE, left : left + SIDE]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_fast):
            loss = functional.cross_entropy(net(x), wanted[picked], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        running = loss.item() if not step else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            told = f"{name}: step {step + 1}/{steps}  loss {running:.3f}  {time.perf_counter() - began:.0f} s"
            print(told, file=sys.stderr, flush=True)
    return net.eval()


def export(net: object, path: Path) -> None:
    """Write a network as ONNX, opset 17, batch 1, with every BatchNormalization still a node of its own."""
    import torch

    torch.onnx.export(
        net.to(memory_format=torch.contiguous_format),
        (torch.zeros(1, 3, SIDE, SIDE),),
        path,
        input_names=["images"],
        output_names=["logits"],
        opset_version=17,
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def make(folder: Path, steps: int, names: Sequence[str] = NETS) -> dict[str, Path]:
    """Return the models of these names, trained where they are not there yet."""
    sys.path.insert(0, str(EXAMPLE))
    found = {name: folder / f"{name}.onnx" for name in names}
    if all(path.is_file() for path in found.values()):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = write_pictures(folder)
    for name, path in found.items():
        if not path.is_file():
            export(train(name, images, labels, steps), path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1500, help="of 64 pictures, for each net [%(default)s]")
    given = parser.parse_args()
    for name, path in make(given.folder, given.steps).items():
        print(f"{name}: {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
