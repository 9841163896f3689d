"""Files of llama.cpp become the decoder that the folder they were converted from becomes."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from small_decoders import VOCABULARY, byte_tokenizer, random_weights, write_decoder, write_tensors

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.export.decoder.gguf.file import GgufFile
from edgeopt.export.decoder.llama import write_llama
from edgeopt.export.decoder.reference import Reference
from edgeopt.export.export import export
from edgeopt.graph.model import Model
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.kept_blocks import in_floats

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'edgeopt[gguf]'")
tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm"}
NAMES |= {"k_norm": "attn_k_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
NAMES |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "embed_tokens": "token_embd"}
NAMES |= {"norm": "output_norm", "lm_head": "output"}


K_BLOCK = 256
"""Weights in one block of a k-quant."""
_TYPES = gguf.GGMLQuantizationType
HALVES = {_TYPES.Q2_K: (80, 82), _TYPES.Q3_K: (108,), _TYPES.Q4_K: (0, 2), _TYPES.Q5_K: (0, 2), _TYPES.Q6_K: (208,)}
HALVES |= {_TYPES.IQ4_XS: (0,), _TYPES.IQ2_XS: (0,)}
"""Where the scales of a block stand, in half precision; the package reads k-quants and writes none."""
SHORT = {_TYPES.Q4_0: 32, _TYPES.Q4_1: 32, _TYPES.Q5_0: 32, _TYPES.Q5_1: 32, _TYPES.Q8_0: 32}


def logits(model: Model, tokens: list[int]) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions())
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True)
    made = np.concatenate([decoder.run(tokens[:20]), *(decoder.run([token]) for token in tokens[20:])])
    session.close()
    return made


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


def straight(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows that `turned` put in order, as they were; 0 heads: rows that it left."""
    if not heads:
        return rows
    return rows[np.argsort(turned(np.arange(len(rows)), heads))]


def write_gguf(
    file: Path,
    kind: str,
    form: Any,
    words: str = "gpt-2",
    model: str = "gpt2",
    side: int = 64,
    *,
    is_tied: bool = False,
    kinds: list[int] | None = None,
    theta: float = 10000.0,
    extra: dict[str, np.ndarray] | None = None,
    **more: Any,
) -> dict[str, np.ndarray]:
    """Write a file, `extra` tensors too; return its weights in float32 as Hugging Face orders them."""
    writer, found = gguf.GGUFWriter(file, kind), dict[str, np.ndarray]()
    writer.add_context_length(512)
    writer.add_embedding_length(side)
    writer.add_feed_forward_length(side + 16 if side < K_BLOCK else side)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(theta)
    letters = sorted((i, one) for one, i in byte_tokenizer()._ids.items())
    tokens = [one for _, one in letters] + ["th", "the"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCABULARY)]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds or [3 if i == 256 else 5 if i > 258 else 1 for i in range(VOCABULARY)])
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
    for name, value in more.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_string
        add(name.replace("__", "."), value)
    for name, array in random_weights(
        kind=kind, hidden=side, inner=side + 16 if side < K_BLOCK else side, is_tied=is_tied
    ).items():
        parts = name.split(".")
        theirs = f"{NAMES[parts[-2]]}.{parts[-1]}"
        theirs = f"blk.{parts[2]}.{theirs}" if parts[1] == "layers" else theirs
        is_small = array.ndim == 1 or array.shape[-1] % gguf.GGML_QUANT_SIZES[form][0]
        chosen = gguf.GGMLQuantizationType.F32 if is_small else form
        heads = {"q_proj": 4, "k_proj": 2}.get(parts[-2], 0) if kind == "llama" else 0
        if chosen in HALVES:
            stored = blocks(array.shape, chosen)
            found[name] = straight(gguf.quants.dequantize(stored, chosen), heads)
        else:
            stored = gguf.quants.quantize(turned(array, heads) if heads else array, chosen)
            found[name] = gguf.quants.dequantize(gguf.quants.quantize(array, chosen), chosen)
        writer.add_tensor(theirs, stored, raw_dtype=chosen)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


IN_BLOCKS = sorted({*HALVES, *SHORT} - {_TYPES.IQ2_XS})


@pytest.mark.parametrize("form", IN_BLOCKS, ids=lambda form: form.name)
def test_blocks_are_kept_as_they_are_and_their_decoder_answers_as_floats_do(form, tmp_path):
    kind = "llama" if form in (_TYPES.Q4_1, _TYPES.Q6_K) else "qwen2"
    side = K_BLOCK if form in HALVES else 128
    weights = write_gguf(tmp_path / "net.gguf", kind, form, side=side)
    file = GgufFile(tmp_path / "net.gguf")
    for name, array in weights.items():
        packed = file.packed(name, array.shape)
        assert (packed is None) == (array.ndim == 1 or bool(array.shape[1] % gguf.GGML_QUANT_SIZES[form][0]))
        np.testing.assert_array_equal(file.read(name, array.shape), array)
        if packed is not None:
            np.testing.assert_array_equal(packed.real(), array)
    model, reference = write_llama(file.config, file, "small"), Reference(file.config, file)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 24).tolist()
    expected = reference.logits(tokens)
    for made in (model, in_floats(model).model):
        np.testing.assert_allclose(logits(made, tokens), expected, rtol=0, atol=2e-5 * np.abs(expected).max() + 1e-5)
    assert not {"MatMulNBits", "GatherBlockQuantized"} & {node.op_type for node in made.proto.graph.node}


def test_a_type_that_blocks_do_not_hold_becomes_floats_and_is_counted(tmp_path):
    write_gguf(tmp_path / "net.gguf", "qwen2", _TYPES.IQ2_XS, side=K_BLOCK)
    result = export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert "16 in IQ2_XS, blk.0.attn_k.weight and others" in result.notes[0].detail
    assert result.outputs[0].drift.sqnr_db > 90


def test_a_tied_table_is_stored_once(tmp_path):
    weights = write_gguf(tmp_path / "net.gguf", "qwen2", _TYPES.Q8_0, side=128, is_tied=True)
    export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    graph = onnx.load(tmp_path / "made" / "model.onnx").graph
    tables = [constant for constant in graph.initializer if VOCABULARY in constant.dims]
    assert len(tables) == 2  # integers and scales
    assert "lm_head.weight" not in weights
    assert [node.input[1] for node in graph.node if "logits" in node.output] == [tables[0].name]


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
        off = np.abs(mine.logits(tokens) - theirs.logits(tokens))
        assert off.max() < (1 if form == "Q8_0" else 1e-4)  # the engine rounds what it multiplies with 8-bit integers
        assert off.mean() < (0.05 if form == "Q8_0" else 1e-5)
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


LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def llama_3_divisors(theta: float, pairs: int) -> np.ndarray:
    """Return what `convert_hf_to_gguf.py` of llama.cpp writes for `LLAMA_3`, pair by pair as it does."""
    factor, low, high, learned = LLAMA_3.values()
    made = list[float]()
    for frequency in 1.0 / theta ** (np.arange(pairs, dtype=np.float32) / pairs):
        length = 2 * np.pi / frequency
        if length < learned / high:
            made.append(1.0)
        elif length > learned / low:
            made.append(factor)
        else:
            smooth = (learned / length - low) / (high - low)
            made.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(made, np.float32)


def test_positions_of_llama_3_are_those_of_the_folder(tmp_path):
    theta, pairs = 500.0, 8
    divisors = llama_3_divisors(theta, pairs)
    assert (divisors[0], divisors[-1]) == (1, 8)
    assert ((divisors > 1) & (divisors < 8)).any()
    extra = {"rope_freqs.weight": divisors}
    weights = write_gguf(tmp_path / "net.gguf", "llama", _TYPES.F32, "llama-bpe", theta=theta, extra=extra)
    result = export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert result.outputs[0].drift.sqnr_db > 90
    write_gguf(tmp_path / "plain.gguf", "llama", _TYPES.F32, "llama-bpe", theta=theta)
    export(str(tmp_path / "plain.gguf"), out=tmp_path / "plain" / "model.onnx")
    folder = write_decoder(tmp_path / "hf", rope_theta=theta, rope_scaling={"rope_type": "llama3", **LLAMA_3})
    write_tensors(folder / "model.safetensors", weights)
    (folder / "tokenizer.json").write_bytes((tmp_path / "made" / "tokenizer.json").read_bytes())
    export(f"hf:{folder}", out=tmp_path / "theirs" / "model.onnx")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 200).tolist()
    answers = dict[str, np.ndarray]()
    for name in ("made", "theirs", "plain"):
        with open_language_model(tmp_path / name, 1)[0] as model:
            answers[name] = model.logits(tokens)
    assert np.abs(answers["made"] - answers["theirs"]).max() < 1e-4
    assert np.abs(answers["plain"] - answers["theirs"]).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "extra", "told"),
    [
        ("llama", {"rope_freqs.weight": np.ones(7)}, r"rope_freqs\.weight is 7, not 8"),
        ("llama", {"rope_freqs.weight": np.zeros(8)}, "holds numbers that are not above 0"),
        ("llama", {"rope_freqs.weight": np.full(8, np.nan)}, "holds numbers that are not above 0"),
        ("qwen2", {"rope_freqs.weight": np.ones(8)}, r"rope_freqs\.weight of a qwen2 is not read"),
        ("llama", {"rope_factors_long.weight": np.ones(8)}, r"by the length of a text \(rope_factors_long\.weight\)"),
        ("llama", {"rope_factors_short.weight": np.ones(8)}, r"by the length of a text \(rope_factors_short\.weight\)"),
    ],
)
def test_divisors_that_are_not_read_are_refused_in_a_line(kind, extra, told, tmp_path):
    extra = {name: array.astype(np.float32) for name, array in extra.items()}
    write_gguf(tmp_path / "net.gguf", kind, _TYPES.F16, extra=extra)
    with pytest.raises(EdgeoptError, match=told) as raised:
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert raised.value.remedy
    assert not (tmp_path / "made" / "model.onnx").exists()


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
        ("llama", {"split__count": 3}, "one of several files"),
        ("llama", {"llama__expert_count": 8}, "does not tell llama.expert_used_count"),
        ("qwen2", {"qwen2__expert_count": 8}, "a qwen2 with experts is not read"),
        ("llama", {"llama__rope__dimension_count": 8}, "turns a part of each head"),
        ("llama", {"llama__rope__scale_linear": 4}, "scales its positions"),
        ("llama", {"kinds": [1, 3]}, f"has {VOCABULARY} tokens, and tells the kinds of 2"),
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


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("the", "\xff\xffe", "tokenizer.ggml.tokens is no text in UTF-8"),
        ("th e", "\xff\xff e", "tokenizer.ggml.merges is no text in UTF-8"),
    ],
)
def test_texts_that_are_none_are_refused_in_a_line(before, after, told, tmp_path):
    write_gguf(tmp_path / "net.gguf", "qwen2", _TYPES.F16)
    data = (tmp_path / "net.gguf").read_bytes()
    there, damaged = (struct.pack("<Q", len(text)) + text.encode("latin-1") for text in (before, after))
    assert data.count(there) == 1
    (tmp_path / "net.gguf").write_bytes(data.replace(there, damaged))
    with pytest.raises(InvalidFileError, match=told):
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")


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


def test_a_file_that_is_cut_off_while_it_is_read_is_refused_in_a_line(tmp_path):
    write_gguf(tmp_path / "net.gguf", "llama", gguf.GGMLQuantizationType.Q8_0)
    file = GgufFile(tmp_path / "net.gguf")
    os.truncate(tmp_path / "net.gguf", 5000)
    with pytest.raises(InvalidFileError, match=r"net\.gguf changed while it was read"):
        file.read("model.embed_tokens.weight", (file.config.vocabulary, file.config.hidden))
    with pytest.raises(InvalidFileError, match=r"net\.gguf changed while it was read"):
        file.write_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        (b"<!doctype html>", "is a web page"),
    ],
)
def test_what_lies_in_the_place_of_a_file_is_called_what_it_is(data, told, tmp_path):
    (tmp_path / "net.gguf").write_bytes(data)
    with pytest.raises(InvalidFileError, match=told):
        GgufFile(tmp_path / "net.gguf")


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (20, 99, "no GGUF file: 99 is no type of weights"),
        (12, 0, "ffn_up.weight is empty"),
        (12, 143, "ffn_up.weight is 143x128, not 144x128"),
        (12, 1 << 40, "no GGUF file"),
        (4, 0, "ffn_up.weight is empty"),
        (4, 100, "no GGUF file"),
        (24, 1 << 50, "no GGUF file"),
    ],
)
def test_a_matrix_in_blocks_whose_head_is_wrong_is_refused_in_a_line(place, value, told, tmp_path):
    write_gguf(tmp_path / "net.gguf", "qwen2", _TYPES.Q8_0, side=128)
    data = bytearray((tmp_path / "net.gguf").read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = data.index(name) + len(name)  # count of sides, two sides, type, place
    form = "<I" if place == 20 else "<Q"
    struct.pack_into(form, data, at + place, value)
    (tmp_path / "net.gguf").write_bytes(data)
    with pytest.raises(EdgeoptError, match=told) as raised:
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert "\n" not in raised.value.problem
    assert not (tmp_path / "made" / "model.onnx").exists()


def test_a_matrix_in_blocks_of_another_kind_that_is_empty_is_refused_in_a_line(tmp_path):
    write_gguf(tmp_path / "net.gguf", "qwen2", _TYPES.IQ2_XS, side=K_BLOCK)
    data = bytearray((tmp_path / "net.gguf").read_bytes())
    name = b"blk.1.ffn_up.weight"
    struct.pack_into("<Q", data, data.index(name) + len(name) + 4, 0)
    (tmp_path / "net.gguf").write_bytes(data)
    file = GgufFile(tmp_path / "net.gguf")
    with pytest.raises(InvalidFileError, match=r"ffn_up\.weight is empty"):
        file.read("model.layers.1.mlp.up_proj.weight", (K_BLOCK, K_BLOCK))


def test_blocks_with_scales_that_are_no_numbers_are_refused(tmp_path):
    write_gguf(tmp_path / "net.gguf", "qwen2", _TYPES.Q8_0, side=128)
    file = gguf.GGUFReader(tmp_path / "net.gguf", "r+")
    tensor = next(tensor for tensor in file.tensors if tensor.name == "blk.1.ffn_up.weight")
    tensor.data[3, :2] = np.array([np.nan], np.float16).view(np.uint8)
    file.data.flush()
    with pytest.raises(InvalidFileError, match=r"blk\.1\.ffn_up\.weight holds NaN"):
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
