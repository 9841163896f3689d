"""Positions in a decoder: by how much they turn each pair of a head, scaled as configurations ask, and who sees whom.

Source: Su et al., 2021, arXiv:2104.09864; Chen et al., 2023, arXiv:2306.15595 (linear); Peng et al., 2023,
arXiv:2309.00071 (yarn); the Llama 3.1 release (llama3); the configurations of Hugging Face transformers 5 (windows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError

THREE_AXES = "mrope_section"
"""Entry of a configuration with the pairs of a head that turn by time, by rows and by columns of pictures."""
DIVIDED = "divided"
"""Scaling by a number for each pair; no configuration of Hugging Face names it."""
_SCALINGS = ("default", "linear", "llama3", "yarn")
_WINDOW_BY_LAYER = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""`model_type` of those whose window counts only where `use_sliding_window` says so."""
_USUAL_WINDOW_LAYERS = 28
"""`max_window_layers` of a configuration that says nothing else."""


def axes_of_pairs(scaling: Mapping[str, Any], pairs: int) -> tuple[int, ...]:
    """Return the axis by which each pair of a head turns, as a configuration tells it; none: there is but one axis.

    Args:
        scaling: `rope_scaling` or `rope_parameters` of the configuration.
        pairs: Pairs of a head.

    Raises:
        ValueError, TypeError: If the parts do not make up a head.

    Source: transformers, `recomposition_frequencies` of Qwen2-VL (parts one after the other) and Qwen3-VL (in turns).
    """
    if THREE_AXES not in scaling:
        return ()
    parts = [int(part) for part in scaling[THREE_AXES]]
    if sum(parts) != pairs or len(parts) != 3 or min(parts) < 1:
        raise ValueError(f"{THREE_AXES} {parts} of {pairs} pairs")
    if scaling.get("mrope_interleaved"):
        return tuple(pair % 3 if pair < 3 * parts[pair % 3] else 0 for pair in range(pairs))
    return tuple(axis for axis, part in enumerate(parts) for _ in range(part))


def is_written(scaling: object) -> bool:
    """Whether the positions that a configuration asks for are known here."""
    if not isinstance(scaling, Mapping):
        return False
    is_odd = scaling.get("mscale") or scaling.get("mscale_all_dim") or scaling.get("truncate") is False
    return scaling.get("rope_type", scaling.get("type", "default")) in _SCALINGS and not is_odd


@dataclass(frozen=True, slots=True)
class Positions:
    """How positions become angles."""

    theta: float = 10000.0
    """Base of the frequencies."""
    scaling: str = "default"
    factor: float = 1.0
    """Factor by which a text may be longer than those that were learned first."""
    learned: int = 2048
    """Tokens of those."""
    low: float = 1.0
    """`llama3`: turns within `learned` below which a pair is slowed down wholly; `yarn`: the same (beta_slow)."""
    high: float = 4.0
    """Turns above which it is left as it is; `yarn`: beta_fast."""
    strength: float = 1.0
    """Factor of cosines and sines."""

    divisors: tuple[float, ...] = ()
    """`divided`: what the frequency of each pair is divided by, as a file of llama.cpp stores what `llama3` asks."""

    axes: tuple[int, ...] = ()
    """The axis of `image_shifts` by which each pair turns; empty: all turn by the place of a token in its text."""

    @classmethod
    def read(cls, values: Mapping[str, Any], context: int) -> Positions:
        """Return what a configuration asks; transformers 5 writes all of it into `rope_parameters`.

        Raises:
            ValueError, TypeError, KeyError: If a number is missing or none.
        """
        told = values.get("rope_parameters") or values.get("rope_scaling") or {}
        kind = str(told.get("rope_type", told.get("type", "default")))
        theta = float(told.get("rope_theta") or values.get("rope_theta", 10000.0))
        if kind == "default":
            return cls(theta)
        factor = float(told["factor"])
        if not factor >= 1:
            raise ValueError(f"factor {factor}")
        name = "original_max_position_embeddings"
        learned = int(told.get(name) or values.get(name) or context)
        if kind == "linear":
            return cls(theta, kind, factor)
        if kind == "llama3":
            low, high = float(told["low_freq_factor"]), float(told["high_freq_factor"])
            return cls(theta, kind, factor, learned, low, high)
        strength = told.get("attention_factor")
        strength = 0.1 * math.log(factor) + 1 if strength is None else float(strength)
        slow, fast = float(told.get("beta_slow") or 1), float(told.get("beta_fast") or 32)
        return cls(theta, kind, factor, learned, slow, fast, strength)

    def turns(self, head: int) -> NDArray[np.float64]:
        """Return (head / 2,) radians by which each pair is turned from one position to the next."""
        plain = self.theta ** (-np.arange(0, head, 2, dtype=np.float64) / head)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == DIVIDED:
            return plain / np.array(self.divisors, np.float64)
        if self.scaling == "llama3":
            within = self.learned * plain / (2 * np.pi)
            kept = np.clip((within - self.low) / (self.high - self.low), 0, 1)
            return (1 - kept) * plain / self.factor + kept * plain
        if self.scaling == "yarn":
            first, last = (self._pair_of(turns, head) for turns in (self.high, self.low))
            start, end = max(math.floor(first), 0), min(math.ceil(last), head - 1)
            slowed = np.clip((np.arange(head // 2) - start) / max(end - start, 0.001), 0, 1)
            return plain / self.factor * slowed + plain * (1 - slowed)
        return plain

    def tables(self, head: int, context: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the cosines and the sines, (context, head / 2) each."""
        angles = np.outer(np.arange(context, dtype=np.float64), self.turns(head))
        cos, sin = (np.asarray(self.strength * turn(angles), np.float32) for turn in (np.cos, np.sin))
        return cos, sin

    def tables_by_axis(
        self, head: int, context: int, axes: int
    ) -> tuple[list[tuple[NDArray[np.float32], NDArray[np.float32]]], list[int]]:
        """Return cosines and sines of the pairs of each axis, and where each pair stands then among all.

        Args:
            head: Numbers of a head.
            context: Positions.
            axes: How many there are.
        """
        cos, sin = self.tables(head, context)
        pairs = [[pair for pair, other in enumerate(self.axes) if other == axis] for axis in range(axes)]
        order = [pair for each in pairs for pair in each]
        return [(cos[:, each], sin[:, each]) for each in pairs], [order.index(pair) for pair in range(len(order))]

    def _pair_of(self, turns: float, head: int) -> float:
        """Return the pair that turns so often within the texts that were learned."""
        return head * math.log(self.learned / (turns * 2 * math.pi)) / (2 * math.log(self.theta))


def read_window(values: Mapping[str, Any], kind: str, layers: int, file: Path) -> int:
    """Return the tokens that a query sees; 0: all.

    Args:
        values: Of `config.json`.
        kind: Its `model_type`.
        layers: As many as the decoder has.
        file: Named in messages.

    Raises:
        UnsupportedError: If the queries of some layers see all tokens, and those of others do not.
    """
    window = int(values.get("sliding_window") or 0)
    if kind not in _WINDOW_BY_LAYER:
        return window
    if not window or not values.get("use_sliding_window"):  # a Qwen has a number there whether it is used or not
        return 0
    kinds = values.get("layer_types")
    if kinds:
        return window if "sliding_attention" in kinds else 0
    if kind == "qwen3_moe":  # in all of its layers
        return window
    least = int(values.get("max_window_layers", _USUAL_WINDOW_LAYERS))
    seen = {i >= least for i in range(layers)}
    if kind == "qwen2_moe":  # which has windows in every second layer before
        seen = {i < least and not i % 2 for i in range(layers)}
    if len(seen) > 1:
        raise UnsupportedError(
            f"{file}: max_window_layers = {least} is not written here: a window in some of {layers} layers",
            remedy="export it with onnxruntime-genai's builder, and name the folder that it writes",
        )
    return window if seen == {True} else 0
