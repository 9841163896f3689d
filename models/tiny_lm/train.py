"""Train the tiny language model and its draft from scratch and write everything that this folder ships.

    pip install torch tokenizers numpy onnx onnxruntime edgeopt
    python models/tiny_lm/train.py [--threads 2] [--work FOLDER]

Text: the Python files of the standard library of the interpreter that runs this, without its tests, in the order of
their names; every twentieth file is held out. Steps and seed are fixed, wall time is not: another processor rounds
differently, so weights differ in their last digits, the perplexity in its third.

Architecture: Llama (Touvron et al., 2023, arXiv:2302.13971) with grouped queries (Ainslie et al., 2023,
arXiv:2305.13245) and one matrix for embedding and head. Tokens: byte-level BPE with 1024 entries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
END = "<|end|>"
VOCABULARY = 1024
LENGTH, BATCH = 256, 16
LEFT_OUT = ("test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo", "ensurepip")
HELD_OUT_EACH = 20
HELD_OUT_TOKENS = 64 * LENGTH


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model, and how long it learns."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    steps: int


SHAPES = {"model": Shape(128, 384, 4, 4, 2, 6000), "draft": Shape(64, 192, 2, 2, 1, 4000)}
THETA, EPSILON, CONTEXT = 10000.0, 1e-5, 1024


def files() -> list[Path]:
    """Return the Python files of the standard library, by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [file for file in root.rglob("*.py") if not set(file.relative_to(root).parts) & set(LEFT_OUT)]
    return sorted(found, key=lambda file: file.relative_to(root).as_posix())


def read(file: Path) -> str:
    """Return a file's text; what is no UTF-8 becomes a replacement character."""
    return file.read_bytes().decode("utf-8", "replace")


def trained_tokenizer(texts: list[str]) -> Tokenizer:
    """Return a byte-level BPE with the end of a text as its first entry."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokens_of(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Return all texts as one row, each begun by the end of the one before."""
    end = tokenizer.token_to_id(END)
    rows = [np.array([end, *one.ids], np.int64) for one in tokenizer.encode_batch(texts)]
    return torch.from_numpy(np.concatenate(rows))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return (..., length, head) turned by its position; halves, as Hugging Face's Llama pairs them."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Layer(nn.Module):
    """Attention and a gated product, each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.head = shape, shape.hidden // shape.heads
        self.q = nn.Linear(shape.hidden, shape.heads * self.head, bias=False)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.o = nn.Linear(shape.heads * self.head, shape.hidden, bias=False)
        self.gate = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)
        self.before_attention = nn.Parameter(torch.ones(shape.hidden))
        self.before_product = nn.Parameter(torch.ones(shape.hidden))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return (batch, length, hidden)."""
        batch, length, _ = x.shape
        normal = functional.rms_norm(x, x.shape[-1:], self.before_attention, EPSILON)
        q, k, v = (part(normal).view(batch, length, -1, self.head).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).reshape(batch, length, -1))
        normal = functional.rms_norm(x, x.shape[-1:], self.before_product, EPSILON)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))


class Llama(nn.Module):
    """Tokens to logits of the next one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCABULARY, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.last = nn.Parameter(torch.ones(shape.hidden))
        head = shape.hidden // shape.heads
        turns = torch.outer(torch.arange(LENGTH), THETA ** (-torch.arange(0, head, 2) / head))
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02 if isinstance(part, nn.Embedding) else shape.hidden**-0.5 / 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (batch, length, vocabulary)."""
        x, length = self.embedding(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return functional.rms_norm(x, x.shape[-1:], self.last, EPSILON) @ self.embedding.weight.T


def loss_of(model: Llama, rows: Tensor) -> Tensor:
    """Return the mean loss in nats of (batch, length + 1) tokens."""
    logits = model(rows[:, :-1])
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))


def perplexity(model: Llama, tokens: Tensor) -> float:
    """Return it over windows of the held-out text, side by side."""
    rows = tokens[: (len(tokens) - 1) // LENGTH * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)
    with torch.no_grad():
        found = [loss_of(model, part).item() * len(part) for part in rows.split(BATCH)]
    return math.exp(sum(found) / len(rows))


def trained(name: str, shape: Shape, train: Tensor, held_out: Tensor) -> Llama:
    """Return a model after its fixed number of steps."""
    torch.manual_seed(0)
    model, began_s = Llama(shape), time.monotonic()
    count = sum(one.numel() for one in model.parameters())
    matrices = [one for one in model.parameters() if one.ndim == 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": [p for p in model.parameters() if p.ndim < 2]}]
    optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)
    chance = torch.Generator().manual_seed(1)
    for step in range(shape.steps):
        part = step / shape.steps
        rate = 4e-3 * min(1.0, (step + 1) / 60) * (0.05 + 0.95 * (1 + math.cos(math.pi * part)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(train) - LENGTH - 1, (BATCH,), generator=chance)
        loss = loss_of(model, torch.stack([train[i : i + LENGTH + 1] for i in starts.tolist()]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step + 1 == shape.steps:
            told = perplexity(model, held_out)
            seconds = time.monotonic() - began_s
            print(f"{name}: {count} weights, step {step}, loss {loss.item():.3f}, held-out perplexity {told:.2f}, "
                  f"{seconds:.0f} s", flush=True)  # fmt: skip
    return model


def named(model: Llama) -> dict[str, np.ndarray]:
    """Return the weights under Hugging Face's names."""
    parts = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}  # fmt: skip
    found = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.last}
    for i, layer in enumerate(model.layers):
        for mine, theirs in parts.items():
            found[f"model.layers.{i}.{theirs}.weight"] = getattr(layer, mine).weight
        found[f"model.layers.{i}.input_layernorm.weight"] = layer.before_attention
        found[f"model.layers.{i}.post_attention_layernorm.weight"] = layer.before_product
    return {name: value.detach().numpy() for name, value in found.items()}


def configuration(shape: Shape) -> dict[str, object]:
    """Return Hugging Face's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu", "rms_norm_eps": EPSILON, "rope_theta": THETA, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float32",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("tiny-lm-work"), help="where Hugging Face folders go")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    every = files()
    texts = [read(file) for file in every]
    digest = hashlib.sha256("".join(texts).encode("utf-8", "replace")).hexdigest()
    print(f"{len(texts)} files, {sum(map(len, texts))} characters, SHA-256 {digest[:16]}", flush=True)
    held_out = texts[HELD_OUT_EACH - 1 :: HELD_OUT_EACH]
    train = [text for i, text in enumerate(texts) if (i + 1) % HELD_OUT_EACH]
    tokenizer = trained_tokenizer(train)
    learned, judged = tokens_of(tokenizer, train), tokens_of(tokenizer, held_out)[:HELD_OUT_TOKENS]
    print(f"{len(learned)} tokens to learn, {len(judged)} held out", flush=True)
    from safetensors.numpy import save_file

    for name, shape in SHAPES.items():
        folder = given.work / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "held_out.txt").write_text("".join(held_out)[:60_000], "utf-8")
        model = trained(name, shape, learned, judged)
        save_file(named(model), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(configuration(shape), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
