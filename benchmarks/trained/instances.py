"""Train the network of masks that tests use: `python benchmarks/trained/instances.py` (torch, two minutes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _common import SIDE, block, export, fix_seed, tensor
from figures import SHAPES, box_of, shapes
from torch import nn

STRIDE, PLANES = 8, 6
CELLS = SIDE // STRIDE
PICTURES, STEPS, BATCH = 1500, 700, 16


class Net(nn.Module):
    """A head of YOLO-seg at one stride: rows (1, 4 + 2 + 6, 64) and prototypes (1, 6, 16, 16)."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.stem = nn.Sequential(block(3, 16, 2), block(16, 24, 2), block(24, 24))
        self.deep = nn.Sequential(block(24, 28, 2), block(28, 28), block(28, 28, dilation=2))
        self.head = nn.Conv2d(28, 4 + len(SHAPES) + PLANES, 1)
        self.planes = nn.Sequential(block(24, 16), nn.Conv2d(16, PLANES, 1))
        y, x = torch.meshgrid(torch.arange(CELLS), torch.arange(CELLS), indexing="ij")
        self.register_buffer("centres", (torch.stack([x, y]).float().reshape(1, 2, -1) + 0.5) * STRIDE)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what an export of Ultralytics gives."""
        low = self.stem(x)
        raw = self.head(self.deep(low)).flatten(2)
        centre = self.centres + raw[:, :2] * STRIDE
        size = torch.relu(raw[:, 2:4] + 2) * STRIDE
        rows = torch.cat([centre, size, torch.sigmoid(raw[:, 4:6]), raw[:, 6:]], 1)
        return rows, self.planes(low)


def drawn(seed: int) -> tuple[np.ndarray, list[Any]]:
    """Return a picture, and of each thing class, cell of its middle, box (centre, size) and mask (16, 16), shares."""
    picture, found = shapes(seed, SIDE, SIDE)
    things = []
    for label, mask in found:
        left, top, wide, high = box_of(mask)
        x, y = left + wide / 2, top + high / 2
        share = mask.reshape(16, 4, 16, 4).mean(axis=(1, 3)).astype(np.float32)
        things.append((label, int(y // STRIDE) * CELLS + int(x // STRIDE), [x, y, wide, high], share))
    return picture, things


def loss_of(rows: torch.Tensor, planes: torch.Tensor, things: list[list[Any]]) -> torch.Tensor:
    """Return the loss of a batch: the cell of a thing's middle tells class, box and mask."""
    flat = [(i, *one) for i, many in enumerate(things) for one in many]
    picture, label, cell = (torch.tensor([one[k] for one in flat]) for k in (0, 1, 2))
    boxes, masks = torch.tensor([one[3] for one in flat]), torch.from_numpy(np.stack([one[4] for one in flat]))
    classes = torch.zeros(len(rows), len(SHAPES), CELLS * CELLS)
    classes[picture, label, cell] = 1
    mine = rows[picture, :, cell]
    logits = torch.einsum("tc,tchw->thw", mine[:, 6:], planes[picture])
    centre, half = boxes[:, :2] / 4, boxes[:, 2:] / 8 + 1
    grid = torch.arange(16) + 0.5
    wide, high = ((grid - centre[:, k : k + 1]).abs() <= half[:, k : k + 1] for k in (0, 1))
    inside = wide[:, None] & high[..., None]
    wrong = nn.functional.binary_cross_entropy_with_logits(logits, masks, reduction="none")
    mask_loss = (wrong * inside).sum() / inside.sum()
    sure = rows[:, 4:6].clamp(1e-5, 1 - 1e-5)
    right = torch.where(classes > 0, sure, 1 - sure)
    class_loss = (-((1 - right) ** 2) * right.log()).sum() / len(flat)
    return class_loss * 2 + nn.functional.smooth_l1_loss(mine[:, :4], boxes) / 2 + 3 * mask_loss


def main() -> None:
    """Train, tell the loss, write."""
    fix_seed()
    pool, chance = [drawn(10_000 + i) for i in range(PICTURES)], np.random.default_rng(0)
    made = Net()
    optimizer = torch.optim.AdamW(made.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, STEPS)
    for step in range(STEPS):
        batch = [pool[i] for i in chance.integers(0, PICTURES, BATCH)]
        loss = loss_of(*made(tensor([picture for picture, _ in batch])), [things for _, things in batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 20.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: {loss.item():.3f}", flush=True)
    export(made, "instances", ["output0", "output1"])


if __name__ == "__main__":
    main()
