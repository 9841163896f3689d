"""The towers of a network that sees and reads, such as CLIP: each is exported by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeopt.errors import UnsupportedError
from edgeopt.recipes.drafting.hugging_face import PICTURE

_TOKENS = "input_ids"
_WITH_VECTOR, _ALONE = "ModelWithProjection", "Model"


def tower_of(class_name: str, transformers: Any, config: Any, inputs: Sequence[str]) -> str:
    """Return the class to open: of a network of two towers the one that takes these inputs, else the class itself.

    Args:
        class_name: That the configuration names.
        transformers: The package.
        config: Of the network.
        inputs: Names that were asked for; empty: none.

    Raises:
        UnsupportedError: If there are two towers and nothing tells which.
    """
    parts = [getattr(config, word, None) for word in ("vision_config", "text_config")]
    kind = class_name.removesuffix(_ALONE)
    towers = {
        name: next((word for end in (_WITH_VECTOR, _ALONE) if hasattr(transformers, word := f"{kind}{tower}{end}")), "")
        for name, tower in ((PICTURE, "Vision"), (_TOKENS, "Text"))
    }
    if None in parts or kind == class_name or not all(towers.values()):
        return class_name
    asked = {*inputs} & {*towers}
    if len(asked) == 2:
        return class_name
    if not asked:
        side, length = getattr(parts[0], "image_size", 224), getattr(parts[1], "max_position_embeddings", 77)
        raise UnsupportedError(
            f"{class_name} is two towers, one that sees and one that reads, and each is exported by itself",
            remedy=f"add --input {PICTURE}=1x3x{side}x{side}, or --input {_TOKENS}=1x{length}:int64",
        )
    return towers[asked.pop()]
