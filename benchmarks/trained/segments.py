"""Train the network of tests/trained/segments.onnx: discs and squares of every colour, told apart by their shape.

Needs torch; a minute on one core. `python benchmarks/trained/segments.py` writes the same weights each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from shapes import shaped

OUT = Path(__file__).parents[2] / "tests" / "trained" / "segments.onnx"
STEPS, BATCH, FIRST = 500, 16, 100_000


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution of 3 x 3 with its normalisation."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Segments(nn.Module):
    """Down to an eighth and up again: three scores a pixel at half the size of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.deep = block(3, 12, 2), block(12, 24, 2), block(24, 32, 2)
        self.up = nn.Sequential(block(32, 24), nn.Upsample(scale_factor=2))
        self.join = nn.Sequential(block(24, 16), nn.Upsample(scale_factor=2))
        self.head = nn.Conv2d(16 + 12, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (pictures, 3, 32, 32) scores of (pictures, 3, 64, 64)."""
        first = self.first(x)
        down = self.down(first)
        return self.head(torch.cat([self.join(self.up(self.deep(down)) + down), first], dim=1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Segments()
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, STEPS)
    for step in range(STEPS):
        pairs = [shaped(FIRST + step * BATCH + i) for i in range(BATCH)]
        pictures = np.stack([picture[..., ::-1].transpose(2, 0, 1) / 255 for picture, _ in pairs])
        truth = torch.from_numpy(np.stack([mask for _, mask in pairs]).astype(np.int64))
        scores = nn.functional.interpolate(net(torch.from_numpy(pictures).float()), scale_factor=2.0, mode="bilinear")
        loss = nn.functional.cross_entropy(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"{step + 1}: {float(loss.detach()):.4f}", flush=True)
    net.eval()
    given = {"input_names": ["x"], "output_names": ["scores"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(net, (torch.zeros(1, 3, 64, 64),), str(OUT), **given)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
