"""Which kinds of decoders of transformers are exported and answer right: the table of docs/language-models.md.

    pip install edgeopt[cpu,export]
    python benchmarks/decoder_kinds.py [KIND ...]

Each kind is a small configuration with random weights, norms and biases. `edgeopt export` writes it, or refuses it; the
logits of 40 tokens, at once and in parts over the cache, are compared with transformers.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))
from small_decoders import VOCABULARY, write_tokenizer
from small_mixtures import logits_of

from edgeopt.errors import EdgeoptError
from edgeopt.export.export import export
from edgeopt.graph.model import load_model
from edgeopt.runtime.decoding.opening import open_language_model

WORST = 1e-3
"""Largest difference of logits over the largest logit at which a graph answers right."""
_OPS = ("GroupQueryAttention", "MoE", "LinearAttention", "CausalConvWithState", "RotaryEmbedding")
_TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}
_STATES = {**_TOKENS, "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "pad_token_id": 0}
_PLAIN = {**_STATES, "intermediate_size": 96, "num_attention_heads": 4, "max_position_embeddings": 128}
_LLAMA = {**_PLAIN, "num_key_value_heads": 2}
_GPT = {**_TOKENS, "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
_HEAD = {**_LLAMA, "head_dim": 16}
_SLIDING = {**_HEAD, "sliding_window": 8, "num_hidden_layers": 4}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1}
_DELTA = {
    **_LLAMA, "num_hidden_layers": 4, "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 48,
}  # fmt: skip
_FACTORS = {"embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.4, "attention_multiplier": 0.1}
_SCAN = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
_LATENT = {
    **_PLAIN, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", _LLAMA),
    "Llama with biases": ("Llama", {**_LLAMA, "attention_bias": True}),
    "Mistral": ("Mistral", {**_LLAMA, "sliding_window": 8}),
    "Ministral": ("Ministral", _SLIDING),
    "Ministral 3": ("Ministral3", _HEAD),
    "Qwen2, Qwen2.5": ("Qwen2", _LLAMA),
    "Qwen3": ("Qwen3", _HEAD),
    "Qwen3, windows in some layers": ("Qwen3", {**_SLIDING, "use_sliding_window": True, "max_window_layers": 1}),
    "Qwen2-MoE": ("Qwen2Moe", {**_LLAMA, **_EXPERTS, "shared_expert_intermediate_size": 48}),
    "Qwen3-MoE": ("Qwen3Moe", {**_HEAD, **_EXPERTS, "norm_topk_prob": True}),
    "Qwen3-Next": ("Qwen3Next", {**_DELTA, **_EXPERTS}),
    "Qwen3.5 (text)": ("Qwen3_5Text", _DELTA),
    "Qwen3.5 with experts (text)": ("Qwen3_5MoeText", {**_DELTA, **_EXPERTS}),
    "Mixtral": ("Mixtral", {**_LLAMA, **_LOCAL}),
    "Gemma": ("Gemma", _HEAD),
    "Gemma 2": ("Gemma2", {**_SLIDING, "query_pre_attn_scalar": 16}),
    "Gemma 3 (text)": ("Gemma3Text", {**_SLIDING, "query_pre_attn_scalar": 16, "num_hidden_layers": 6}),
    "VaultGemma": ("VaultGemma", {**_HEAD, "query_pre_attn_scalar": 16}),
    "Phi, Phi-2": ("Phi", {**_LLAMA, "partial_rotary_factor": 0.5}),
    "Phi-3, Phi-4": ("Phi3", _LLAMA),
    "Phi-4-mini (a part turns)": ("Phi3", {**_LLAMA, "partial_rotary_factor": 0.75}),
    "Phi-3.5-MoE": ("Phimoe", {**_LLAMA, **_LOCAL}),
    "SmolLM3": ("SmolLM3", {**_LLAMA, "num_hidden_layers": 4}),
    "Granite 3": ("Granite", {**_LLAMA, **_FACTORS}),
    "Granite-MoE": ("GraniteMoe", {**_LLAMA, **_FACTORS, **_LOCAL}),
    "Granite-MoE, shared expert": (
        "GraniteMoeShared", {**_LLAMA, **_FACTORS, **_LOCAL, "shared_intermediate_size": 48}
    ),
    "Granite 4 (Mamba-2 and experts)": (
        "GraniteMoeHybrid",
        {**_LLAMA, **_LOCAL, **_SCAN, "shared_intermediate_size": 48, "layer_types": ["mamba", "attention", "mamba"]},
    ),
    "Granite 4, attention alone": (
        "GraniteMoeHybrid",
        {
            **_LLAMA, **_SCAN, "shared_intermediate_size": 48, "layer_types": ["attention"] * 3,
            "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope",
        },
    ),
    "OLMo": ("Olmo", _LLAMA),
    "OLMo 2": ("Olmo2", _LLAMA),
    "OLMo 3": ("Olmo3", {**_LLAMA, "num_hidden_layers": 4, "sliding_window": 8}),
    "OLMoE": ("Olmoe", {**_LLAMA, "num_experts": 8, "num_experts_per_tok": 4}),
    "Falcon": ("Falcon", {name: value for name, value in _PLAIN.items() if name != "intermediate_size"}),
    "Falcon-H1": ("FalconH1", {**_LLAMA, **_SCAN, "mamba_d_ssm": 128}),
    "Falcon-Mamba": ("FalconMamba", {**_STATES, "state_size": 8}),
    "LFM2": ("Lfm2", {**_LLAMA, "layer_types": ["conv", "full_attention", "conv"]}),
    "LFM2 with experts": (
        "Lfm2Moe",
        {**_LLAMA, **_EXPERTS, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    ),
    "GLM-4 (9B)": ("Glm", _HEAD),
    "GLM-4-0414": ("Glm4", _HEAD),
    "GLM-4.5": ("Glm4Moe", {**_HEAD, **_ROUTED}),
    "Cohere, Command R": ("Cohere", _LLAMA),
    "Cohere 2, Command R7B": ("Cohere2", {**_LLAMA, "sliding_window": 8, "num_hidden_layers": 4}),
    "StableLM": ("StableLm", _LLAMA),
    "StarCoder2": ("Starcoder2", {**_LLAMA, "sliding_window": 8}),
    "GPT-2": ("GPT2", _GPT),
    "GPT-J": ("GPTJ", {**_GPT, "rotary_dim": 8}),
    "GPT-NeoX, Pythia": ("GPTNeoX", _PLAIN),
    "GPT-BigCode": ("GPTBigCode", _GPT),
    "OPT": ("OPT", {**_STATES, "ffn_dim": 96, "num_attention_heads": 4, "max_position_embeddings": 128,
                    "word_embed_proj_dim": 64, "pad_token_id": 1}),
    "BLOOM": ("Bloom", {**_TOKENS, "vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 3, "n_head": 4}),
    "MiniCPM3": ("MiniCPM3", _LATENT),
    "DeepSeek-V2": ("DeepseekV2", {**_LATENT, **_ROUTED}),
    "DeepSeek-V3": ("DeepseekV3", {**_LATENT, **_ROUTED, "n_group": 2, "topk_group": 1}),
    "EXAONE 4": ("Exaone4", {**_SLIDING, "sliding_window_pattern": 4}),
    "ERNIE 4.5": ("Ernie4_5", _HEAD),
    "ERNIE 4.5 with experts": (
        "Ernie4_5_Moe", {**_LLAMA, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64}
    ),
    "Hunyuan (dense)": ("HunYuanDenseV1", _HEAD),
    "Hunyuan with experts": ("HunYuanMoEV1", {**_HEAD, "num_experts": 4, "moe_topk": 2}),
    "gpt-oss": ("GptOss", {**_SLIDING, **_LOCAL}),
    "Bamba": ("Bamba", {**_LLAMA, **_SCAN, "attn_layer_indices": [1]}),
    "Jamba": ("Jamba", {**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8,
                        "mamba_dt_rank": 8, "attn_layer_period": 3, "attn_layer_offset": 1}),
    "Nemotron": ("Nemotron", _HEAD),
    "Nemotron-H": ("NemotronH", _LLAMA),
    "Mamba": ("Mamba", {**_STATES, "state_size": 8, "initializer_range": 0.2}),
    "Mamba-2": ("Mamba2", {**_STATES, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 24,
                           "initializer_range": 0.2}),
    "Helium": ("Helium", _HEAD),
    "Arcee": ("Arcee", _HEAD),
    "Seed-OSS": ("SeedOss", _HEAD),
    "Apertus": ("Apertus", _LLAMA),
    "BitNet": ("BitNet", _LLAMA),
}  # fmt: skip
"""Kind to the name of its configuration in transformers, and its sizes."""


def made(kind: str) -> Any:
    """Return a small network of a kind, of which no norm is 1 and no bias 0."""
    name, sizes = KINDS[kind]
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{name}Config")(**sizes)).eval()
    with torch.no_grad():
        for name, weights in module.named_parameters():
            if weights.dim() == 1 and any(part in name for part in ("norm", "bias", "ln_")):
                weights.add_(torch.randn_like(weights) * 0.2)
    return module


def outcome(kind: str, folder: Path) -> str:
    """Return the cells of a kind in the table: by what it is exported, how far it is off, its ops."""
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, 40).tolist()
    module = made(kind)
    module.save_pretrained(folder / "source")
    write_tokenizer(folder / "source")
    expected = logits_of(module, tokens)
    try:
        exported = export(f"hf:{folder / 'source'}", out=folder / "made" / "model.onnx")
    except EdgeoptError as error:
        return f"refused: {error.problem.rpartition(': ')[2][:120]} | | "
    with open_language_model(exported.file, 1)[0] as model:
        whole, decoder = model.logits(tokens), model.decoder(len(tokens))
        parts = [decoder.run(tokens[:17]), decoder.run(tokens[17:30]), *(decoder.run([token]) for token in tokens[30:])]
    off = max(float(np.abs(each - expected).max()) for each in (whole, np.concatenate(parts)))
    share = off / float(np.abs(expected).max())
    ops = Counter(node.op_type for node in load_model(exported.file).proto.graph.node)
    told = ", ".join(f"{ops[name]} {name}" for name in _OPS if ops[name]) or "none fused"
    by = "torch" if exported.framework.startswith("PyTorch") else "its weights"
    return f"{by if share < WORST else 'WRONG'} | {share:.0e} | {told}"


def main() -> None:
    """Print the table, a row as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help="kinds of the table; none: all")
    kinds = parser.parse_args().kinds or list(KINDS)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| kind | exported by | off | ops of ONNX Runtime |\n|---|---|--:|---|")
    for kind in kinds:
        with TemporaryDirectory() as folder:
            print(f"| {kind} | {outcome(kind, Path(folder))} |", flush=True)


if __name__ == "__main__":
    main()
