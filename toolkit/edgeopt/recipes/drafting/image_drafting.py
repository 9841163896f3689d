"""The table `[image]` of a language model that sees: from the configurations of Hugging Face beside it."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.recipes.inputs.pillow_resize import Resample
from edgeopt.recipes.inputs.tiles import ImageTable
from edgeopt.recipes.texts.chat_template import read_settings

IMAGE_ENCODER = "image_encoder.onnx"
"""The encoder with its projector, beside the decoder that it feeds."""
SEEING = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}
"""`model_type` of models whose pictures are done here."""
_PICTURES, _WHOLE = "preprocessor_config.json", "processor_config.json"
_REMEDY = "copy the folder again"
_RESAMPLES = {1: Resample.LANCZOS, 2: Resample.BILINEAR, 3: Resample.BICUBIC}
"""Pillow's numbers."""
_STANDARD = (0.5, 0.5, 0.5)
"""Hugging Face's IMAGENET_STANDARD."""
_NEEDED = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")


def image_table(folder: Path, kind: str, side: int, rows: int, token: str) -> ImageTable:
    """Return how the processor of a folder feeds pictures.

    Args:
        folder: That `save_pretrained` wrote.
        kind: The network's `model_type`.
        side: Pixels of a side that the encoder takes.
        rows: That the encoder gives for them.
        token: Name of the token at whose places they stand.

    Raises:
        InvalidFileError: If a configuration is damaged or missing.
        UnsupportedError: If the processor does what is not done here.
    """
    whole = read_settings(folder / _WHOLE)
    inner = whole.get("image_processor")
    values = read_settings(folder / _PICTURES) or (inner if isinstance(inner, dict) else {})
    if not values:
        raise InvalidFileError(
            f"{folder} has no {_PICTURES}: nothing tells how pictures are fed",
            remedy="copy it from where the model came from",
        )
    left = [name for name in _NEEDED if values.get(name) is False]
    if left:
        raise UnsupportedError(
            f"{folder / _PICTURES}: {left[0]} = false is not done here",
            remedy="leave it true, as the model was trained",
        )
    try:
        size = values.get("size") or {}
        tile = (values.get("max_image_size") or {}).get("longest_edge", 364)
        longest = size.get("longest_edge", 4 * 364) if size else 4 * 364
        table = ImageTable(
            encoder=IMAGE_ENCODER,
            token=token,
            rows=rows,
            tile=int(tile),
            longest=int(longest),
            splits=bool(values.get("do_image_splitting", True)),
            resample=_RESAMPLES[int(values.get("resample", 1))],
            scale=float(values.get("rescale_factor", 1 / 255)),
            mean=tuple(float(number) for number in values.get("image_mean") or _STANDARD),
            std=tuple(float(number) for number in values.get("image_std") or _STANDARD),
            around="<fake_token_around_image>",
            whole="<global-img>",
            part="<row_{row}_col_{column}>",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFileError(f"{folder / _PICTURES} holds what is not known here: {error}", remedy=_REMEDY) from error
    if table.tile != side:
        raise UnsupportedError(
            f"{folder / _PICTURES} cuts tiles of {table.tile} pixels, the encoder of this {SEEING[kind]} takes {side}",
            remedy="correct max_image_size, or image_size in config.json",
        )
    stated = whole.get("image_seq_len")
    if stated is not None and stated != rows:
        raise UnsupportedError(
            f"{folder / _WHOLE} tells of {stated} rows a tile, the encoder gives {rows}",
            remedy="correct image_seq_len",
        )
    return table
