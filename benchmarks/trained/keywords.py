"""Train the keyword net of tests/trained/keywords.onnx: four keywords from the log-mel of half a second.

Needs torch; half a minute on one core. `python benchmarks/trained/keywords.py` writes the same weights each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from tones import KEYWORD_SAMPLES, KEYWORDS, RATE, keyword

from edgeopt.recipes.inputs.audio import Audio, Features
from edgeopt.recipes.inputs.features import FeatureMaker

OUT = Path(__file__).parents[2] / "tests" / "trained" / "keywords.onnx"
HEARD = Audio(
    rate_hz=RATE, features=Features.TORCHAUDIO, samples=KEYWORD_SAMPLES, fft=256, step=128, bands=24, mean=-2.0, std=4.0
)
STEPS, BATCH, FIRST = 220, 32, 100_000


class Keywords(nn.Module):
    """Convolutions over bands and frames, and the mean of what they find."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, (2, 1), 1), nn.ReLU()),
            *(nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU()),
            *(nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU()),
        )
        self.head = nn.Linear(32 * 3, len(KEYWORDS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (sounds, 4) logits of (sounds, 1, 24, 32)."""
        return self.head(self.body(x).mean(dim=3).flatten(1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, hear = Keywords(), FeatureMaker(HEARD)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(STEPS):
        kinds = [i % len(KEYWORDS) for i in range(BATCH)]
        heard = np.stack([hear(keyword(kind, FIRST + step * BATCH + i)) for i, kind in enumerate(kinds)])
        loss = nn.functional.cross_entropy(net(torch.from_numpy(heard)[:, None]), torch.tensor(kinds))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"{step + 1}: {float(loss.detach()):.4f}", flush=True)
    net.eval()
    given = {"input_names": ["mel"], "output_names": ["scores"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(net, (torch.zeros(1, 1, *hear.shape),), str(OUT), **given)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
