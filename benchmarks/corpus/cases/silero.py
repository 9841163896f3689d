"""Whether somebody speaks: Silero's detector in six forms of its own wheel, and in two wheels that carry it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from case import DRAFT, Case
from feeds import in_order, stream
from likeness import decided

SILERO = stream("input", 512, 64, {"stateN": ("state", (2, 1, 128))}, sr=np.array(16000, np.int64))
SILERO_BARE = stream("input", 512, 64, {"stateN": ("state", (2, 1, 128))})
SILERO_SPLIT = stream("input", 512, 64, {"hn": ("h", (1, 1, 128)), "cn": ("c", (1, 1, 128))})
SILERO_4 = stream("input", 512, 0, {"hn": ("h", (2, 1, 64)), "cn": ("c", (2, 1, 64))}, sr=np.array(16000, np.int64))
_STATE, _SPLIT = {"stateN": "state"}, {"hn": "h", "cn": "c"}


def cases() -> Iterator[Case]:
    """Yield detectors with states, each by the recipe that edgeopt drafts."""
    for name, feed, states in (
        ("silero_vad", SILERO, _STATE),
        ("silero_vad_16k_op15", SILERO, _STATE),
        ("silero_vad_16k_sequence", SILERO_SPLIT, _SPLIT),
        ("silero_vad_half", SILERO_BARE, _STATE),
        ("silero_vad_op18_ifless", SILERO, _STATE),
        ("silero_vad_openvino_16k", SILERO_BARE, _STATE),
    ):
        yield Case(name, "silero-vad", f"{name}.onnx", feed, decided(), states, DRAFT, heard=in_order(512))
    yield Case(
        "silero_vad v4",
        "openwakeword==0.4.0",
        "resources/models/silero_vad.onnx",
        SILERO_4,
        decided(),
        _SPLIT,
        DRAFT,
        heard=in_order(512),
    )
    yield Case(
        "silero_vad_v6",
        "faster-whisper",
        "silero_vad_v6.onnx",
        SILERO_SPLIT,
        decided(),
        _SPLIT,
        DRAFT,
        heard=in_order(512),
    )
