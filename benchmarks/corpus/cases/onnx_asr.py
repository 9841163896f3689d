"""Features and resampling as graphs: onnx-asr."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from case import Case
from feeds import played, sound, spoken
from likeness import close

_ASR = "onnx-asr"
_SECOND, _LONG = np.array([16000], np.int64), np.array([48000], np.int64)


def cases() -> Iterator[Case]:
    """Yield what makes features of one second."""
    heard = spoken(16000)
    for name in ("kaldi", "nemo80_conv", "whisper80"):
        feed = sound("waveforms", heard, waveforms_lens=_SECOND)
        yield Case(name, _ASR, f"data/{name}.onnx", feed, close(), recipe="onnx_asr", heard=heard)
    fast = played(1, 48000, 48000)
    feed = sound("waveforms", fast, waveforms_lens=_LONG)
    yield Case("resample_48_16", _ASR, "data/resample_48_16.onnx", feed, close(), recipe="onnx_asr_48k", heard=fast)
