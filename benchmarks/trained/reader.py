"""Train the recogniser of tests/trained/reader.onnx: lines of 18 characters and a space, 16 x 128 grey, by CTC.

Needs torch; a minute on one core. `python benchmarks/trained/reader.py` writes the same weights each time.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from rendered import ALPHABET, random_text, written

from edgeopt.recipes.inputs.preprocess import Colour, Input, PictureInput, Preprocess, Resize

OUT = Path(__file__).parents[2] / "tests" / "trained" / "reader.onnx"
HEIGHT, WIDTH = 16, 128
STEPS, BATCH, FIRST = 600, 32, 100_000
HOW = Preprocess(Colour.GREY, Resize.LINE, scale=1 / 255, mean=(0.5,), std=(0.5,))
SYMBOLS = ALPHABET + " "


class Reader(nn.Module):
    """Convolutions to one row, 32 steps; the blank is score 0."""

    def __init__(self) -> None:
        super().__init__()
        widths, layers = (1, 16, 24, 40, 40), list[nn.Module]()
        strides = ((2, 2), (2, 2), (2, 1), (2, 1))
        for (before, after), stride in zip(pairwise(widths), strides, strict=True):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(40, len(SYMBOLS) + 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (lines, 32 steps, 20) scores of (lines, 1, 16, 128)."""
        return self.head(self.body(x)).mean(dim=2).transpose(1, 2)


class Softmaxed(nn.Module):
    """As PaddleOCR exports: probabilities."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores as probabilities."""
        return self.reader(x).softmax(dim=2)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, feed = Reader(), PictureInput(Input(size=(HEIGHT, WIDTH)), HOW, reuse=False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, STEPS)
    loss_of = nn.CTCLoss()
    for step in range(STEPS):
        seeds = [FIRST + step * BATCH + i for i in range(BATCH)]
        texts = [random_text(one) for one in seeds]
        pictures = torch.from_numpy(np.concatenate([feed(written(t, s))[0] for t, s in zip(texts, seeds, strict=True)]))
        truth = torch.tensor([SYMBOLS.index(one) + 1 for text in texts for one in text])
        scores = net(pictures).log_softmax(dim=2).transpose(0, 1)
        loss = loss_of(scores, truth, torch.full((BATCH,), len(scores)), torch.tensor([len(one) for one in texts]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"{step + 1}: {float(loss.detach()):.4f}", flush=True)
    net.eval()
    given = {"input_names": ["x"], "output_names": ["text"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(Softmaxed(net), (torch.zeros(1, 1, HEIGHT, WIDTH),), str(OUT), **given)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
