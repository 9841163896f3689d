"""Huge pages on Linux: what every token reads, weights and cache, lies in pages of 2 MiB: few addresses are looked up.

Systems that give them to nobody unasked (`madvise`, the default of Debian, Ubuntu and Fedora) are asked for what was
allocated in between. Elsewhere nothing happens: macOS and Windows want rights for them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from edgeopt.system.machine.memory import trim

_FOLDER = Path("/sys/kernel/mm/transparent_hugepage")
_ADVISE, _COLLAPSE = 14, 25
"""`MADV_HUGEPAGE` for what is touched later; `MADV_COLLAPSE` (Linux 6.1) moves what is written, at once."""
MOVER = "huge-pages"
"""Name of the thread that moves them: 200 MB take up to half a second, for which a first answer need not wait."""
Range = tuple[int, int]


@contextmanager
def huge_pages() -> Iterator[None]:
    """Ask for huge pages for what the process allocates inside; a thread moves it. No number is another for it."""
    size = _size_bytes()
    before = _anonymous() if size else []
    yield
    if size:
        trim()  # what was freed would be moved into huge pages, and be held again
        found = [(-(-begin // size) * size, end // size * size) for begin, end in without(_anonymous(), before)]
        if wide := [(begin, end) for begin, end in found if begin < end]:
            _advise(wide, _ADVISE)  # at once: a moment later other memory may lie there
            Thread(target=_advise, args=(wide, _COLLAPSE), name=MOVER, daemon=True).start()


def huge_zeros(size_bytes: int) -> NDArray[np.uint8]:
    """Return zeros that lie in huge pages from the first number that is written; elsewhere, zeros."""
    size = _size_bytes()
    if sys.platform.startswith("linux") and 0 < size <= size_bytes:
        memory = mmap.mmap(-1, size_bytes + size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them: what is written lies in small pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)  # it keeps the mapping
        begin = -whole.ctypes.data % size
        return whole[begin : begin + size_bytes]
    return np.zeros(size_bytes, np.uint8)


def without(ranges: list[Range], others: list[Range]) -> list[Range]:
    """Return what ranges cover and others do not.

    Args:
        ranges: First byte and the byte behind the last, rising.
        others: In the same form.
    """
    result = list[Range]()
    for first, end in ranges:
        begin = first
        for taken, free in others:
            if taken < end and free > begin:
                result.append((begin, taken))
                begin = free
        result.append((begin, end))
    return [(begin, end) for begin, end in result if begin < end]


def _size_bytes() -> int:
    """Return the size of a huge page; 0 where the machine has none, or its owner forbids them."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        if "[never]" in (_FOLDER / "enabled").read_text("ascii"):
            return 0
        return int((_FOLDER / "hpage_pmd_size").read_text("ascii"))
    except (OSError, ValueError):
        return 0


def _anonymous() -> list[Range]:
    """Return the memory of this process that it may write and that is no file's."""
    anonymous = list[Range]()
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        where, rights, _, _, file, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and file == "0" and (not name or name[0] == "[heap]"):
            begin, end = where.split("-")
            anonymous.append((int(begin, 16), int(end, 16)))
    return anonymous


def _advise(ranges: list[Range], advice: int) -> None:
    """Ask for them. What was freed meanwhile, what the kernel does not know or has no memory for, it refuses."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for begin, end in ranges:
        advise(begin, end - begin, advice)
