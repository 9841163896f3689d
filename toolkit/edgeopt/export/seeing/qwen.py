"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL, from a Hugging Face folder: encoder and decoder are written from the weights.

Nothing is traced, so torch is not needed; both graphs are compared with NumPy on the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import LOGITS, Decoder, cache_parts, shares_cache
from edgeopt.executors.onnxruntime.image_rows import AXES, EncodedPicture, ImageToken
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.export.decoder.folder import TOLERANCE, WrittenDecoder, decoder_recipe
from edgeopt.export.decoder.llama import LlamaConfiguration, configuration_of, write_llama
from edgeopt.export.decoder.positions import THREE_AXES, axes_of_pairs
from edgeopt.export.decoder.quantized import read_scheme
from edgeopt.export.decoder.reference import Reference
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.export.seeing.vision import IMAGE_ROWS_OUT, VisionConfiguration, write_vision
from edgeopt.export.seeing.vision_reference import VisionReference
from edgeopt.export.seeing.written import InnerWeights, WrittenSeeing, configuration, name_of_token, template_in
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.recipes.drafting.image_drafting import IN_PATCHES, patch_table
from edgeopt.recipes.inputs.seen.patches import feeds_of
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.texts.chat_template import read_settings
from edgeopt.recipes.texts.seen_prompt import ImageMarks
from edgeopt.recipes.texts.tokens import read_tokens

_TEXT_KINDS = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
"""The decoder of which a decoder alone is the same, but for its positions."""
_GRIDS = ((3, 5), (2, 2))
"""Lines and columns of rows of made-up pictures on which both answer: more than a window, and less."""
_BEFORE, _BETWEEN, _BEHIND = 4, 3, 8
"""Tokens before, between and behind two pictures of a made-up text."""
_MANY_ROWS = 4096
"""Tokens of one picture beyond which export tells of the limit: a long time on a processor."""
_REMEDY = "copy the folder again"


def write_qwen(folder: Path, name: str) -> WrittenSeeing:
    """Return encoder and decoder of a folder, both compared with NumPy on the same weights.

    Raises:
        InvalidFileError: If a file of the folder is damaged or missing.
        UnsupportedError: If it asks for what the graphs do not compute, or one answers differently.
    """
    values, file = configuration(folder), folder / "config.json"
    kind = str(values.get("model_type"))
    require_float(values, file)
    config = _decoder_configuration(values, kind, folder)
    vision = VisionConfiguration.read(values["vision_config"], kind, config.hidden, file)
    if vision.outputs != config.hidden or len(vision.deep_layers) > config.layers:
        raise InvalidFileError(f"{file}: rows of the encoder do not fit the decoder", remedy=_REMEDY)
    table = patch_table(
        folder,
        patch=vision.patch,
        merge=vision.merge,
        window=vision.window,
        positions=vision.positions,
        marks=_marks(values, folder),
    )
    ImageMarks(table, read_tokens(folder / "tokenizer.json"))
    weights = TensorFiles(folder)
    inside = "model.visual." if "model.visual.patch_embed.proj.weight" in weights else "visual."
    seen = _VisionWeights(weights, inside)
    encoder = write_vision(vision, seen, f"{name}-image-encoder")
    encoder_drift, rows = _compare_encoder(encoder, vision, seen, table)
    told = InnerWeights(weights, _inside(weights))
    decoder = write_llama(config, told, name, sees=True, deep=len(vision.deep_layers))
    drift = _compare_decoder(decoder, config, Reference(config, told), vision, texts=len(_GRIDS))
    recipe = replace(decoder_recipe(folder, config, name), image=table)
    recipe = replace(recipe, description=f"{IN_PATCHES[kind]}, {recipe.description}, sees pictures")
    framework = f"NumPy {np.__version__}, its weights computed plainly"
    written = WrittenDecoder(decoder, recipe, drift, config.vocabulary, framework, texts=len(_GRIDS))
    return WrittenSeeing(written, encoder, encoder_drift, rows, template_in(folder), _told_of_size(table))


def _told_of_size(table: ImageTable) -> tuple[Note, ...]:
    most = table.most_pixels // table.factor**2
    if most <= _MANY_ROWS:
        return ()
    text = f"a picture may become {most} tokens ({table.most_pixels} pixels), as the processor's settings have it"
    return (Note(NoteKind.INFO, text, "write a smaller most_pixels in recipe.toml, such as 1003520 for 1280 tokens"),)


def require_float(values: Mapping[str, Any], file: Path) -> None:
    """Raise where matrices are stored in integers.

    Raises:
        UnsupportedError: If so.
    """
    if values.get("quantization_config") and read_scheme(values, file) is not None:
        raise UnsupportedError(
            f"{file}: a model that sees is not read from weights in integers", remedy="name the folder in float"
        )


def _decoder_configuration(values: Mapping[str, Any], kind: str, folder: Path) -> LlamaConfiguration:
    """Return the configuration of the decoder, with the tokens that end an answer as `generate` knows them."""
    file = folder / "config.json"
    text = values.get("text_config")
    text = dict(text if isinstance(text, dict) else values)
    scaling = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping) or THREE_AXES not in scaling:
        raise InvalidFileError(f"{file} has no {THREE_AXES}: nothing tells how positions turn", remedy=_REMEDY)
    plain = {key: value for key, value in scaling.items() if key not in (THREE_AXES, "mrope_interleaved")}
    for key in ("type", "rope_type"):
        if plain.get(key) == "mrope":
            plain[key] = "default"
    text["rope_parameters"], text["rope_scaling"] = plain, None
    text["tie_word_embeddings"] = bool(values.get("tie_word_embeddings") or text.get("tie_word_embeddings"))
    ends = read_settings(folder / "generation_config.json").get("eos_token_id", values.get("eos_token_id"))
    if ends is not None:
        text["eos_token_id"] = ends
    config = configuration_of(text, _TEXT_KINDS[kind], file)
    try:
        axes = axes_of_pairs(scaling, config.head // 2)
    except (TypeError, ValueError) as error:
        raise InvalidFileError(f"{file} holds positions that are none: {error}", remedy=_REMEDY) from error
    return replace(config, positions=replace(config.positions, axes=axes))


def _marks(values: Mapping[str, Any], folder: Path) -> tuple[str, str, str]:
    """Return the names of the tokens of a picture, and of those before and behind it."""
    entries = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
    numbers = [values.get(entry) for entry in entries]
    if not all(isinstance(number, int) for number in numbers):
        raise InvalidFileError(f"{folder / 'config.json'} lacks one of {', '.join(entries)}", remedy=_REMEDY)
    token, before, behind = (
        name_of_token(folder, int(str(number)), entry) for number, entry in zip(numbers, entries, strict=True)
    )
    return token, before, behind


def _inside(weights: TensorFiles) -> str:
    newer = "model.language_model."
    return newer if f"{newer}embed_tokens.weight" in weights else "model."


class _VisionWeights:
    """Weights of the encoder in a model that sees, without what their names begin with."""

    def __init__(self, weights: TensorFiles, inside: str) -> None:
        self._weights, self._inside = weights, inside

    def __contains__(self, name: str) -> bool:
        return self._inside + name in self._weights

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32."""
        return self._weights.read(self._inside + name, shape)


def _compare_encoder(
    model: Model, vision: VisionConfiguration, weights: _VisionWeights, table: ImageTable
) -> tuple[Drift, tuple[int, ...]]:
    """Return how far rows of pictures lie from those of NumPy, the worst of two, and the shape of the first.

    Raises:
        UnsupportedError: If they lie further apart than `TOLERANCE`.
    """
    reference, drifts, shapes = VisionReference(vision, weights), list[Drift](), list[tuple[int, ...]]()
    session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    try:
        for seed, (lines, columns) in enumerate(_GRIDS):
            size = lines * table.factor, columns * table.factor, 3
            feeds = feeds_of(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8), table)
            rows = np.asarray(session.run(feeds)[IMAGE_ROWS_OUT])
            expected = reference.rows(np.asarray(feeds["pixel_values"], np.float32), lines, columns)
            drifts.append(measure_drift({IMAGE_ROWS_OUT: expected}, {IMAGE_ROWS_OUT: rows}))
            shapes.append(rows.shape)
    finally:
        session.close()
    return _required(worst_drift(drifts), model.name), shapes[0]


def _compare_decoder(
    model: Model, config: LlamaConfiguration, reference: Reference, vision: VisionConfiguration, texts: int
) -> Drift:
    """Return how far logits behind texts with two pictures lie from those of NumPy, the worst of all.

    Raises:
        UnsupportedError: If they lie further apart than `TOLERANCE`.
    """
    session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    try:
        parts, drifts = cache_parts(session.inputs, session.outputs), list[Drift]()
        for seed in range(texts):
            tokens, expected = _text_with_pictures(config, reference, vision.row, seed)
            decoder = Decoder(session.engine, parts, len(tokens), shares=shares_cache(session, parts))
            # the second picture is cut in two, and what stands behind it comes token by token
            first = min(_BEFORE + _GRIDS[0][0] * _GRIDS[0][1] + _BETWEEN + 2, len(tokens) - _BEHIND - 1)
            logits = [decoder.run(tokens[:first]), decoder.run(tokens[first:-_BEHIND])]
            logits += [decoder.run([token]) for token in tokens[-_BEHIND:]]
            drifts.append(measure_drift({LOGITS: expected}, {LOGITS: np.concatenate(logits)}))
        return _required(worst_drift(drifts), model.name)
    finally:
        session.close()


def _text_with_pictures(
    config: LlamaConfiguration, reference: Reference, width: int, seed: int
) -> tuple[list[int], NDArray[np.float32]]:
    """Return a made-up text with two pictures of random rows, and the logits that NumPy computes behind each token."""
    chance = np.random.default_rng(seed)
    pictures = [
        EncodedPicture(chance.standard_normal((lines * columns, width)).astype(np.float32), 0, (lines, columns))
        for lines, columns in _GRIDS
    ]
    plain = [chance.integers(0, config.vocabulary, count).tolist() for count in (_BEFORE, _BETWEEN, _BEHIND)]
    tokens = [*plain[0], *pictures[0].tokens(), *plain[1], *pictures[1].tokens(), *plain[2]]
    left = iter(np.concatenate([picture.rows for picture in pictures]))
    rows = {place: next(left) for place, token in enumerate(tokens) if isinstance(token, ImageToken)}
    known = [0 if place in rows else token for place, token in enumerate(tokens)]
    positions = positions_of_text([len(part) for part in plain], _GRIDS)
    return tokens, reference.logits(known, rows, positions)


def positions_of_text(lengths: Sequence[int], grids: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return (3, tokens) positions of texts with a picture between each two of them.

    Args:
        lengths: Of the texts.
        grids: Lines and columns of the pictures' rows.

    Source: transformers, `get_rope_index` of Qwen2-VL.
    """
    parts, position = list[NDArray[np.int64]](), 0
    for i, length in enumerate(lengths):
        parts.append(np.tile(np.arange(length) + position, (AXES, 1)))
        position += length
        if i < len(grids):
            lines, columns = grids[i]
            line, column = np.indices((lines, columns)).reshape(2, -1)
            parts.append(np.stack([np.zeros_like(line), line, column]) + position)
            position += max(lines, columns)
    return np.concatenate(parts, axis=1)


def _required(drift: Drift, name: str) -> Drift:
    if not drift.is_within(TOLERANCE):
        raise UnsupportedError(
            f"the graph of {name} answers differently than its weights say: {drift.worst_db:.0f} dB",
            remedy="tell us which model it is",
        )
    return drift
