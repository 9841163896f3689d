"""Shared parts of the trainings of small networks: blocks, pictures, the way into ONNX."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

REPOSITORY = Path(__file__).parents[2]
TRAINED = REPOSITORY / "tests" / "trained"
SIDE = 64
sys.path.insert(0, str(REPOSITORY / "tests" / "fixtures"))


def fix_seed() -> None:
    """Make the training repeatable on one machine."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def block(before: int, after: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return convolution, normalisation, ReLU."""
    convolution = nn.Conv2d(before, after, 3, stride, dilation, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


def tensor(pictures: Sequence[np.ndarray]) -> torch.Tensor:
    """Return pictures, BGR, as the input RGB 0..1."""
    stack = np.stack(pictures)[..., ::-1].transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(stack)).float() / 255


def export(net: nn.Module, name: str, outputs: Sequence[str]) -> None:
    """Write the network into `tests/trained`."""
    path = TRAINED / f"{name}.onnx"
    path.parent.mkdir(exist_ok=True)
    names = {"input_names": ["images"], "output_names": list(outputs)}
    torch.onnx.export(net.eval(), (torch.zeros(1, 3, SIDE, SIDE),), str(path), opset_version=17, dynamo=False, **names)
    onnx.checker.check_model(str(path))
    print(f"{path.relative_to(REPOSITORY)}: {path.stat().st_size / 1024:.0f} KiB")
