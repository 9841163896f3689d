"""Decoders of the Llama type rewritten so that they compute the same and, perhaps, lose less in few bits.

Weights have Hugging Face's names, (outputs, inputs). Each function returns other weights of the same network; the head
has a matrix of its own then, as the last norm's scales are folded into it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Weights = dict[str, np.ndarray]
EMBEDDING, HEAD, LAST = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
READ = {
    "input_layernorm": [f"self_attn.{part}_proj" for part in "qkv"],
    "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
}
"""Norm -> matrices that read it."""
WRITE = ("self_attn.o_proj", "mlp.down_proj")
"""Matrices whose products are added to the residual stream."""


def layers_of(weights: Mapping[str, np.ndarray]) -> list[str]:
    """Return the beginnings of the names of each layer."""
    return list(dict.fromkeys(".".join(name.split(".")[:3]) for name in weights if ".layers." in name))


def folded(weights: Mapping[str, np.ndarray]) -> Weights:
    """Fold each norm's scales into the matrices that read it: (x / rms(x) * g) W = (x / rms(x)) diag(g) W."""
    made = {HEAD: weights.get(HEAD, weights[EMBEDDING]), **weights}
    for layer in layers_of(weights):
        for norm, readers in READ.items():
            scale = made[f"{layer}.{norm}.weight"]
            for reader in readers:
                made[f"{layer}.{reader}.weight"] = made[f"{layer}.{reader}.weight"] * scale
            made[f"{layer}.{norm}.weight"] = np.ones_like(scale)
    made[HEAD] = made[HEAD] * made[LAST]
    made[LAST] = np.ones_like(made[LAST])
    return made


def rotated(weights: Mapping[str, np.ndarray], seed: int = 0, *, stream: bool = True, heads: int = 0) -> Weights:
    """Rotate the residual stream, and the values of each head: rms(x Q) = rms(x), so that the network is the same.

    Q = H diag(s) / sqrt(n) with the Hadamard matrix H and random signs s, or a random orthogonal matrix where n is no
    power of two. Source: Ashkboos et al., QuaRot, NeurIPS 2024, section 4, and Tseng et al., QuIP#, ICML 2024.

    Args:
        weights: Of the network.
        seed: Of the signs.
        stream: Whether the residual stream is rotated.
        heads: Of keys and values; 0: values are left as they are.
    """
    made = folded(weights)
    layers = layers_of(weights)
    turn = random_turn(made[EMBEDDING].shape[1], seed)
    for name in (EMBEDDING, HEAD) if stream else ():
        made[name] = made[name].astype(np.float64) @ turn
    for layer in layers:
        for reader in (f"{layer}.{each}.weight" for readers in READ.values() for each in readers) if stream else ():
            made[reader] = made[reader].astype(np.float64) @ turn
        for writer in (f"{layer}.{each}.weight" for each in WRITE) if stream else ():
            made[writer] = turn.T @ made[writer].astype(np.float64)
        if heads:
            value, out = f"{layer}.self_attn.v_proj.weight", f"{layer}.self_attn.o_proj.weight"
            head = len(made[value]) // heads
            own = random_turn(head, seed + 1)
            made[value] = (own.T @ made[value].reshape(heads, head, -1)).reshape(made[value].shape)
            made[out] = (made[out].reshape(len(made[out]), -1, head) @ own).reshape(made[out].shape)
    return {name: np.ascontiguousarray(array, np.float32) for name, array in made.items()}


def random_turn(size: int, seed: int) -> np.ndarray:
    """Return an orthogonal matrix."""
    chance = np.random.default_rng(seed)
    if size & (size - 1):
        made, upper = np.linalg.qr(chance.standard_normal((size, size)))
        return np.asarray(made * np.sign(np.diag(upper)))
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return np.asarray(made * chance.choice([-1.0, 1.0], size) / np.sqrt(size))


def scaled(weights: Mapping[str, np.ndarray], seen: Mapping[str, np.ndarray], exponent: float) -> Weights:
    """Scale each input of a matrix by how strong it is, and what makes it by the inverse: norms, and neurons by `up`.

    s = a^exponent / mean, a the mean absolute input. Source: Lin et al., AWQ, MLSys 2024, equations 4 and 5.

    Args:
        weights: Of the network.
        seen: Mean absolute input of each matrix, by its name.
        exponent: 0: nothing changes.
    """
    made = dict(weights)

    def strengths(name: str) -> np.ndarray:
        raised = np.maximum(seen[name], 1e-6) ** exponent
        return np.asarray(raised / np.exp(np.log(raised).mean()), np.float32)

    for layer in layers_of(weights):
        for norm, readers in READ.items():
            scale = strengths(f"{layer}.{readers[0]}.weight")
            made[f"{layer}.{norm}.weight"] = made[f"{layer}.{norm}.weight"] / scale
            for reader in readers:
                made[f"{layer}.{reader}.weight"] = made[f"{layer}.{reader}.weight"] * scale
        down, up = f"{layer}.mlp.down_proj.weight", f"{layer}.mlp.up_proj.weight"
        scale = strengths(down)
        made[down], made[up] = made[down] * scale, made[up] / scale[:, None]
    return made
