"""The child in which tokenizers with patterns of their own read texts: one that never ends does so in here alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from edgeopt.recipes.texts.tokenizer_file import encode_with
from edgeopt.system.processes.guarded import serve_guarded


def encode(question: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an `Encoding`."""
    return encode_with(_opened(question["path"], question["length"]), question)


@lru_cache(maxsize=1)
def _opened(path: str, length: int) -> Any:
    package = tokenizers.Tokenizer.from_str(Path(path).read_text("utf-8"))
    package.no_padding()
    if length:
        package.enable_truncation(length)
    else:
        package.no_truncation()
    return package


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve_guarded(sys.stdin.buffer, pipe, encode)
