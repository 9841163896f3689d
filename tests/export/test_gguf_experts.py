"""Experts of files of llama.cpp stay the blocks that they are, in one op a layer, or are refused in a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from small_decoders import VOCABULARY, byte_tokenizer
from small_mixtures import KINDS, logits_of, write_by_transformers

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.export.export import export
from edgeopt.graph.facts.mixtures import DOWN, UP
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.kept_blocks import in_floats

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'edgeopt[gguf]'")
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 40).tolist()
ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "olmoe": "olmoe"}
ARCHITECTURES |= {"granitemoe": "granitemoe"}
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
TYPES = gguf.GGMLQuantizationType


def stored(array: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array as a file has it, and the floats that this is."""
    kind = TYPES[form]
    if form == "Q6_K":  # which the package reads and does not write
        chance, (length, width) = np.random.default_rng(array.size), gguf.GGML_QUANT_SIZES[kind]
        raw = chance.integers(0, 256, (array.size // length, width), np.uint8)
        raw[:, 208:210] = chance.uniform(1e-4, 2e-4, len(raw)).astype("<f2")[:, None].view(np.uint8)
        raw = raw.reshape(*array.shape[:-1], -1)
    else:
        raw = gguf.quants.quantize(array, kind)
    return raw, gguf.quants.dequantize(raw, kind).reshape(array.shape)


def neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows as `convert_hf_to_gguf.py` orders those of the type llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_mixture(folder: Path, kind: str, forms: dict[str, str], told: dict[str, Any] | None = None, **more: Any):
    """Write a mixture of transformers as llama.cpp's converter does; return its module with the floats of the file.

    Args:
        folder: Where `net.gguf` is written.
        kind: Of the mixture.
        forms: Types of `gate`, `up` and `down` of the experts.
        told: Further entries of the head.
        more: Sizes of the mixture.
    """
    torch = pytest.importorskip("torch")
    config, sizes = KINDS[kind]
    module = write_by_transformers(folder / "source", config, **{**sizes, **more})
    config, name = module.config, ARCHITECTURES[kind]
    writer = gguf.GGUFWriter(folder / "net.gguf", name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_expert_count(getattr(config, "num_experts", None) or config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "granitemoe":
        told = {
            "embedding_scale": config.embedding_multiplier, "residual_scale": config.residual_multiplier,
            "attention.scale": config.attention_multiplier, "logit_scale": config.logits_scaling,
        }  # fmt: skip
    for key, value in (told or {}).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{name}.{key}", value)
    letters = [letter for _, letter in sorted((i, letter) for letter, i in byte_tokenizer()._ids.items())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters += ["th"]
    writer.add_token_list(letters + [f"[PAD{i}]" for i in range(len(letters), VOCABULARY)])
    writer.add_token_types([3 if i == 256 else 5 if i > 256 else 1 for i in range(VOCABULARY)])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(256)
    tensors = {key: value.detach() for key, value in module.state_dict().items()}
    for key, tensor in tensors.items():
        layer = re.match(r"model\.layers\.(\d+)\.", key)
        before, part = (f"blk.{layer[1]}.", key[layer.end() :]) if layer else ("", key)
        if part.endswith(".experts.gate_up_proj"):
            made = dict(zip(("gate", "up"), np.split(tensor.numpy(), 2, axis=1), strict=True))
        elif part.endswith(".experts.down_proj"):
            made = {"down": tensor.numpy()}
        else:
            theirs, _, end = part.removesuffix(".weight").partition(".bias")
            theirs, end = NAMES[theirs], "bias" if part.endswith("bias") else "weight"
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(theirs, 0)
            array = tensor.numpy()
            if part == "mlp.shared_expert_gate.weight":
                array = array[0]
            array = neighbours(array, heads) if heads and kind in ("mixtral", "granitemoe") else array
            writer.add_tensor(f"{before}{theirs}.{end}", np.ascontiguousarray(array))
            continue
        floats = list[np.ndarray]()
        for name_of_part, array in made.items():
            raw, real = stored(np.ascontiguousarray(array), forms[name_of_part])
            floats.append(real)
            writer.add_tensor(f"{before}ffn_{name_of_part}_exps.weight", raw, raw_dtype=TYPES[forms[name_of_part]])
        with torch.no_grad():
            tensor.copy_(torch.tensor(np.concatenate(floats, axis=1)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return module


def count(model: Model, op: str) -> int:
    return sum(node.op_type == op for node in model.proto.graph.node)


def all_as(form: str) -> dict[str, str]:
    return dict.fromkeys(("gate", "up", "down"), form)


LONG = {"hidden_size": 256, "moe_intermediate_size": 256}


@pytest.mark.parametrize(
    ("kind", "forms", "more", "way"),
    [
        ("mixtral", all_as("Q4_0"), {}, (4, 32)),
        ("qwen3_moe", all_as("Q8_0"), {}, (8, 32)),
        ("qwen2_moe", {"gate": "Q4_0", "up": "Q4_0", "down": "Q8_0"}, {}, (8, 32)),
        ("qwen3_moe", {"gate": "Q4_0", "up": "Q5_0", "down": "Q6_K"}, LONG, (8, 16)),
        ("olmoe", all_as("F16"), {}, None),
        ("granitemoe", all_as("Q4_0"), {}, (4, 32)),
    ],
    ids=["mixtral-Q4_0", "qwen3-Q8_0", "qwen2-mixed", "qwen3-four-types", "olmoe-F16", "granite-Q4_0"],
)
def test_experts_stay_the_blocks_of_the_file_and_answer_as_transformers_does(kind, forms, more, way, tmp_path):
    module = write_mixture(tmp_path, kind, forms, **more)
    made = export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert made.outputs[0].drift.sqnr_db > 80
    model = load_model(made.file)
    assert (count(model, "QMoE"), count(model, "MoE")) == ((2, 0) if way else (0, 2))
    if way:
        sizes = {attribute.name: attribute.i for node in model.proto.graph.node if node.op_type == "QMoE"
                 for attribute in node.attribute}  # fmt: skip
        assert (sizes["expert_weight_bits"], sizes["block_size"]) == way
        assert f"in {forms['down']}" in made.notes[0].detail
    graph = Graph.from_model(in_floats(model).model)
    for layer, node in enumerate(graph.nodes("MoE", domain="com.microsoft")):
        block = module.model.layers[layer]
        experts = (block.mlp if hasattr(block, "mlp") else block.block_sparse_moe).experts
        up, down = (graph.constant(node.inputs[place]) for place in (UP, DOWN))
        joined = experts.gate_up_proj.detach().numpy()
        np.testing.assert_array_equal(np.concatenate([up[:, 0::2], up[:, 1::2]], axis=1), joined)
        np.testing.assert_array_equal(down, experts.down_proj.detach().numpy())
    expected = logits_of(module, TOKENS)
    with open_language_model(made.file, 1)[0] as opened:
        whole, decoder = opened.logits(TOKENS), opened.decoder(len(TOKENS))
        single = np.concatenate([decoder.run(TOKENS[:30]), *(decoder.run([token]) for token in TOKENS[30:])])
    for array in (whole, single):
        noise = np.linalg.norm(array - expected) / np.linalg.norm(expected)
        assert -20 * np.log10(noise) > (25 if way and way[0] == 8 else 80)  # the engine rounds what 8-bit experts read


@pytest.mark.parametrize(
    ("forms", "told", "words"),
    [
        (all_as("Q4_1"), {}, r"blk\.0\.ffn_gate_exps\.weight: blocks of Q4_1 begin at numbers of their own"),
        ({"gate": "Q4_0", "up": "Q4_0", "down": "F16"}, {}, r"ffn_down_exps\.weight: it is F16 beside experts"),
        (all_as("TQ2_0"), {}, "QMoE reads no blocks of TQ2_0"),
        (all_as("Q8_0"), {"expert_gating_func": 2}, "expert_gating_func = 2 is not read"),
        (all_as("Q8_0"), {"expert_weights_scale": 2.5}, r"expert_weights_scale = 2\.5 is not read"),
        (all_as("Q8_0"), {"expert_used_count": 7}, "7 of 6 experts"),
    ],
)
def test_experts_that_no_op_reads_are_refused_in_a_line(forms, told, words, tmp_path):
    more = LONG if forms["up"] == "TQ2_0" else {}
    write_mixture(tmp_path, "qwen3_moe", forms, told, **more)
    with pytest.raises(EdgeoptError, match=words) as raised:
        export(str(tmp_path / "net.gguf"), out=tmp_path / "made" / "model.onnx")
    assert "\n" not in raised.value.problem
    assert raised.value.remedy
    assert not (tmp_path / "made" / "model.onnx").exists()


def test_a_file_with_experts_is_exported_and_writes_by_commands(tmp_path):
    write_mixture(tmp_path, "qwen3_moe", all_as("Q4_0"))
    out = str(tmp_path / "made" / "model.onnx")
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "net.gguf"), "-o", out])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["run", out, "--prompt", "the", "--output-tokens", "5", "--json"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 5
