"""Quantization-aware training wins back part of what quantization loses, from each form that needs no training.

    python benchmarks/training/quantization_aware.py NET [--rules xint8] [--minutes 3] [--start HOW]

NET is `mobile` or `narrow`, classifiers of handwritten digits that are trained here first (`benchmarks/pruning/nets.py`
makes the pictures), `yolox` or `squeezenet`. Everything but the prediction layers of detectors runs on integers, as on
a device that has no floats. Prints the metric of the float net, of every form that `edgeopt finetune --quantize` makes
without training, and of what training makes of the one that is named, or of the one that loses least on held-out
pictures. ONNX Runtime computes all of it; labels are seen there alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "pruning"))
import nets

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, model_inputs, open_labelled
from edgeopt.measurement.opening.given import open_given
from edgeopt.optimization.run import Ears
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps.finetune.distil import distil, split
from edgeopt.steps.finetune.starts import best_start, integer_forms, written_plainly
from edgeopt.system.declared.target import Granularity, Int8Rules, find_target
from edgeopt.tasks import Task, make_task

DATA = Path(__file__).parents[3] / "shared" / "data"
PER_TENSOR = Granularity.PER_TENSOR
RULES = {
    "one-scale": Int8Rules(weight_granularity=PER_TENSOR),
    "symmetric": Int8Rules(activation_dtype="int8", symmetric_activations=True, weight_granularity=PER_TENSOR),
    "shared-7-bit": Int8Rules(weight_granularity=PER_TENSOR, reduce_range=True),
    "per-channel": Int8Rules(),
    "xint8": find_target("amd-ryzen-ai").int8,
}
SPREAD = 0.7
"""Standard deviation of the logarithm of a channel's strength in `narrow`."""
STEPS = {"mobile": 1500, "narrow": 1200}
"""Steps of training the float net, by its name."""
CALIBRATED = 48
"""Pictures on which grids are chosen."""


@dataclass(frozen=True)
class Case:
    """A float net with its data."""

    model: Path
    recipe: str | None
    calib: Path
    eval: Path


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


def case_of(name: str, folder: Path) -> Case:
    """Return a net, trained where it is not there yet."""
    if name == "yolox":
        return Case(DATA / "models/yolox_nano_416.onnx", "yolox", DATA / "coco/calib", DATA / "coco/instances_val.json")
    if name == "squeezenet":
        labels = DATA / "imagenet/val_labels.csv"
        return Case(DATA / "models/squeezenet_224.onnx", "imagenet_caffe", DATA / "imagenet/calib", labels)
    path = folder / f"{name}.onnx"
    if not path.is_file():
        sys.path.insert(0, str(nets.EXAMPLE))
        folder.mkdir(parents=True, exist_ok=True)
        images, labels = nets.write_pictures(folder)
        nets.network = lambda name: NETS[name]()
        nets.export(nets.train(name, images, labels, STEPS[name]), path)
    return Case(path, None, folder / "calib", folder / "eval" / "labels.csv")


def score(model: Model, recipe: Recipe, labelled: LabelledFrames) -> str:
    """Return the metrics on labelled pictures."""
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    session = EXECUTOR.open(model.data, SessionOptions())
    found = answers(session, task, labelled.frames)
    session.close()
    return str(task.score(found, labelled.labels))


def outputs(model: Model, samples: Sequence[Tensors]) -> list[Tensors]:
    """Return what a model makes of its inputs."""
    session = EXECUTOR.open(model.data, SessionOptions())
    found = [{name: np.array(value) for name, value in session.run(one).items()} for one in samples]
    session.close()
    return found


def read(task: Task, frames: object, count: int = 0) -> list[Tensors]:
    """Return inputs of some of the pictures, all of them at 0."""
    found = model_inputs(task, frames.spread(count) if count else frames)
    return [{name: np.array(value) for name, value in one.items()} for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("net", choices=("yolox", "squeezenet", *NETS))
    parser.add_argument("--rules", choices=RULES, default="xint8")
    parser.add_argument("--start", default="", help="a form by its name [the one that loses least]")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training on grids; 0: none [%(default)s]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "edgeopt-pruning-nets")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.net not in NETS and not DATA.is_dir():
        print(f"left out: {DATA} is absent")
        return
    case = case_of(given.net, given.folder)
    opened = open_given(str(case.model), "cpu", case.recipe, labels=str(case.eval))
    recipe, frames, labelled = opened.recipe, open_frames(case.calib), open_labelled(case.eval)
    task = make_task(recipe, opened.model.inputs, opened.model.outputs, evaluating=True)
    taught, watched, _ = split(frames)
    samples, held_out = read(task, taught, CALIBRATED), read(task, watched)
    dense = written_plainly(opened.model, samples)
    wanted = outputs(dense, held_out)

    def loss(model: Model) -> float:
        pairs = zip(outputs(model, held_out), wanted, strict=True)
        return float(np.mean([task.loss([a], [b]) for a, b in pairs]))

    forms = integer_forms(dense, RULES[given.rules], samples)
    best = best_start(forms, loss)
    print(f"{given.net}, rules {given.rules}\n\n| | held-out loss | metric |\n|---|--:|---|", flush=True)
    print(f"| float | 0 | {score(dense, recipe, labelled)} |", flush=True)
    for how, form in forms.items():
        print(f"| {how} | {best.losses[how]:.4f} | {score(form, recipe, labelled)} |", flush=True)
    if not given.minutes:
        return
    how, began = given.start or best.how, time.perf_counter()
    given.folder.mkdir(parents=True, exist_ok=True)
    hears = Ears(lambda text: print(text, file=sys.stderr), None)
    settings = {"threads": given.threads, "resume": False, "checkpoint": f"{given.net}-{given.rules}.npz"}
    trained = distil(forms[how], dense, frames, recipe, given.minutes, hears, given.folder, **settings)
    print(f"| trained from what is {how} | {loss(trained.model):.4f} | {score(trained.model, recipe, labelled)} |")
    save_model(trained.model, given.folder / f"{given.net}-{given.rules}.onnx")
    print(f"\n{trained.note}\n{time.perf_counter() - began:.0f} s, {trained.curve[-1].step} steps")


if __name__ == "__main__":
    main()
