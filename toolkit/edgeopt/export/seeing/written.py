"""A language model that sees as it is written, and what its Hugging Face folder tells of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, UnsupportedError
from edgeopt.export.decoder.folder import WrittenDecoder
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.graph.drift import Drift
from edgeopt.graph.model import Model
from edgeopt.recipes.texts.chat_template import SETTINGS_FILE, TEMPLATE_FILE, read_settings
from edgeopt.recipes.texts.tokens import read_tokens

_WRITES = ("ForConditionalGeneration", "ForImageTextToText")
FLAT = ("qwen2_vl", "qwen2_5_vl")
"""`model_type` whose older configurations tell of the decoder in the same table as of the whole."""


@dataclass(frozen=True, slots=True)
class WrittenSeeing:
    """A language model that sees, as two graphs and a recipe."""

    decoder: WrittenDecoder
    """Its drift is that of the logits behind texts with pictures."""
    encoder: Model
    encoder_drift: Drift
    rows: tuple[int, ...]
    """Shape of the encoder's output."""
    template: str
    """Template of conversations where it lies in a file of its own kind; empty: there is none, or it is elsewhere."""
    notes: tuple[Note, ...] = ()


def sees(folder: Path) -> bool:
    """Return whether a folder of Hugging Face holds a language model with an encoder of pictures."""
    values = configuration(folder)
    named = values.get("architectures") or [""]
    is_writer = isinstance(named, list) and str(named[0]).endswith(_WRITES)
    has_text = isinstance(values.get("text_config"), dict) or values.get("model_type") in FLAT
    return is_writer and isinstance(values.get("vision_config"), dict) and has_text


def configuration(folder: Path) -> dict[str, Any]:
    """Return `config.json` of a folder; empty where it is none."""
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def template_in(folder: Path) -> str:
    """Return the template of an older processor, `chat_template.json`, unless a newer file has it."""
    file = folder / "chat_template.json"
    has_newer = (folder / TEMPLATE_FILE).is_file() or "chat_template" in read_settings(folder / SETTINGS_FILE)
    if has_newer or not file.is_file():
        return ""
    source = read_settings(file).get("chat_template")
    return source if isinstance(source, str) else ""


def name_of_token(folder: Path, token: int, entry: str) -> str:
    """Return the name of a special token.

    Args:
        folder: In which the tokenizer lies.
        token: Its number.
        entry: Of `config.json`, that tells it.

    Raises:
        InvalidFileError: If there is no tokenizer.
        UnsupportedError: If it has no such token.
    """
    file = folder / "tokenizer.json"
    name = next((name for name, number in read_tokens(file).special.items() if number == token), "")
    if not name:
        raise UnsupportedError(
            f"{file} has no special token {token}, {entry} of config.json",
            remedy="copy the tokenizer that came with the model",
        )
    return name


class InnerWeights:
    """Weights of the decoder in a model that sees, under the names that a decoder alone has."""

    def __init__(self, weights: NamedTensors, inside: str) -> None:
        """Take the weights, whose names have `inside` where a decoder alone has `model.`."""
        self._weights, self._inside = weights, inside

    def __contains__(self, name: str) -> bool:
        return self._inner(name) in self._weights

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32."""
        return self._weights.read(self._inner(name), shape)

    def _inner(self, name: str) -> str:
        return f"{self._inside}{name.removeprefix('model.')}" if name.startswith("model.") else name
