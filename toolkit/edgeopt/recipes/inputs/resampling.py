"""Sounds at another rate, by soxr (extra `audio`): the library behind librosa and SoX, with NumPy its only need."""

from __future__ import annotations

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.sound import Sound


def resampled(sound: Sound, rate_hz: int) -> Sound:
    """Return a sound at a rate; itself where it has that.

    Raises:
        UnsupportedError: If the rates differ and soxr is not installed.
    """
    if sound.rate_hz == rate_hz:
        return sound
    try:
        import soxr
    except ImportError as error:
        raise UnsupportedError(
            f"the sound has {sound.rate_hz} Hz, the recipe takes {rate_hz} Hz, and soxr is not installed",
            remedy=f"pip install 'edgeopt[audio]', or convert it: ffmpeg -i IN.wav -ar {rate_hz} OUT.wav",
        ) from error
    result = soxr.resample(sound.samples, sound.rate_hz, rate_hz, quality="HQ")
    return Sound(np.ascontiguousarray(result, np.float32), rate_hz)
