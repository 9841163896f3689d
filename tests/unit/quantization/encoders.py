"""A transformer encoder as PyTorch exports it, with weights and normalisations spread as trained ones are."""

from __future__ import annotations

import numpy as np
from small_nets import Net

from edgeopt.model import Model


class Encoder(Net):
    """Patches, positions, and blocks of attention and perceptron."""

    def __init__(self, width: int, heads: int, side: int, patch: int, seed: int, causal: bool = False) -> None:
        super().__init__(size=side * patch, seed=seed)
        self.width, self.heads, self.tokens, self.patch = width, heads, side * side, patch
        self.causal = causal

    def linear(self, x: str, fan: int, out: int) -> str:
        number = len(self.nodes)
        weight = self.constant(f"w{number}", (self.chance.standard_t(5, (fan, out)) * fan**-0.5).astype(np.float32))
        bias = self.constant(f"b{number}", self.chance.normal(0, 0.1, out).astype(np.float32))
        return self.op("Add", bias, self.op("MatMul", x, weight))

    def norm(self, x: str) -> str:
        """A few channels are 20 times as large as the others, as in every large trained transformer."""
        gain = np.exp(self.chance.normal(0, 0.4, self.width))
        gain[self.chance.choice(self.width, max(1, self.width // 64), replace=False)] *= 20
        number = len(self.nodes)
        gains = self.constant(f"gain{number}", gain.astype(np.float32))
        shift = self.constant(f"shift{number}", self.chance.normal(0, 0.2, self.width).astype(np.float32))
        return self.op("LayerNormalization", x, gains, shift, axis=-1, epsilon=1e-6)

    def gelu(self, x: str) -> str:
        error = self.op("Erf", self.op("Div", x, self.constant("root_of_two", np.float32(2**0.5))))
        doubled = self.op("Mul", x, self.op("Add", error, self.constant("one", np.float32(1))))
        return self.op("Mul", doubled, self.constant("half", np.float32(0.5)))

    def apart(self, x: str, perm: list[int]) -> str:
        shape = self.constant("apart", np.array([1, self.tokens, self.heads, self.width // self.heads]))
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def attention(self, x: str) -> str:
        queries, keys, values = (self.linear(x, self.width, self.width) for _ in range(3))
        keys, values = self.apart(keys, [0, 2, 3, 1]), self.apart(values, [0, 2, 1, 3])
        products = self.op("MatMul", self.apart(queries, [0, 2, 1, 3]), keys)
        root = self.constant("root", np.float32((self.width // self.heads) ** 0.5))
        scores = self.op("Div", products, root)
        if self.causal:
            hidden = np.triu(np.full((1, 1, self.tokens, self.tokens), -np.inf, np.float32), 1)
            scores = self.op("Add", scores, self.constant("mask", hidden))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), values)
        together = self.constant("together", np.array([1, self.tokens, self.width]))
        return self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), together)


def encoder(
    width: int = 64,
    heads: int = 2,
    side: int = 8,
    depth: int = 2,
    patch: int = 4,
    classes: int = 10,
    seed: int = 0,
    causal: bool = False,
) -> Model:
    """Return a vision transformer that classifies pictures of side * patch pixels."""
    net = Encoder(width, heads, side, patch, seed, causal)
    weight = net.chance.normal(0, (3 * patch * patch) ** -0.5, (width, 3, patch, patch)).astype(np.float32)
    x = net.op("Conv", "x", net.constant("patch_w", weight), strides=[patch] * 2, kernel_shape=[patch] * 2)
    x = net.op("Reshape", x, net.constant("rows", np.array([1, width, net.tokens])))
    position = net.constant("position", net.chance.normal(0, 0.5, (1, net.tokens, width)).astype(np.float32))
    x = net.op("Add", net.op("Transpose", x, perm=[0, 2, 1]), position)
    for _ in range(depth):
        x = net.op("Add", net.linear(net.attention(net.norm(x)), width, width), x)
        x = net.op("Add", net.linear(net.gelu(net.linear(net.norm(x), width, 4 * width)), 4 * width, width), x)
    pooled = net.op("ReduceMean", net.norm(x), axes=[1], keepdims=0)
    head = net.constant("head_w", net.chance.normal(0, width**-0.5, (classes, width)).astype(np.float32))
    bias = net.constant("head_b", net.chance.normal(0, 0.1, classes).astype(np.float32))
    return net.model(net.op("Gemm", pooled, head, bias, transB=1), name="encoder")
