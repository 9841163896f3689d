"""Write a decoder of the Llama type as a `.gguf` file, the one that llama.cpp and OpenVINO GenAI read.

The package `gguf`, of llama.cpp's own project, writes the file and rounds weights to its blocks. Rows of queries and
keys of the type llama are put in llama.cpp's order, which turns neighbours by their position.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; `convert_hf_to_gguf.py` of llama.cpp (names, order,
which tensors stay in float).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.export.decoder.gguf.file import BLOCK_NAMES, CONTROL, NORMAL, gguf_name
from edgeopt.export.decoder.granite import PLAIN
from edgeopt.export.decoder.llama import LlamaConfiguration
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.system.declared.optional import require

FORMS = ("f32", "f16", "q8_0", "q4_0")
"""How matrices are kept: in floats of 32 or 16 bits, or in blocks of 32 of 8 or 4 bits."""
_HEAD_OF_Q4 = "q8_0"
"""The table of tokens and the last matrix of a file in 4 bits, as OpenVINO's own exporter keeps them."""
_FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
_AS_LLAMA = ("llama", "mistral")
_PURPOSE = "writing a .gguf file"


def write_gguf_file(
    config: LlamaConfiguration, weights: NamedTensors, tokenizer: Path, file: Path, form: str, name: str
) -> None:
    """Write a decoder.

    Args:
        config: Sizes, positions, first and end token.
        weights: Under Hugging Face's names.
        tokenizer: A `tokenizer.json`; of another kind than a byte-level BPE only the number of its tokens is written,
            so that the file answers tokens and reads no text.
        file: The file to write.
        form: One of `FORMS`.
        name: Of the model.

    Raises:
        MissingDependencyError: If the package is not installed.
        UnsupportedError: If positions are scaled, a query sees a window, or layers have experts or states: all is lost.
        InvalidFileError: If weights are missing, or of another shape.
    """
    package, quants = (require(module, extra="gguf", purpose=_PURPOSE) for module in ("gguf", "gguf.quants"))
    if (
        config.positions.scaling != "default"
        or config.window
        or config.mixture
        or config.hybrid
        or config.factors != PLAIN
    ):
        what = "a window of attention" if config.window else f"positions scaled as {config.positions.scaling}"
        what = "factors on its sums" if config.factors != PLAIN else what
        what = "layers with states" if config.hybrid else "a mixture of experts" if config.mixture else what
        raise UnsupportedError(f"{name} has {what}, which is not written as GGUF", remedy="convert it with llama.cpp")
    kind = "llama" if config.kind in _AS_LLAMA else config.kind
    writer = package.GGUFWriter(None, kind)
    writer.add_name(name)
    writer.add_file_type(package.LlamaFileType[_FILE_TYPES[form]])
    writer.add_quantization_version(package.GGML_QUANT_VERSION)
    _add_sizes(writer, config)
    _add_tokens(writer, package, config, tokenizer)
    try:
        for tensor, array in _tensors(config, weights):
            kept = _form_of(tensor, array, form)
            of_package = package.GGMLQuantizationType[kept.upper()]
            writer.add_tensor(tensor, quants.quantize(array, of_package), raw_dtype=of_package)
        writer.write_header_to_file(file)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _form_of(tensor: str, array: NDArray[np.float32], form: str) -> str:
    """Return how one tensor is kept: vectors in float, rows that blocks of 32 do not divide in 16 bits."""
    if array.ndim == 1 or form == "f32":
        return "f32"
    if form == "f16" or array.shape[-1] % 32:
        return "f16"
    return _HEAD_OF_Q4 if tensor in ("token_embd.weight", "output.weight") else form


def _add_sizes(writer: Any, config: LlamaConfiguration) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.inner)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head)
    writer.add_value_length(config.head)
    writer.add_rope_dimension_count(config.head)
    writer.add_rope_freq_base(config.positions.theta)
    writer.add_layer_norm_rms_eps(config.epsilon)
    writer.add_vocab_size(config.vocabulary)


def _add_tokens(writer: Any, package: Any, config: LlamaConfiguration, tokenizer: Path) -> None:
    """Write the tokens; how words are cut is left at GPT-2's way, as nobody hands such a file a text."""
    try:
        values = json.loads(tokenizer.read_text("utf-8"))
        model, added = values["model"], values.get("added_tokens") or []
        is_plain = model.get("type") == "BPE" and "ByteLevel" in json.dumps(values.get("pre_tokenizer"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidFileError(f"{tokenizer} is no tokenizer of Hugging Face", remedy="copy it again") from error
    if not is_plain:
        writer.add_tokenizer_model("none")
        return
    names = [f"<unused {i}>" for i in range(config.vocabulary)]
    kinds = [package.TokenType.UNUSED] * config.vocabulary
    entries = [(token, i, NORMAL) for token, i in model["vocab"].items()]
    entries += [(entry["content"], entry["id"], CONTROL) for entry in added if entry.get("special")]
    for token, i, kind in entries:
        if i < config.vocabulary:
            names[i], kinds[i] = token, kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_add_bos_token(False)
    if config.end:
        writer.add_eos_token_id(config.end[0])
    if begin := config.begin or config.end:
        writer.add_bos_token_id(begin[0])


def _tensors(config: LlamaConfiguration, weights: NamedTensors) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each tensor under llama.cpp's name, in llama.cpp's order of rows."""
    table = (config.vocabulary, config.hidden)
    whole = {"model.embed_tokens.weight": table, "model.norm.weight": (config.hidden,)}
    if not config.is_tied and "lm_head.weight" in weights:
        whole["lm_head.weight"] = table
    for name, shape in whole.items():
        yield gguf_name(name), weights.read(name, shape)
    for i in range(config.layers):
        for part, shape in _shapes(config).items():
            name = f"model.layers.{i}.{part}"
            if part.endswith((".bias", "_norm.weight")) and name not in weights:
                continue  # Qwen2 has biases, Qwen3 norms of heads
            array = weights.read(name, shape)
            if config.kind in _AS_LLAMA and part.startswith(("self_attn.q_proj", "self_attn.k_proj")):
                array = _neighbours(array, config.heads if ".q_" in part else config.kv_heads)
            yield gguf_name(name), array


def _shapes(config: LlamaConfiguration) -> dict[str, tuple[int, ...]]:
    """Return the shape of each part of a layer that it may have."""
    hidden, q, kv = config.hidden, config.heads * config.head, config.kv_heads * config.head
    sides = {"q": q, "k": kv, "v": kv}
    matrices = {f"self_attn.{part}_proj": (side, hidden) for part, side in sides.items()}
    matrices |= {"self_attn.o_proj": (hidden, q), "mlp.gate_proj": (config.inner, hidden)}
    matrices |= {"mlp.up_proj": (config.inner, hidden), "mlp.down_proj": (hidden, config.inner)}
    result: dict[str, tuple[int, ...]] = {f"{part}.weight": shape for part, shape in matrices.items()}
    result |= {f"self_attn.{part}_proj.bias": (side,) for part, side in sides.items()}
    result |= {f"self_attn.{part}_norm.weight": (config.head,) for part in "qk"}
    result |= {f"{part}.weight": (hidden,) for part in ("input_layernorm", "post_attention_layernorm")}
    assert {part.rpartition(".")[0] for part in result} <= set(BLOCK_NAMES)
    return result


def _neighbours(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return rows of two halves of each head as neighbouring pairs."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
