"""The table `[image]` of a language model that sees: from the configurations of Hugging Face beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.recipes.inputs.pillow_resize import Resample
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.texts.chat_template import read_settings

IMAGE_ENCODER = "image_encoder.onnx"
"""The encoder with its projector, beside the decoder that it feeds."""
IN_TILES = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}
"""`model_type` of models whose pictures are cut into tiles."""
IN_PATCHES = {"qwen2_vl": "Qwen2-VL", "qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL"}
"""`model_type` of models whose pictures are cut into patches, in a grid of their own proportions."""
_PICTURES, _WHOLE = "preprocessor_config.json", "processor_config.json"
_REMEDY = "copy the folder again"
_RESAMPLES = {1: Resample.LANCZOS, 2: Resample.BILINEAR, 3: Resample.BICUBIC}
"""Pillow's numbers."""
_STANDARD = (0.5, 0.5, 0.5)
"""Hugging Face's IMAGENET_STANDARD."""
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Hugging Face's OPENAI_CLIP_MEAN and OPENAI_CLIP_STD."""
_LEAST_PIXELS, _MOST_PIXELS = 56 * 56, 28 * 28 * 1280
"""Pixels that Qwen2VLImageProcessor takes where nothing is told."""
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
    whole, values = _settings(folder)
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
            f"{folder / _PICTURES} cuts tiles of {table.tile} pixels, "
            f"the encoder of this {IN_TILES[kind]} takes {side}",
            remedy="correct max_image_size, or image_size in config.json",
        )
    stated = whole.get("image_seq_len")
    if stated is not None and stated != rows:
        raise UnsupportedError(
            f"{folder / _WHOLE} tells of {stated} rows a tile, the encoder gives {rows}",
            remedy="correct image_seq_len",
        )
    return table


def patch_table(
    folder: Path, *, patch: int, merge: int, window: int, positions: int, marks: tuple[str, str, str]
) -> ImageTable:
    """Return how the processor of a folder cuts pictures into patches.

    Args:
        folder: That `save_pretrained` wrote.
        patch: Pixels of a side of a patch, as the encoder takes them.
        merge: Patches of a side of the square that becomes one row.
        window: Patches of a side of a window; 0: there are none.
        positions: Lines and columns of the table of learned positions; 0: there is none.
        marks: Names of the token of a picture, and of those before and behind it.

    Raises:
        InvalidFileError: If a configuration is damaged or missing.
        UnsupportedError: If the processor does what is not done here.
    """
    _, values = _settings(folder)
    try:
        size = values.get("size") or {}
        least, most = values.get("min_pixels"), values.get("max_pixels")
        token, before, behind = marks
        table = ImageTable(
            encoder=IMAGE_ENCODER,
            token=token,
            patch=int(values.get("patch_size", patch)),
            merge=int(values.get("merge_size", merge)),
            window=window,
            positions=positions,
            least_pixels=int(size.get("shortest_edge", _LEAST_PIXELS) if least is None else least),
            most_pixels=int(size.get("longest_edge", _MOST_PIXELS) if most is None else most),
            resample=_RESAMPLES[int(values.get("resample", 3))],
            scale=float(values.get("rescale_factor", 1 / 255)),
            mean=tuple(float(number) for number in values.get("image_mean") or _CLIP_MEAN),
            std=tuple(float(number) for number in values.get("image_std") or _CLIP_STD),
            before=before,
            behind=behind,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFileError(f"{folder / _PICTURES} holds what is not known here: {error}", remedy=_REMEDY) from error
    if (table.patch, table.merge) != (patch, merge):
        raise UnsupportedError(
            f"{folder / _PICTURES} cuts patches of {table.patch} pixels, {table.merge}x{table.merge} a row; "
            f"the encoder takes {patch} and {merge}x{merge}",
            remedy="correct patch_size and merge_size",
        )
    return table


def _settings(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what the processor's files tell: of the whole, and of pictures.

    Raises:
        InvalidFileError: If nothing tells of pictures.
        UnsupportedError: If a step is switched off.
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
    return whole, values
