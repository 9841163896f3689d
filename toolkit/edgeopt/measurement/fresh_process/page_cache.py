"""Whether a file lies in the system's page cache, and how to bring it in or out without root."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

_CHUNK = 1 << 20


class PageCache(StrEnum):
    """The state of the page cache that a run wants for the files it reads."""

    WARM = "warm"
    COLD = "cold"


def why_cannot_drop() -> str | None:
    """Return None if a file can be dropped from the cache here, otherwise why not."""
    if hasattr(os, "posix_fadvise"):
        return None
    return "this system drops a file from its cache only for an administrator (no posix_fadvise)"


def prepare(paths: Iterable[Path], wanted: PageCache) -> float | None:
    """Bring files into the cache or ask the system to drop them; return the resident share afterwards.

    Only these files: interpreter and libraries stay as they are. The system may keep pages that others use,
    so believe the share and not the request.

    Args:
        paths: One or more files.
        wanted: Where they should be.

    Returns:
        0..1, or None where the system does not tell.

    Raises:
        OSError: If a file cannot be read.
    """
    files = list(paths)
    for path in files:
        (_read_through if wanted is PageCache.WARM else _drop)(path)
    shares = [resident_ratio(path) for path in files]
    known = [(share, path.stat().st_size) for share, path in zip(shares, files, strict=True) if share is not None]
    total = sum(size for _, size in known)
    if len(known) < len(files) or not total:
        return None
    return sum(share * size for share, size in known) / total


def describe(wanted: PageCache, resident: float | None) -> str:
    """Return what was achieved, in words, for the label of a figure."""
    if resident is None:
        return f"{wanted} page cache requested, not verified"
    good = resident == (1.0 if wanted is PageCache.WARM else 0.0)
    return f"{wanted} page cache, {'verified' if good else f'NOT achieved: {resident:.0%} of the model resident'}"


def resident_ratio(path: Path) -> float | None:
    """Return the share of a file's pages that lie in memory, or None where the system does not tell.

    Source: mincore(2); since Linux 5.2 it tells the truth for files that the caller owns or may write.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        if not os.access(path, os.W_OK) and path.stat().st_uid != os.getuid():
            return None
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            return _resident(mincore, view)
    except (OSError, ValueError, AttributeError, TypeError):  # Windows has neither mincore nor CDLL(None)
        return None


def _resident(mincore: Callable[..., int], view: mmap.mmap) -> float | None:
    pages = (len(view) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    states = (ctypes.c_ubyte * pages)()
    first = ctypes.c_char.from_buffer(view)  # a private writable view, else Python gives no address
    try:
        failed = mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(view)), states)
    finally:
        del first  # a view that is still exported cannot be closed
    return None if failed else sum(state & 1 for state in states) / pages


def _read_through(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(_CHUNK):
            pass


def _drop(path: Path) -> None:
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)  # a dirty page is never dropped
        advise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
