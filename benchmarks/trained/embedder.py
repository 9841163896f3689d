"""Train the network of tests/trained/embedder.onnx: 32 numbers, alike for pictures of the same outline.

It is taught on twelve outlines, by a softmax over cosines; the tests ask for all sixteen. Needs torch; a minute on one
core. `python benchmarks/trained/embedder.py` writes the same weights each time.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from shapes import thing

OUT = Path(__file__).parents[2] / "tests" / "trained" / "embedder.onnx"
STEPS, BATCH, FIRST, TAUGHT = 500, 36, 100_000, 12


class Embedder(nn.Module):
    """Four convolutions, their mean, 32 numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers = list[nn.Module]()
        for before, after in pairwise((3, 16, 24, 32, 44)):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(44 * 9, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (pictures, 32) of (pictures, 3, 48, 48)."""
        return self.head(self.body(x).flatten(1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, centres = Embedder(), nn.Parameter(torch.randn(TAUGHT, 32))
    optimizer = torch.optim.Adam([*net.parameters(), centres])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, STEPS)
    for step in range(STEPS):
        kinds = np.arange(BATCH) % TAUGHT
        pictures = np.stack([thing(int(k), FIRST + step * BATCH + i) for i, k in enumerate(kinds)])
        x = torch.from_numpy(pictures[..., ::-1].transpose(0, 3, 1, 2) / 255).float()
        cosines = nn.functional.normalize(net(x), dim=1) @ nn.functional.normalize(centres, dim=1).T
        loss = nn.functional.cross_entropy(cosines * 12, torch.from_numpy(kinds))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"{step + 1}: {float(loss.detach()):.4f}", flush=True)
    net.eval()
    given = {"input_names": ["x"], "output_names": ["vector"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(net, (torch.zeros(1, 3, 48, 48),), str(OUT), **given)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
