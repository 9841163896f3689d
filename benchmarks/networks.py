"""Networks with random weights that behave as trained ones do, in sizes that matter to a device.

Random weights alone give answers that hardly depend on the input, and no 8-bit form could be told from another by them.
`settle` starts each layer from data (Salimans and Kingma 2016, arXiv:1602.07868): every layer answers with mean 0 a
channel and variance 1 on the samples given, batch norms take the statistics of these samples, and so do the heads:
classes differ from sample to sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from made_texts import MOODS, write_tokenizer
from numpy.typing import NDArray

NORMAL = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}
SIDE = {"mobilenet": 160, "vit": 128, "segformer": 128, "detr": 160, "module": 128}
"""Pixels of the pictures; what is not here takes texts or sounds."""
TOKENS, CLASSES = 32, 10
SILENT = 1e-4
"""Spread of a layer that answers the same to everything, as the values of DETR's first queries do."""
KINDS = (*SIDE, "bert", "whisper")

MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.deep, self.norm = nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False), nn.BatchNorm2d(width)
        self.point = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + self.point(nn.functional.silu(self.norm(self.deep(x))))


class Net(nn.Sequential):
    def __init__(self):
        layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), Block(32), Block(32), nn.Conv2d(32, 96, 3, 2, 1), nn.SiLU()]
        layers += [*(Block(96) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)]
        super().__init__(*layers)


def net():
    made = Net()
    made.load_state_dict(torch.load(__file__.replace(".py", ".weights"), weights_only=True))
    return made
"""


def make(kind: str) -> Any:
    """Return a network of PyTorch with random weights."""
    import torch
    import transformers as t

    torch.manual_seed(0)
    if kind == "module":
        space: dict[str, Any] = {}
        exec(MODULE, space)  # the text is what the export imports
        return space["Net"]()
    if kind == "mobilenet":
        return t.MobileNetV2ForImageClassification(t.MobileNetV2Config(image_size=SIDE[kind], num_labels=CLASSES))
    sizes = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
    if kind == "vit":
        return t.ViTForImageClassification(t.ViTConfig(image_size=SIDE[kind], num_labels=CLASSES, **sizes))
    if kind == "segformer":
        return t.SegformerForSemanticSegmentation(t.SegformerConfig(num_labels=CLASSES))
    if kind == "detr":
        return t.DetrForObjectDetection(_detr(t))
    if kind == "bert":
        names = dict(enumerate(MOODS))
        return t.BertForSequenceClassification(
            t.BertConfig(vocab_size=400, max_position_embeddings=TOKENS, id2label=names, **sizes)
        )
    speech = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 1, "vocab_size": 60, "pad_token_id": 0}
    speech |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return t.WhisperForConditionalGeneration(t.WhisperConfig(**speech, encoder_ffn_dim=1536, encoder_attention_heads=6))


def _detr(t: Any) -> Any:
    backbone = t.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_type="basic", out_features=["stage3"]
    )
    sizes = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "num_queries": 20, "num_labels": CLASSES}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
    theirs = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    return t.DetrConfig(**theirs, backbone_config=backbone, **sizes, **heads)


def settle(module: Any, samples: Sequence[Mapping[str, Any]]) -> None:
    """Start the layers of a network from samples, in one run of it.

    Args:
        module: Its Linear and Conv layers are scaled in place, batch norms take the samples' statistics.
        samples: Arrays by name in the order of `forward`, a sample each of batch 1.
    """
    import torch
    from torch import nn

    seen: set[Any] = set()

    def start(layer: Any, _: Any, answer: Any) -> Any:
        channels = answer.ndim - 1 if isinstance(layer, nn.Linear) else 1
        others = [axis for axis in range(answer.ndim) if axis != channels]
        mean = answer.mean(others, keepdim=True) if layer.bias is not None else torch.zeros(())
        spread = (answer - mean).std()
        if layer in seen or spread < SILENT:
            return answer
        seen.add(layer)
        layer.weight.data /= spread
        if layer.bias is not None:
            layer.bias.data = (layer.bias.data - mean.flatten()) / spread
        return (answer - mean) / spread

    layers = [one for one in module.modules() if isinstance(one, nn.Linear | nn.Conv1d | nn.Conv2d)]
    hooks = [one.register_forward_hook(start) for one in layers]
    module.eval()
    for one in module.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.train().momentum = None  # the average of all that is seen
    with torch.no_grad():
        module(*(torch.from_numpy(np.concatenate([one[name] for one in samples])) for name in samples[0]))
    for hook in hooks:
        hook.remove()
    module.eval()


def store(kind: str, module: Any, folder: Path) -> str:
    """Write a network as its users do, and return the SOURCE that `export` takes."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    if kind == "module":
        (folder / "silu_module.py").write_text(MODULE)
        torch.save(module.state_dict(), folder / "silu_module.weights")
        return "torch:silu_module:net"
    module.save_pretrained(folder)
    if kind in SIDE:
        square = {"height": SIDE[kind], "width": SIDE[kind]}
        name = {"mobilenet": "MobileNetV2ImageProcessor", "vit": "ViTImageProcessor"}.get(kind, "DetrImageProcessor")
        processor: dict[str, Any] = {"image_processor_type": name, "size": square, **NORMAL}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    elif kind == "bert":
        write_tokenizer(folder / "tokenizer.json")
        told = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return f"hf:{folder}"


def picture(file: Path, side: int) -> NDArray[np.float32]:
    """Return a picture of shape (1, 3, side, side) as the processor that `store` writes makes it."""
    read = cv2.cvtColor(cv2.resize(cv2.imread(str(file)), (side, side)), cv2.COLOR_BGR2RGB) / 255
    normal = (read - NORMAL["image_mean"]) / NORMAL["image_std"]
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None], np.float32)


def tokens(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return texts as the network of texts takes them."""
    from tokenizers import Tokenizer

    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder, "tokenizer.json"))
        tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    tokenizer.enable_padding(length=TOKENS)
    tokenizer.enable_truncation(TOKENS)
    read = [tokenizer.encode(text) for text in texts]
    return [
        {
            "input_ids": np.array([one.ids]),
            "attention_mask": np.array([one.attention_mask]),
            "token_type_ids": np.array([one.type_ids]),
        }
        for one in read
    ]


def spectrograms(count: int) -> list[dict[str, Any]]:
    """Return spectrograms (1, 80, 3000) of tones that glide and pause, in Whisper's range."""
    made = []
    for seed in range(count):
        chance = np.random.default_rng(seed)
        time, band = np.arange(3000)[None], np.arange(80)[:, None]
        pitch = sum(
            chance.uniform(2, 12) * np.sin(time / chance.uniform(40, 400) + chance.uniform(0, 6)) for _ in "abc"
        )
        loud = np.repeat(chance.random(60) ** 2, 50)[None]
        energy = sum(np.exp(-0.5 * ((band - 20 * part - pitch) / 2.5) ** 2) / part for part in (1, 2, 3)) * loud
        values = np.log10(energy + 1e-3 * chance.random((80, 3000)) + 1e-8)
        values = (np.maximum(values, values.max() - 8) + 4) / 4
        made.append({"input_features": np.asarray(values[None], np.float32)})
    return made
