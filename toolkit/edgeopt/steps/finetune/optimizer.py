"""Steps of weights, in proportion to what each tensor makes, that leave alone what is right already.

Adam moves every weight by the same step, however small its gradient: a layer that still computes what its teacher's
does is spoilt by the first step. So the root mean square of all gradients is added to what Adam divides by: a weight
whose gradient is small beside all others is moved in proportion to it.

Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_MEANS, _SQUARES = 0.9, 0.99
_BIAS = 16
"""Weights that a bias counts for."""


class Optimizer:
    """Weights, and the running means of their gradients."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        """Take the weights; what they are now says how large a step of each is."""
        import torch

        self.weights = tuple(weights)
        self._sizes = [_size_of(weight) for weight in weights]
        self._count = sum(weight.numel() for weight in weights)
        self._means = [torch.zeros_like(weight) for weight in weights]
        self._squares = [torch.zeros_like(weight) for weight in weights]

    def begin_again(self) -> None:
        """Forget all gradients."""
        for mean in (*self._means, *self._squares):
            mean.zero_()

    def step(self, number: int, rate: float) -> None:
        """Move the weights against their gradients, which are then gone; nothing where these are not finite.

        Args:
            number: Of the step, from 1.
            rate: Share by which a weight with a large gradient changes what its layer makes, at most.
        """
        import torch

        moved = [i for i, weight in enumerate(self.weights) if weight.grad is not None]
        gradients = [self.weights[i].grad * self._sizes[i] for i in moved]
        for value in self.weights:
            value.grad = None
        if not all(bool(torch.isfinite(other).all()) for other in gradients):
            return
        left, seen = 1 - _MEANS**number, 1 - _SQUARES**number
        with torch.no_grad():
            for i, gradient in zip(moved, gradients, strict=True):
                self._means[i].lerp_(gradient, 1 - _MEANS)
                self._squares[i].mul_(_SQUARES).addcmul_(gradient, gradient, value=1 - _SQUARES)
            whole = math.fsum(float(square.double().sum()) for square in self._squares)
            usual = max(math.sqrt(whole / self._count / seen), 1e-30)
            for i in moved:
                divisor = (self._squares[i] / seen).sqrt_().add_(usual)
                self.weights[i].addcdiv_(self._means[i], divisor, value=-rate * self._sizes[i] / left)

    def state(self, place: int) -> Mapping[str, Tensor]:
        """Return the running means of a weight, by name: what is copied into them is taken over."""
        return {"means": self._means[place], "squares": self._squares[place]}

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.weights)


def _size_of(weight: Tensor) -> float:
    """Return the step of a weight that changes what its layer makes by about as much as it is.

    Of n weights that are summed, steps of one sign add up to n of them, the weights themselves to the root of n.
    """
    summed = weight.numel() / weight.shape[0] if weight.ndim > 1 else _BIAS
    return max(float(weight.detach().square().mean().sqrt()), 1e-4) / math.sqrt(summed)
