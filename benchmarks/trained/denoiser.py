"""Train the network of tests/trained/denoiser.onnx: pictures without their noise.

Needs torch; a minute on one core. `python benchmarks/trained/denoiser.py` writes the same weights each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from shapes import noisy

OUT = Path(__file__).parents[2] / "tests" / "trained" / "denoiser.onnx"
STEPS, BATCH, FIRST = 400, 16, 100_000


class Denoiser(nn.Module):
    """Four convolutions, and the picture added."""

    def __init__(self) -> None:
        super().__init__()
        layers = list[nn.Module]()
        for before in (3, 16, 16):
            layers += [nn.Conv2d(before, 16, 3, 1, 1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(16, 3, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (pictures, 3, 64, 64), as given."""
        return x + self.body(x)


def as_input(pictures: list[np.ndarray]) -> torch.Tensor:
    """Return pictures as the network takes them, 0 to 1."""
    return torch.from_numpy(np.stack(pictures)[..., ::-1].transpose(0, 3, 1, 2) / 255).float()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Denoiser()
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, STEPS)
    for step in range(STEPS):
        pairs = [noisy(FIRST + step * BATCH + i) for i in range(BATCH)]
        given, wanted = (as_input([pair[i] for pair in pairs]) for i in (0, 1))
        loss = nn.functional.mse_loss(net(given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            noise = float(nn.functional.mse_loss(given, wanted))
            print(f"{step + 1}: {float(loss.detach()):.5f} of {noise:.5f}", flush=True)
    net.eval()
    options = {"input_names": ["x"], "output_names": ["clean"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(net, (torch.zeros(1, 3, 64, 64),), str(OUT), **options)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
