"""Which tokens a query sees: all before it, or a window of the last ones.

Source: the configurations of Mistral and of the Qwens in Hugging Face transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.errors import UnsupportedError

_BY_LAYER = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""`model_type` of those whose window counts only where `use_sliding_window` says so."""
_USUAL_LAYERS = 28
"""`max_window_layers` of a configuration that says nothing else."""


def read_window(values: Mapping[str, Any], kind: str, layers: int, file: Path) -> int:
    """Return the tokens that a query sees; 0: all.

    Args:
        values: Of `config.json`.
        kind: Its `model_type`.
        layers: As many as the decoder has.
        file: Named in messages.

    Raises:
        UnsupportedError: If the queries of some layers see all tokens, and those of others do not.
    """
    window = int(values.get("sliding_window") or 0)
    if kind not in _BY_LAYER:
        return window
    if not window or not values.get("use_sliding_window"):  # a Qwen has a number there whether it is used or not
        return 0
    kinds = values.get("layer_types")
    if kinds:
        return window if "sliding_attention" in kinds else 0
    if kind == "qwen3_moe":  # in all of its layers
        return window
    least = int(values.get("max_window_layers", _USUAL_LAYERS))
    seen = {i >= least for i in range(layers)}
    if kind == "qwen2_moe":  # which has windows in every second layer before
        seen = {i < least and not i % 2 for i in range(layers)}
    if len(seen) > 1:
        raise UnsupportedError(
            f"{file}: max_window_layers = {least} is not written here: a window in some of {layers} layers",
            remedy="export it with onnxruntime-genai's builder, and name the folder that it writes",
        )
    return window if seen == {True} else 0
