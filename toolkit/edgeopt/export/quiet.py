"""Keep what torch and its parts say on their way from the terminal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgeopt.system.processes.quiet import quiet_thread

_QUIET = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch._dynamo", "transformers")


@contextmanager
def quiet_export(torch: Any) -> Iterator[None]:
    """Keep what an export says on its way, which is for those who write exporters, from the terminal."""
    before = {name: logging.getLogger(name).level for name in _QUIET}
    try:
        for name in before:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), quiet_thread(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
