"""A sound: what a model of speech, keywords or noises is asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel of sound, a whole recording or a chunk of a stream.

    Raises:
        ValueError: If the samples are not (n,) float32, finite, or the rate is not above zero.
    """

    samples: NDArray[np.float32]
    """(n,), within -1 and 1."""
    rate_hz: int
    """Samples a second."""

    def __post_init__(self) -> None:
        if not isinstance(self.samples, np.ndarray) or self.samples.dtype != np.float32 or self.samples.ndim != 1:
            found = getattr(self.samples, "dtype", type(self.samples).__name__), getattr(self.samples, "shape", "")
            raise ValueError(f"samples of a sound are (n,) float32 within -1 and 1, not {found[0]} {found[1]}".rstrip())
        if not np.isfinite(self.samples).all():
            raise ValueError("samples of a sound hold NaN or infinity")
        if self.rate_hz < 1:
            raise ValueError(f"the rate of a sound is {self.rate_hz} Hz, not above zero")

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate_hz
