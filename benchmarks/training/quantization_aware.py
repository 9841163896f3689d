"""What quantization-aware training wins back of what quantization loses: a narrow net of depthwise layers.

    python benchmarks/training/quantization_aware.py [--minutes 3] [--folder FOLDER] [--rules xint8]

Trains a small classifier of handwritten digits (`benchmarks/pruning/nets.py` makes the pictures), quantizes it as the
rules say, as it comes and with repairs of `edgeopt quantize`, and then trains the former on unlabelled pictures to
answer as the float net does. ONNX Runtime computes all accuracies; labels are seen there alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "pruning"))
import nets

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.pipeline.run import Ears
from edgeopt.recipes.frames import open_frames
from edgeopt.recipes.recipe import read_recipe
from edgeopt.steps.finetune.distil import distil
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.scheme import open_graph
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.steps.simplify import simplify
from edgeopt.system.target import Granularity, Int8Rules, find_target

PER_TENSOR = Granularity.PER_TENSOR
RULES = {
    "one-scale": Int8Rules(activation_dtype="int8", symmetric_activations=True, weight_granularity=PER_TENSOR),
    "shared-7-bit": Int8Rules(weight_granularity=PER_TENSOR, reduce_range=True),
    "xint8": find_target("amd-ryzen-ai").int8,
}
SPREAD = 0.7
"""Standard deviation of the logarithm of a channel's strength."""
EVERYTHING = -200.0
"""No tensor stays in float, as on a device that has no floats."""


def mobile() -> object:
    """Return an untrained MobileNetV2 (arXiv 1801.04381) in small: images (n, 3, 32, 32) to logits (n, 10)."""
    import torch
    from torch import nn

    def unit(inputs: int, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            wide = 4 * inputs
            layers = [*unit(inputs, wide), nn.ReLU6(), *unit(wide, wide, stride, wide, 3), nn.ReLU6()]
            self.body, self.is_same = nn.Sequential(*layers, *unit(wide, outputs)), stride == 1 and inputs == outputs

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x) if self.is_same else self.body(x)

    layers, inputs = [*unit(3, 16, 2, kernel=3), nn.ReLU6()], 16
    for outputs, stride in ((16, 1), (24, 2), (24, 1), (32, 1), (48, 2), (48, 1)):
        layers, inputs = [*layers, Block(inputs, outputs, stride)], outputs
    layers += [*unit(inputs, 128), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def narrow() -> object:
    """Return an untrained net: images (n, 3, 32, 32) to logits (n, 10), in layers as narrow as 8 channels.

    Channels differ in strength from the start as those of MobileNets do after days of training, which one scale for all
    weights of a layer does not bear.
    """
    import torch
    from torch import nn

    def unit(inputs: int, outputs: int, stride: int, groups: int, kernel: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        norm = nn.BatchNorm2d(outputs)
        with torch.no_grad():
            norm.weight.copy_(torch.exp(SPREAD * torch.randn(outputs)))
        return [conv, norm, nn.ReLU6()]

    layers, inputs = unit(3, 8, 1, 1, 3), 8
    for outputs, stride in ((16, 2), (16, 1), (24, 2), (24, 1), (32, 2), (32, 1)):
        layers += [*unit(inputs, inputs, stride, inputs, 3), *unit(inputs, outputs, 1, 1, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


NETS = {"narrow": narrow, "mobile": mobile}


def made(folder: Path, steps: int, net: str) -> Path:
    """Return the trained net; its pictures are in the folder."""
    path = folder / f"{net}.onnx"
    if not path.is_file():
        sys.path.insert(0, str(nets.EXAMPLE))
        folder.mkdir(parents=True, exist_ok=True)
        images, labels = nets.write_pictures(folder)
        nets.network = lambda name: NETS[name]()
        nets.export(nets.train(net, images, labels, steps), path)
    return path


def inputs(folder: Path, count: int) -> Iterator[dict[str, np.ndarray]]:
    for file in sorted(folder.glob("*.png"))[:count]:
        picture = cv2.imread(str(file))[..., ::-1].transpose(2, 0, 1)[None]
        yield {"images": np.ascontiguousarray(picture, np.float32) / np.float32(255)}


def accuracy(model: Model, folder: Path) -> tuple[int, int]:
    """Return how many of how many labelled pictures are right."""
    rows = [line.split(",") for line in (folder / "labels.csv").read_text("utf-8").splitlines()[1:]]
    session = EXECUTOR.open(model.data, SessionOptions())
    right = sum(
        int(np.argmax(next(iter(session.run(one).values())))) == int(label)
        for one, (_, label) in zip(inputs(folder, len(rows)), rows, strict=True)
    )
    session.close()
    return right, len(rows)


def interval(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, 1927)."""
    share, z = right / of, 1.96
    middle, half = share + z**2 / (2 * of), z * (share * (1 - share) / of + z**2 / (4 * of**2)) ** 0.5
    return (middle - half) / (1 + z**2 / of), (middle + half) / (1 + z**2 / of)


def best_without_training(model: Model, rules: Int8Rules, frames: list[dict[str, np.ndarray]]) -> dict[str, Model]:
    """Return the quantized model as it comes, and with all repairs that may be tried on it."""
    sources = Sources(model, study(model, open_graph(model), frames, rules), rules, frames)
    plain = Variant(least_db=EVERYTHING)
    variants = {"after training": plain}
    for name, settings in {
        "with equalization": {"equalization": True},
        "with bias correction and GPTQ": {"bias_correction": True, "gptq": True},
        "with all three": {"equalization": True, "bias_correction": True, "gptq": True},
    }.items():
        variants[f"after training, {name}"] = plain.repaired(**settings)
    return {told: make_variant(*sources.of(one), rules, one)[0].model for told, one in variants.items()}


def row(told: str, model: Model, folder: Path) -> float:
    right, of = accuracy(model, folder)
    low, high = interval(right, of)
    print(f"| {told} | {right / of:.4f} | {low:.4f} to {high:.4f} |", flush=True)
    return right / of


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="of training on grids [%(default)s]")
    parser.add_argument("--rules", choices=RULES, default="one-scale")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "edgeopt-narrow-net")
    parser.add_argument("--steps", type=int, default=1200, help="of training the float net [%(default)s]")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    path, rules = made(given.folder, given.steps), RULES[given.rules]
    calib, labelled = given.folder / "calib", given.folder / "eval"
    frames = list(inputs(calib, 128))
    model = load_model(path, "narrow")
    dense = fuse(simplify(model, {}, frames[:2]).model, frames[:2]).model
    print(f"rules {given.rules}\n\n| | top1 | 95 % |\n|---|--:|---|", flush=True)
    row("float", dense, labelled)
    made_of = best_without_training(dense, rules, frames)
    scores = {told: row(told, one, labelled) for told, one in made_of.items()}
    student = made_of["after training"]
    recipe, began = read_recipe(given.folder / "recipe.toml").with_size(nets.SIDE, nets.SIDE), time.perf_counter()
    trained = distil(
        student,
        dense,
        open_frames(calib),
        recipe,
        given.minutes,
        Ears(lambda text: print(text, file=sys.stderr), None),
        given.folder,
        threads=given.threads,
        resume=False,
    )
    row("trained on its grids", trained.model, labelled)
    save_model(trained.model, given.folder / f"narrow-{given.rules}.onnx")
    spent = time.perf_counter() - began
    print(f"\n{trained.note}\n{spent:.0f} s, {trained.learned} pictures; best without {max(scores.values()):.4f}")


if __name__ == "__main__":
    main()
