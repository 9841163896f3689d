"""SmolVLM and Idefics3, from a Hugging Face folder: the encoder of pictures with its projector, and the decoder.

The encoder is traced by torch; the decoder is written from its weights as any other, with two inputs more for the rows
that the encoder makes of a picture (`executors.onnxruntime.image_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import LOGITS, Decoder, cache_parts, shares_cache
from edgeopt.executors.onnxruntime.image_rows import EncodedPicture
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.export.decoder.folder import WrittenDecoder, decoder_recipe
from edgeopt.export.decoder.llama import LlamaConfiguration, configuration_of, write_llama
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.export.likeness import TOLERANCE, compare_with_framework
from edgeopt.export.network import Network, NetworkInput
from edgeopt.export.seeing.written import InnerWeights, WrittenSeeing, configuration, name_of_token, template_in
from edgeopt.export.to_onnx import OLDEST_OPSET, to_onnx
from edgeopt.export.whole_network import open_whole
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.recipes.drafting.image_drafting import IN_TILES, image_table
from edgeopt.recipes.texts.seen_prompt import ImageMarks
from edgeopt.recipes.texts.tokens import read_tokens

PICTURE, ROWS = "pixel_values", "image_rows"
_TEXTS, _TOKENS, _FIRST = 3, 20, 12
"""Texts with pictures on which both answer, their tokens beside the picture, and those that run at once."""
_REMEDY = f"name a folder of {' or '.join(IN_TILES.values())}"


def write_idefics(folder: Path, name: str) -> WrittenSeeing:
    """Return encoder and decoder of a folder, both compared with transformers.

    Raises:
        MissingDependencyError: If torch or transformers is not installed.
        InvalidFileError: If a file of the folder is damaged or missing.
        UnsupportedError: If a graph answers differently.
    """
    kind = str(configuration(folder).get("model_type"))
    opened = OpenedSeeing(folder)
    config = opened.decoder_configuration()
    table = image_table(folder, kind, opened.side, opened.rows, opened.mark)
    ImageMarks(table, read_tokens(folder / "tokenizer.json"))
    network = opened.encoder(name)
    encoder = to_onnx(network, [ROWS], {}, OLDEST_OPSET)
    (encoder_drift,) = compare_with_framework(network, encoder, [ROWS], {})
    opened.require_same_rows(network.module)
    decoder = write_llama(config, InnerWeights(TensorFiles(folder), "model.text_model."), name, sees=True)
    drift = _compare(decoder, opened, name)
    recipe = replace(decoder_recipe(folder, config, name), image=table)
    description = f"{IN_TILES[kind]}, {recipe.description}, sees pictures"
    written = WrittenDecoder(
        decoder, replace(recipe, description=description), drift, config.vocabulary, opened.framework
    )
    return WrittenSeeing(written, encoder, encoder_drift.drift, encoder_drift.shape, template_in(folder))


class OpenedSeeing:
    """A model that sees, open in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        """Open a folder of `save_pretrained`; no code beside the weights is run.

        Raises:
            MissingDependencyError: If torch, onnxscript or transformers is not installed.
            InvalidFileError: If transformers does not open it, or weights are missing.
        """
        whole = open_whole(folder, "AutoModelForImageTextToText")
        self._torch, self._module, self._folder = whole.torch, whole.module, folder
        self.framework, self._config = whole.framework, whole.module.config
        vision = self._config.vision_config
        self.side = int(vision.image_size)
        self.rows = (self.side // int(vision.patch_size)) ** 2 // int(self._config.scale_factor) ** 2

    @property
    def mark(self) -> str:
        """Name of the token at whose places rows of pictures stand."""
        return name_of_token(self._folder, int(self._config.image_token_id), "image_token_id")

    def decoder_configuration(self) -> LlamaConfiguration:
        """Return the configuration of the decoder, with the tokens that end an answer as `generate` knows them.

        Raises:
            InvalidFileError, UnsupportedError: As `configuration_of`.
        """
        text = self._config.get_text_config().to_dict()
        text["tie_word_embeddings"] = bool(self._config.tie_word_embeddings)
        ends = getattr(self._module.generation_config, "eos_token_id", None)
        text["eos_token_id"] = text.get("eos_token_id") if ends is None else ends
        return configuration_of(text, str(text.get("model_type")), self._folder / "config.json")

    def encoder(self, name: str) -> Network:
        """Return the encoder with its projector: a tile of a picture in, rows of a text out."""
        return Network(
            name,
            self.framework,
            self._whole_tile(),
            (NetworkInput(PICTURE, (1, 3, self.side, self.side)),),
            outputs=(ROWS,),
        )

    def _whole_tile(self) -> Any:
        """Return a module that sees one whole tile: what masks and counts tiles, no graph can follow."""
        torch, model = self._torch, self._module.model
        vision, connector, places = model.vision_model, model.connector, list[Any]()
        handle = vision.embeddings.position_embedding.register_forward_pre_hook(
            lambda _, given: places.append(given[0])
        )
        with torch.no_grad():
            vision(torch.zeros(1, 3, self.side, self.side))
        handle.remove()

        class WholeTile(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.vision, self.connector = vision, connector
                self.register_buffer("places", places[0])

            def forward(self, pixel_values: Any) -> dict[str, Any]:
                embeddings = self.vision.embeddings
                patches = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
                hidden = patches + embeddings.position_embedding(self.places)
                hidden = self.vision.encoder(inputs_embeds=hidden).last_hidden_state
                return {ROWS: self.connector(self.vision.post_layernorm(hidden))}

        return WholeTile().eval()

    def encoded(self, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a random tile, and the rows that transformers makes of it."""
        tile = np.random.default_rng(seed).normal(0, 1, (1, 3, self.side, self.side)).astype(np.float32)
        with self._torch.no_grad():
            answer = self._module.model.get_image_features(self._torch.from_numpy(tile)[None])
        rows: NDArray[np.float32] = getattr(answer, "pooler_output", answer)[0].numpy()
        return tile, rows.reshape(-1, rows.shape[-1])

    def require_same_rows(self, module: Any) -> None:
        """Raise UnsupportedError unless what is traced gives the rows that the whole network does."""
        tile, rows = self.encoded(0)
        with self._torch.no_grad():
            ours = module(self._torch.from_numpy(tile))[ROWS][0].numpy()
        if not measure_drift({ROWS: rows}, {ROWS: ours}).is_within(TOLERANCE):
            raise UnsupportedError(f"{self._folder}: its encoder is another than {_REMEDY[7:]} has", remedy=_REMEDY)

    def logits(self, tokens: Sequence[int], tile: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) behind each token of a text with one tile, computed by torch at once."""
        ids, picture = self._torch.tensor([list(tokens)]), self._torch.from_numpy(tile)[None]
        with self._torch.no_grad():
            array: NDArray[np.float32] = self._module(input_ids=ids, pixel_values=picture).logits[0].numpy()
        return array

    def text(self, seed: int) -> list[int]:
        """Return random tokens with the marks of a tile among them."""
        mark, chance = int(self._config.image_token_id), np.random.default_rng(seed)
        drawn = chance.integers(0, self._config.get_text_config().vocab_size, _TOKENS)
        plain = [int(token) for token in drawn if token != mark]
        return [*plain[:4], *[mark] * self.rows, *plain[4:]]


def _compare(model: Model, opened: OpenedSeeing, name: str) -> Drift:
    """Return how far logits lie from those of transformers, the worst of a few texts with a picture each.

    Raises:
        UnsupportedError: If they lie further apart than `TOLERANCE`.
    """
    drifts = list[Drift]()
    session = EXECUTOR.open(model.data, SessionOptions(entries=UNOPTIMIZED))
    try:
        parts = cache_parts(session.inputs, session.outputs)
        for seed in range(_TEXTS):
            tokens, (tile, rows) = opened.text(seed), opened.encoded(seed)
            left = iter(EncodedPicture(rows, 0).tokens())
            mark = tokens[4]
            seen = [next(left) if token == mark else token for token in tokens]
            decoder = Decoder(session.engine, parts, len(seen), shares=shares_cache(session, parts))
            first = len(seen) - _FIRST
            logits = [decoder.run(seen[:first]), *(decoder.run([token]) for token in seen[first:])]
            drifts.append(measure_drift({LOGITS: opened.logits(tokens, tile)}, {LOGITS: np.concatenate(logits)}))
    finally:
        session.close()
    worst = worst_drift(drifts)
    if not worst.is_within(TOLERANCE):
        raise UnsupportedError(
            f"the graph of {name} answers differently than transformers: {worst.worst_db:.0f} dB", remedy=_REMEDY
        )
    return worst
