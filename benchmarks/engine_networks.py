"""Write eleven of timm's small families as ONNX, with random weights that tell pictures apart.

    PYTHONPATH=toolkit python benchmarks/engine_networks.py PICTURES FOLDER

A network of plain random weights answers every picture alike, and agrees with whatever was made of it. Here the running
statistics of its normalisations are those of the first 64 pictures, and the bias of its last layer takes away the mean
of its logits, so that the answers differ by little: agreement on them is a harder measure than a trained network's.
Needs timm and the extra `export`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from timm_families import CHOSEN, make

from edgeopt.errors import EdgeoptError
from edgeopt.export.export import export
from edgeopt.export.network import NetworkInput

NETWORKS = {
    "convnext_atto": 224,
    "deit_tiny_patch16_224": 224,
    "edgenext_xx_small": 256,
    "efficientnet_b0": 224,
    "ghostnet_100": 224,
    "lcnet_100": 224,
    "mnasnet_100": 224,
    "mobilenetv2_100": 224,
    "mobilenetv3_small_100": 224,
    "regnetx_002": 224,
    "resnet18": 224,
}
"""Names of timm, and the side of the picture (pixels)."""
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PICTURES = 64


def settled() -> Any:
    """Return the chosen network after it saw the pictures."""
    import torch

    network = make()
    pictures = torch.from_numpy(pictures_of(Path(sys.argv[1]), NETWORKS[CHOSEN[0]]))
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None  # the mean over all that it sees
            part.train()
    with torch.no_grad():
        for batch in pictures.split(16):
            network(batch)
        network.eval()
        logits = torch.cat([network(batch) for batch in pictures.split(16)])
        last = [part for part in network.modules() if isinstance(part, torch.nn.Linear)][-1]
        last.bias -= logits.mean(0)
        last.weight /= logits.std()
        last.bias /= logits.std()
    return network


def pictures_of(folder: Path, side: int) -> np.ndarray:
    """Return the first pictures of a folder as the networks take them, N x 3 x side x side, float32."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in {".jpg", ".jpeg", ".png"})[:_PICTURES]
    read = [cv2.resize(cv2.imread(str(file))[..., ::-1], (side, side)) for file in files]
    scaled = (np.stack(read) / 255 - _MEAN) / _DEVIATION
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32)


def main(folder: Path) -> None:
    """Write the networks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in NETWORKS.items():
        CHOSEN[0] = name
        shape = NetworkInput("images", (1, 3, side, side))
        try:
            made = export("torch:engine_networks:settled", out=folder / f"{name}.onnx", inputs=[shape])
        except EdgeoptError as error:
            print(f"{name}: {error.problem}", flush=True)
            continue
        print(f"{name}: {made.outputs[0].drift.sqnr_db:.0f} dB from PyTorch", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[2]))
