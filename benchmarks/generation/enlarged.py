"""The shipped `tiny_lm` made large: the speed of 55 million parameters, and its own tokens."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgeopt.export.export import export
from edgeopt.graph.model import load_model

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
INNER, LAYERS, CONTEXT = 8192, 16, 2048
_NEXT_TO_NOTHING = 1e-5
"""Standard deviation of weights through which layers between the shipped ones answer. Zeros would make matrices alike,
of which ONNX Runtime holds a single one, which then stays in the processor's cache; matrices of real models differ."""


def weights_of_shipped() -> dict[str, np.ndarray]:
    """Return the shipped model's weights under Hugging Face's names."""
    from onnx import numpy_helper

    proto = load_model(SHIPPED / "model.onnx").proto
    stored = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    found = {"model.embed_tokens.weight": stored["embedding"], "model.norm.weight": stored["model.norm.weight"]}
    for i in range(4):
        mine, theirs = f"layer.{i}", f"model.layers.{i}"
        qkv = stored[f"{mine}.qkv.weight"].T
        heads = qkv.shape[0] // 2
        parts = np.split(qkv, [heads, heads + heads // 2])
        found |= {f"{theirs}.self_attn.{name}_proj.weight": part for name, part in zip("qkv", parts, strict=True)}
        found[f"{theirs}.self_attn.o_proj.weight"] = stored[f"{mine}.o.weight"].T
        found |= {
            f"{theirs}.mlp.{name}_proj.weight": stored[f"{mine}.{name}.weight"].T for name in ("gate", "up", "down")
        }
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{theirs}.{norm}.weight"] = stored[f"{theirs}.{norm}.weight"]
    return found


def write_large(folder: Path) -> None:
    """Write a Hugging Face folder of the enlarged model: its logits are the shipped one's, to 0.003 of 23.

    No two of its large matrices are alike.
    """
    weights, chance, other = weights_of_shipped(), np.random.default_rng(0), np.random.default_rng(1)
    large = {name: value for name, value in weights.items() if ".layers." not in name}
    for i in range(LAYERS):
        source, is_first = i * 4 // LAYERS, i * 4 % LAYERS < 4
        for name, value in weights.items():
            if not name.startswith(f"model.layers.{source}."):
                continue
            made = value
            if ".mlp." in name:
                shape = (value.shape[0], INNER) if "down" in name else (INNER, value.shape[1])
                made = (0.02 * chance.standard_normal(shape)).astype(np.float32)
                if "down" in name:
                    made[:, : value.shape[1]] = value
                    made[:, value.shape[1] :] = 0
                else:
                    made[: value.shape[0]] = value
            if not is_first and ("down" in name or "o_proj" in name):
                made = (_NEXT_TO_NOTHING * other.standard_normal(made.shape)).astype(np.float32)
            elif not is_first and "_proj" in name and ".mlp." not in name:
                made = (made + 0.02 * other.standard_normal(made.shape)).astype(np.float32)
            large[name.replace(f"layers.{source}.", f"layers.{i}.")] = made
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 128,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    write_folder(folder, large, config)


def write_folder(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, object]) -> None:
    """Write tensors and configuration as Hugging Face has them, with the shipped tokenizer."""
    head, data = dict[str, object](), list[bytes]()
    place = 0
    for name, value in tensors.items():
        data.append(np.ascontiguousarray(value, np.float32).tobytes())
        offsets = [place, place := place + len(data[-1])]
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": offsets}
    text = json.dumps(head).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    shutil.copyfile(SHIPPED / "tokenizer.json", folder / "tokenizer.json")


def exported(work: Path) -> Path:
    """Return the enlarged model as ONNX, with a configuration of onnxruntime-genai beside it."""
    file = work / "onnx" / "model.onnx"
    if not file.is_file():
        write_large(work / "large")
        export(f"hf:{work / 'large'}", out=file)
        shutil.copyfile(SHIPPED / "held_out.txt", file.parent / "held_out.txt")
        recipe = file.parent / "recipe.toml"
        told = recipe.read_text("utf-8").replace('metric = "agreement"', 'metric = "agreement"\ncalib = "held_out.txt"')
        recipe.write_text(told, "utf-8")
    decoder = {
        "session_options": {"intra_op_num_threads": 1, "provider_options": []}, "filename": "model.onnx",
        "head_size": 32, "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                   "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value"},
    }  # fmt: skip
    model = {
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "context_length": CONTEXT, "type": "llama",
        "vocab_size": 1024, "decoder": decoder,
    }  # fmt: skip
    search = {"max_length": CONTEXT, "past_present_share_buffer": True, "do_sample": False}
    (file.parent / "genai_config.json").write_text(json.dumps({"model": model, "search": search}), "utf-8")
    return file
