"""Train the recurrent net of tests/trained/talking.onnx: who talks, from 16 ms at a time, by a state that is fed back.

Needs torch; two minutes on one core. `python benchmarks/trained/talking.py` writes the same weights each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from tones import RATE, talk

OUT = Path(__file__).parents[2] / "tests" / "trained" / "talking.onnx"
CHUNK, CONTEXT, WIDTH = 128, 64, 40
STEPS, BATCH, LENGTH_S, FIRST = 260, 12, 2.4, 50_000


class Talking(nn.Module):
    """Learnt filters, the loudness of each, and a gated memory."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, 32, 64, 32)
        self.narrow = nn.Linear(32, 32)
        self.memory = nn.GRUCell(32, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probability, (sounds, 1), and the state, of (sounds, 192) and the state before."""
        loud = torch.relu(self.filters(x[:, None])).mean(dim=2)
        h = self.memory(torch.relu(self.narrow(loud * 10)), h)
        return torch.sigmoid(self.head(h)), h


def heard(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return windows, (n, 192), and whether somebody talks in the middle of each."""
    sound, told = talk(LENGTH_S, seed)
    count = len(sound) // CHUNK
    behind = np.concatenate([np.zeros(CONTEXT, np.float32), sound])
    windows = np.stack([behind[i * CHUNK : (i + 1) * CHUNK + CONTEXT] for i in range(count)])
    middle = (np.arange(count) + 0.5) * CHUNK / RATE
    return windows, np.any([(a <= middle) & (middle < b) for a, b in told] or [np.zeros(count, bool)], axis=0)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Talking()
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, STEPS)
    for step in range(STEPS):
        windows, truth = zip(*(heard(FIRST + step * BATCH + i) for i in range(BATCH)), strict=True)
        x, y = torch.from_numpy(np.stack(windows)), torch.from_numpy(np.stack(truth)).float()
        state, loss = torch.zeros(BATCH, WIDTH), torch.zeros(())
        for i in range(x.shape[1]):
            found, state = net(x[:, i], state)
            loss = loss + nn.functional.binary_cross_entropy(found[:, 0], y[:, i])
        loss = loss / x.shape[1]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            print(f"{step + 1}: {float(loss.detach()):.4f}", flush=True)
    net.eval()
    given = {"input_names": ["x", "h"], "output_names": ["speech", "hn"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(net, (torch.zeros(1, CHUNK + CONTEXT), torch.zeros(1, WIDTH)), str(OUT), **given)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
