"""What memory is free, and whether something fits into it: known before it is opened."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

import psutil

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import format_bytes


def free_bytes() -> int:
    """Return what the system can give without swapping."""
    return int(psutil.virtual_memory().available)


def require_bytes(needed: int, what: str, remedy: str) -> None:
    """Raise where so many bytes are not free.

    Raises:
        EdgeoptError: If so.
    """
    if needed > (free := free_bytes()):
        raise EdgeoptError(f"{what} of {format_bytes(needed)} do not fit: {format_bytes(free)} are free", remedy=remedy)


def give_back() -> None:
    """Return memory to the system that nothing needs any more.

    Graphs refer to themselves, so that Python frees what they hold when it looks for it; glibc keeps gigabytes that
    were freed in pieces of megabytes.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library keeps none, or has no such function
            ctypes.CDLL(None).malloc_trim(0)
