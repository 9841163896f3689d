"""Train the network of points that tests use: `python benchmarks/trained/keypoints.py` (torch, two minutes)."""

from __future__ import annotations

import numpy as np
import torch
from _common import SIDE, block, export, fix_seed, tensor
from figures import POINTS, rod
from torch import nn

CELLS = SIDE // 4
STEPS, BATCH = 900, 24


def net() -> nn.Sequential:
    """Return a network of 3 maps, 16 x 16."""
    layers = [block(3, 16, 2), block(16, 24, 2), block(24, 24), block(24, 24, dilation=2), block(24, 24, dilation=3)]
    return nn.Sequential(*layers, nn.Conv2d(24, len(POINTS), 1))


def batch(first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures and their maps: a bump of one cell's width at each point."""
    pairs = [rod(10_000 + i, SIDE, SIDE) for i in range(first, first + BATCH)]
    places = np.stack([points for _, points in pairs]) / 4 - 0.5
    y, x = np.mgrid[:CELLS, :CELLS]
    far = np.square(x - places[..., :1, None]) + np.square(y - places[..., 1:, None])
    return tensor([picture for picture, _ in pairs]), torch.from_numpy(np.exp(-far / 2).astype(np.float32))


def main() -> None:
    """Train, tell the error, write."""
    fix_seed()
    made = net()
    optimizer = torch.optim.AdamW(made.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS)
    for step in range(STEPS):
        pictures, maps = batch(step * BATCH)
        loss = ((made(pictures) - maps) ** 2 * (1 + 20 * maps)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: {loss.item():.4f}", flush=True)
    export(made, "keypoints", ["maps"])


if __name__ == "__main__":
    main()
