"""Notes and pitch: basic-pitch and swift-f0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from case import Case
from feeds import played, sound
from likeness import close


def cases() -> Iterator[Case]:
    """Yield both."""
    chords = played(2, 22050, 43844)
    feed = sound("serving_default_input_2:0", chords, (1, -1, 1))
    yield Case("nmp", "basic-pitch", "nmp.onnx", feed, close(15), recipe="basic_pitch", heard=chords)
    low = played(1.1, 16000, 16000)
    feed = sound("audio", low, fmin=np.array(46.875, np.float32), fmax=np.array(2093.75, np.float32))
    yield Case("swift_f0", "swift-f0", "swift_f0/model.onnx", feed, close(15), recipe="swift_f0", heard=low)
