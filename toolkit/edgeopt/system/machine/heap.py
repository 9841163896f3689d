"""The heap of glibc: room in it for large blocks while something is loaded, and its limit set back afterwards.

A block of glibc above its limit (`M_MMAP_THRESHOLD`, 128 KiB at first) is a mapping of its own, which is given back
when it is freed; smaller ones are cut from the heap. Each mapped block that is freed raises the limit to its own size,
up to 32 MiB, and nothing lowers it again but `mallopt`, which ends that rule
(https://man7.org/linux/man-pages/man3/mallopt.3.html).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`."""
_MAPPED = 2
"""Bit in the size before a block that says that it is a mapping of its own."""
_BLOCK = 31 << 20
"""Largest block that glibc cuts from its heap, nearly: above 32 MiB each is a mapping of its own."""
_SMALL, _STEP = 127 << 10, 64 << 10
"""Size that is cut from every heap whose limit nobody set lower; precision to which the limit is found."""
_LEAST = 8 << 20
"""Limit that is left at least, as no rule raises it from then on: frames of 1080p and rows of logits are cut from the
heap, which keeps twice as much at most, and larger blocks are given back."""


class _Limit:
    """Sizes from which blocks are mappings of their own, while rooms are made by any number of threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.rooms = 0
        self.before = 0
        """Bytes of the limit before the first room."""
        self.left = 0
        """Bytes of the limit behind the last room; 0: there was no room."""


_LIMIT = _Limit()


@contextmanager
def room_in_heap(size_bytes: int) -> Iterator[None]:
    """Leave a free piece in the heap, not touched, out of which blocks below 31 MiB are cut inside.

    Behind it blocks above 8 MiB, or above the limit of before where that was larger, are mappings of their own again.
    Where another C library or another `malloc` is used, or the program has a limit of its own, nothing happens.
    """
    if not _is_glibcs() or not _raised():
        yield
        return
    above = 0
    try:
        blocks = [_allocated(_BLOCK) for _ in range(-(-size_bytes // _BLOCK) + 1)]
        for block in blocks[:-1]:
            _free(block)
        above = blocks[-1]  # it keeps the piece below it from being given back
        yield
    finally:
        _free(above)
        _lower()


def _is_glibcs() -> bool:
    """Whether blocks are glibc's own: in front of those of another `malloc`, such as jemalloc's, no size is written."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return False
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    return _place(process.malloc) == _place(library.malloc)


def _place(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _raised() -> bool:
    """Let blocks up to 31 MiB be cut from the heap; return whether they are."""
    with _LIMIT.lock:
        if not _LIMIT.rooms:
            probes = list[int]()
            limit = _limit(probes)
            for probe in probes:
                _free(probe)
            if limit and limit <= _BLOCK:
                _free(_allocated(_BLOCK + _BLOCK // 64))  # glibc's own rule: the limit rises to it
                if _is_mapped_at(_BLOCK):
                    if not _LIMIT.left or abs(limit - _LIMIT.left) > _STEP:
                        return False  # the program set a limit, and its rule for what is freed, itself
                    _set(_BLOCK + (1 << 20))
            if not limit:
                return False
            _LIMIT.before = limit
        _LIMIT.rooms += 1
        return True


def _lower() -> None:
    """Set the limit back behind the last room."""
    with _LIMIT.lock:
        _LIMIT.rooms -= 1
        if not _LIMIT.rooms and _LIMIT.before <= _BLOCK:
            _LIMIT.left = max(_LIMIT.before, _LEAST)
            _set(_LIMIT.left)


def _limit(probes: list[int]) -> int:
    """Return from about which size on a block is a mapping of its own; above 31 MiB: none that is tried; 0: small ones.

    Args:
        probes: Takes the mapped blocks, which must not be freed before: that would raise the limit.
    """

    def is_mapped(size_bytes: int) -> bool:
        block = _allocated(size_bytes)
        mapped = _is_mapped(block)
        if mapped:
            probes.append(block)
        else:
            _free(block)
        return mapped

    if is_mapped(_SMALL):
        return 0
    low, high = _SMALL, _BLOCK
    if not is_mapped(high):
        return high + 1
    while high - low > _STEP:
        middle = (low + high) // 2
        low, high = (low, middle) if is_mapped(middle) else (middle, high)
    return high


def _is_mapped_at(size_bytes: int) -> bool:
    block = _allocated(size_bytes)
    mapped = _is_mapped(block)
    _free(block)
    return mapped


def _is_mapped(block: int) -> bool:
    size = ctypes.sizeof(ctypes.c_size_t)
    return bool(block) and bool(ctypes.c_size_t.from_address(block - size).value & _MAPPED)


def _set(limit_bytes: int) -> None:
    """Set the limit, and what the heap keeps at its end to twice that, as glibc's rule does."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, limit_bytes)
    mallopt(_TRIM_THRESHOLD, 2 * limit_bytes)


def _allocated(size_bytes: int) -> int:
    allocate = ctypes.CDLL(None).malloc
    allocate.argtypes, allocate.restype = (ctypes.c_size_t,), ctypes.c_void_p
    return allocate(size_bytes) or 0


def _free(block: int) -> None:
    if block:
        free = ctypes.CDLL(None).free
        free.argtypes, free.restype = (ctypes.c_void_p,), None
        free(block)
