"""Elementwise activations as NumPy functions, so that an error can be measured after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Activation: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]


def sigmoid(values: NDArray[Any]) -> NDArray[Any]:
    """Return 1 / (1 + exp(-x)), without overflow."""
    result: NDArray[Any] = 0.5 * np.tanh(0.5 * values) + 0.5
    return result


def silu(values: NDArray[Any]) -> NDArray[Any]:
    """Return x * sigmoid(x)."""
    result: NDArray[Any] = values * sigmoid(values)
    return result


def relu(values: NDArray[Any]) -> NDArray[Any]:
    """Return max(x, 0)."""
    result: NDArray[Any] = np.maximum(values, 0)
    return result


def hard_sigmoid(alpha: float = 0.2, beta: float = 0.5) -> Activation:
    """Return the function clip(alpha x + beta, 0, 1)."""
    return lambda values: np.clip(alpha * values + beta, 0, 1)


def hard_swish(values: NDArray[Any]) -> NDArray[Any]:
    """Return x * clip(x / 6 + 1/2, 0, 1)."""
    result: NDArray[Any] = values * np.clip(values / 6 + 0.5, 0, 1)
    return result


def clip(low: float, high: float) -> Activation:
    """Return the function that limits to low..high."""
    return lambda values: np.clip(values, low, high)


def leaky_relu(alpha: float = 0.01) -> Activation:
    """Return the function x, or alpha x below zero."""
    return lambda values: np.where(values < 0, alpha * values, values)


SIMPLE: Mapping[str, Activation] = {
    "Sigmoid": sigmoid,
    "Relu": relu,
    "HardSwish": hard_swish,
    "Tanh": np.tanh,
    "Swish": silu,
}
"""Ops whose function needs no attribute."""
