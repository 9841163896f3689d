"""Whether ONNX Runtime computes attention of prompts in tiles (FlashAttention), or each head's scores in one piece.

Tiles take less memory, and are faster with long contexts and wide heads; pieces are up to three times as fast with
short ones. ONNX Runtime 1.32 has tiles unless a variable of the environment forbids them, which it reads when a session
is made. A single token never takes tiles.

Source: com.microsoft.GroupQueryAttention on the processor; github.com/microsoft/onnxruntime/pull/28962.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

VARIABLE = "ORT_GQA_DISABLE_FLASH_ATTENTION"
_one_at_a_time = Lock()


@contextmanager
def flash_attention(wanted: bool) -> Iterator[None]:
    """Make sessions inside with tiles, or without. What the user wrote into the variable stands.

    Args:
        wanted: Whether with tiles.
    """
    with _one_at_a_time:
        if wanted or VARIABLE in os.environ:
            yield
            return
        os.environ[VARIABLE] = "1"
        try:
            yield
        finally:
            del os.environ[VARIABLE]
