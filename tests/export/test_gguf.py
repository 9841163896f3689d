"""Files of llama.cpp become the decoder that the folder they were converted from becomes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from small_decoders import VOCABULARY, byte_tokenizer, random_weights, write_decoder, write_tensors

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.export.decoder.gguf_file import GgufFile
from edgeopt.export.export import export
from edgeopt.runtime.decoding.opening import open_language_model

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'edgeopt[gguf]'")
tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm"}
NAMES |= {"k_norm": "attn_k_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
NAMES |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "embed_tokens": "token_embd"}
NAMES |= {"norm": "output_norm", "lm_head": "output"}


K_BLOCK = 256
"""Weights in one block of a k-quant."""
_TYPES = gguf.GGMLQuantizationType
HALVES = {_TYPES.Q3_K: (108,), _TYPES.Q4_K: (0, 2), _TYPES.Q5_K: (0, 2), _TYPES.Q6_K: (208,)}
"""Where the scales of a block stand, in half precision; the package reads k-quants and writes none."""


def blocks(shape: tuple[int, ...], form: Any) -> np.ndarray:
    """Return random weights in blocks of a k-quant, a row of bytes for a row of weights."""
    chance, (_, width) = np.random.default_rng(shape[0]), gguf.GGML_QUANT_SIZES[form]
    made = chance.integers(0, 256, (shape[0] * shape[1] // K_BLOCK, width), np.uint8)
    for place in HALVES[form]:
        made[:, place : place + 2] = chance.uniform(1e-4, 2e-4, len(made)).astype("<f2")[:, None].view(np.uint8)
    return made.reshape(shape[0], -1)


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows as `convert_hf_to_gguf.py` orders them: the two halves of a head become neighbours."""
    apart = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return apart.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    file: Path, kind: str, form: Any, words: str = "gpt-2", model: str = "gpt2", side: int = 64, **more: Any
) -> dict[str, np.ndarray]:
    """Write a file; return its weights in float32 as Hugging Face orders them."""
    writer, found = gguf.GGUFWriter(file, kind), dict[str, np.ndarray]()
    writer.add_context_length(512)
    writer.add_embedding_length(side)
    writer.add_feed_forward_length(side + 16 if side < K_BLOCK else side)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    letters = sorted((i, one) for one, i in byte_tokenizer()._ids.items())
    tokens = [one for _, one in letters] + ["th", "the"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCABULARY)]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i == 256 else 5 if i > 258 else 1 for i in range(VOCABULARY)])
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
    for name, value in more.items():
        writer.add_string(name.replace("__", "."), value)
    for name, array in random_weights(kind=kind, hidden=side, inner=side + 16 if side < K_BLOCK else side).items():
        parts = name.split(".")
        theirs = f"{NAMES[parts[-2]]}.{parts[-1]}"
        theirs = f"blk.{parts[2]}.{theirs}" if parts[1] == "layers" else theirs
        is_small = array.ndim == 1 or array.shape[-1] % gguf.GGML_QUANT_SIZES[form][0]
        chosen = gguf.GGMLQuantizationType.F32 if is_small else form
        heads = {"q_proj": 4, "k_proj": 2}.get(parts[-2], 0) if kind == "llama" else 0
        if chosen in HALVES:
            stored = blocks(array.shape, chosen)
            found[name] = gguf.quants.dequantize(stored, chosen)
        else:
            stored = gguf.quants.quantize(turned(array, heads) if heads else array, chosen)
            found[name] = gguf.quants.dequantize(gguf.quants.quantize(array, chosen), chosen)
        writer.add_tensor(theirs, stored, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


@pytest.mark.parametrize("form", HALVES, ids=lambda form: form.name)
def test_blocks_of_k_quants_are_read_and_their_decoder_answers(form, tmp_path):
    weights = write_gguf(tmp_path / "net.gguf", "qwen2", form, side=K_BLOCK)
    result = export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert result.outputs[0].drift.sqnr_db > 90
    file = GgufFile(tmp_path / "net.gguf")
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"):
        assert 0.001 < weights[name].std() < 1
        np.testing.assert_array_equal(file.read(name, weights[name].shape), weights[name])


@pytest.mark.parametrize(
    ("kind", "form", "words"),
    [("llama", "Q8_0", "gpt-2"), ("llama", "F16", "llama-bpe"), ("qwen2", "Q4_0", "qwen2"), ("qwen3", "BF16", "gpt-2")],
)
def test_a_file_becomes_what_its_folder_becomes(kind, form, words, tmp_path):
    weights = write_gguf(tmp_path / "net.gguf", kind, gguf.GGMLQuantizationType[form], words)
    result = export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert result.outputs[0].drift.sqnr_db > 90
    assert "tokenizer.json" in {one.name for one in result.beside}
    folder = write_decoder(tmp_path / "hf", kind=kind)
    write_tensors(folder / "model.safetensors", weights)
    (folder / "tokenizer.json").write_bytes((tmp_path / "made" / "tokenizer.json").read_bytes())
    export(f"hf:{folder}", out=tmp_path / "theirs" / "model.onnx")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 40).tolist()
    mine, recipe = open_language_model(tmp_path / "made", 1)
    theirs, _ = open_language_model(tmp_path / "theirs", 1)
    with mine, theirs:
        np.testing.assert_allclose(mine.logits(tokens), theirs.logits(tokens), rtol=0, atol=1e-4)
        assert mine.tokenizer.encode("the that") == [
            258,
            *mine.tokenizer.encode(" "),
            257,
            *mine.tokenizer.encode("at"),
        ]
        assert mine.tokenizer.decode(mine.tokenizer.encode("l'été 123\n")) == "l'été 123\n"
    assert recipe.generation.end == (256,)
    assert recipe.generation.context == 512
    assert recipe.generation.begin == ((256,) if words == "llama-bpe" else ())  # as llama.cpp where a file is silent


@pytest.mark.parametrize(
    ("words", "cut", "begins"),
    [
        ("llama-v3", ["It", "'s", " the", " Year", " ", "202", "6"], True),
        ("falcon3", ["It", "'s", " the", " Year", " ", "202", "6"], True),
        ("pixtral", ["It", "'s", " the", " Year", " ", "202", "6"], True),
        ("tekken", ["It", "'s", " the", " Year", " ", "2", "0", "2", "6"], True),
        ("qwen2", ["It", "'s", " the", " Year", " ", "2", "0", "2", "6"], False),
        ("smollm", ["It", "'s", " the", " Year", " ", "2", "0", "2", "6"], False),
        ("gpt-2", ["It", "'s", " the", " Year", " 2026"], False),
    ],
)
def test_a_text_is_cut_in_words_as_llama_cpp_cuts_it(words, cut, begins, tmp_path):
    write_gguf(tmp_path / "net.gguf", "llama", gguf.GGMLQuantizationType.F16, words)
    GgufFile(tmp_path / "net.gguf").write_tokenizer(tmp_path)
    text = "It's the Year 2026"
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    spans = read.pre_tokenizer.pre_tokenize_str(text)
    assert [text[first:last] for _, (first, last) in spans] == cut
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["add_bos_token"] is begins


def test_the_command_exports_and_the_model_writes(tmp_path):
    write_gguf(tmp_path / "small.q8.gguf", "llama", gguf.GGMLQuantizationType.Q8_0)
    out = str(tmp_path / "model.onnx")
    done = CliRunner().invoke(cli, ["export", f"gguf:{tmp_path / 'small.q8.gguf'}", "-o", out, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "small.q8"
    done = CliRunner().invoke(cli, ["run", out, "--prompt", "the", "--output-tokens", "5", "--json"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 5


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("llama", {"model": "llama"}, "SentencePiece"),
        ("llama", {"words": "other"}, "cut as other"),
        ("llama", {"llama__rope__scaling__type": "yarn"}, "scales its positions"),
        ("gemma", {}, "a gemma is not written here"),
    ],
)
def test_what_is_not_read_is_refused_in_a_line(kind, more, told, tmp_path):
    write_gguf(tmp_path / "net.gguf", kind, gguf.GGMLQuantizationType.F16, **more)
    with pytest.raises(EdgeoptError, match=told):
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert not (tmp_path / "made" / "model.onnx").exists()


def head(*parts: tuple[str, Any]) -> bytes:
    """Return the numbers and texts of a head."""
    made = b"GGUF"
    for form, value in parts:
        made += struct.pack("<Q", len(value)) + value.encode() if form == "text" else struct.pack(f"<{form}", value)
    return made


KEY = (("I", 3), ("Q", 0), ("Q", 1), ("text", "general.name"))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (head(*KEY, ("I", 9), ("I", 0), ("Q", 1 << 60)), "its arrays hold"),
        (head(*KEY, ("I", 9), ("I", 8), ("Q", 1 << 22)), "more than it holds"),
        (head(*KEY, ("I", 8), ("Q", 1 << 60)), "more than it holds"),
        (head(*KEY, ("I", 9), ("I", 9), ("Q", 1 << 20)), "a value has the type 9"),
        (head(("I", 3), ("Q", 1 << 60), ("Q", 0)), "tensors and"),
        (head(("I", 3), ("Q", 0), ("Q", 1 << 60)), "tensors and"),
        (head(("I", 3), ("Q", 1), ("Q", 0), ("text", "a"), ("I", 1 << 31)), "dimensions"),
        (head(("I", 1), ("Q", 0), ("Q", 0)), "version 1"),
    ],
)
def test_a_head_that_says_more_than_a_file_holds_is_refused_before_anybody_counts(data, told, tmp_path):
    (tmp_path / "net.gguf").write_bytes(data + bytes(8))
    with pytest.raises(InvalidFileError, match=told):
        GgufFile(tmp_path / "net.gguf")


@pytest.mark.parametrize("keep", [0, 3, 40, 2000, -500])
def test_a_damaged_file_is_refused_in_a_line(keep, tmp_path):
    write_gguf(tmp_path / "net.gguf", "llama", gguf.GGMLQuantizationType.F16)
    data = (tmp_path / "net.gguf").read_bytes()
    (tmp_path / "net.gguf").write_bytes(data[:keep])
    with pytest.raises(EdgeoptError, match=r"net\.gguf"):
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
