"""Huge pages on Linux: what every token reads, weights and cache, lies in pages of 2 MiB: few addresses are looked up.

Systems that give them to nobody unasked (`madvise`, the default of Debian, Ubuntu and Fedora) are asked for what was
written in between, in new memory or in what another model has freed. Elsewhere nothing happens: macOS and Windows want
rights for them.

Memory that is reserved and asked for before it is written costs an eighth of the time that small pages cost, and need
not be moved. What was freed in between is not held again: only pages of 2 MiB that are nearly full are asked for.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from time import sleep

import numpy as np
from numpy.typing import NDArray

from edgeopt.system.machine.heap import room_in_heap
from edgeopt.system.machine.memory import trim

_FOLDER = Path("/sys/kernel/mm/transparent_hugepage")
_ADVISE, _REFUSE, _COLLAPSE, _LET_GO = 14, 15, 25, 4
"""`MADV_HUGEPAGE` and `MADV_NOHUGEPAGE` for what is touched later; `MADV_COLLAPSE` (Linux 6.1) moves what is written,
at once; `MADV_DONTNEED`: pages of a file are no longer this process's."""
_HELD, _OF_FILE = np.uint64(62), np.uint64(61)
"""First bit of a page in `pagemap` that says that it is held, in memory or swapped out; and that it is a file's."""
_DELETED = " (deleted)"
"""Behind the name of a mapped file that was replaced or removed since."""
_PIECE_BYTES = 1 << 30
"""Memory that is looked at together: a process may have reserved much more than it holds."""
_FULL = 7 / 8
"""Share of a huge page that is held already where one is asked for: the rest is taken in vain."""
MOVER = "huge-pages"
"""Name of the thread that moves them: 200 MB take up to half a second, for which a first answer need not wait."""
_REST_S = 0.5
"""It begins that late, behind a first token: who asks once and ends has not paid for what only many tokens repay."""
Range = tuple[int, int]


@contextmanager
def huge_pages(size_bytes: int = 0, folder: Path | None = None) -> Iterator[None]:
    """Ask for huge pages for what the process writes into memory that it takes inside. No number is another for it.

    Args:
        size_bytes: That will be allocated, about: room for it lies in huge pages before it is written, where so many
            are free; a thread moves what lies elsewhere. 0: not known.
        folder: With files that are mapped inside, and that nobody writes into. What was read of them is let go, a
            little later: what a text looks up is read again. None: nothing is.
    """
    size = _size_bytes()
    if size:
        trim()  # what a closed model has freed is not held: the next one may be written there
    before = _written() if size else []
    full_before = _filled(_whole(before, size), size) if size else []
    has_room = size > 0 and 0 < size_bytes <= _free_huge_bytes(size)
    ready = list[Range]()
    with room_in_heap(size_bytes) if has_room else nullcontext():
        if has_room:
            ready = _whole(without(_written(), before), size)
            _advise(ready, _ADVISE)
        yield
    if size:
        trim()  # what was freed would be moved into huge pages, and be held again
        full = without(_filled(_whole(_written(), size), size), full_before)
        _advise(without(ready, full), _REFUSE)  # what comes there later need not hold 2 MiB
        _advise(full, _ADVISE)  # at once: a moment later other memory may lie there
        files = _mapped_in(folder) if folder else frozenset()
        if full or (files and _written(_names(files))):
            Thread(target=_move, args=(full, files), name=MOVER, daemon=True).start()


def let_files_go(files: Iterable[Path]) -> None:
    """Drop from memory what was read of mapped files: who needs it reads it again. Linux alone.

    Args:
        files: Nobody writes into their mappings: what is written while this looks would be lost.
    """
    if not sys.platform.startswith("linux"):
        return
    names = _names(files)
    # A model may have been closed meanwhile, and other memory may lie there: each mapping is looked at just before.
    for each in _written(names) if names else []:
        if _is_as_read(*each):
            _advise([each], _LET_GO)


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


def _free_huge_bytes(size: int) -> int:
    """Return how much memory is free in pieces of a huge page; else the system makes them first, which takes long."""
    result = 0
    try:
        for line in Path("/proc/buddyinfo").read_text("ascii").splitlines():
            pieces = ((mmap.PAGESIZE << order, int(count)) for order, count in enumerate(line.split()[4:]))
            result += sum(each * count for each, count in pieces if each >= size)
    except (OSError, ValueError):  # a container may not show it
        return 0
    return result


def _mapped_in(folder: Path) -> frozenset[Path]:
    """Return the files of a folder that are mapped, those of its links too: it may hold thousands of others."""
    try:
        place = str(folder.resolve())
        with os.scandir(folder) as entries:
            links = {os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    names = {line.split(maxsplit=5)[5].removesuffix(_DELETED) for line in lines if "/" in line}
    return frozenset(Path(name) for name in names if os.path.dirname(name) == place or name in links)


def _names(files: Iterable[Path]) -> frozenset[str]:
    """Return the names of files as the system lists them: of a link, that of what it leads to."""
    return frozenset(str(file.resolve()) for file in files)


def _written(files: Set[str] = frozenset()) -> list[Range]:
    """Return the memory that this process alone may write: that of no file; or that of the files of these names."""
    result = list[Range]()
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        where, rights, _, _, file, *name = line.split(maxsplit=5)
        is_own = file == "0" and (not name or name[0] == "[heap]")
        of_file = bool(name) and name[0].removesuffix(_DELETED) in files and rights in ("rw-p", "r--s")
        if of_file or (is_own and not files and rights == "rw-p"):
            begin, end = where.split("-")
            result.append((int(begin, 16), int(end, 16)))
    return result


def _whole(ranges: list[Range], size: int) -> list[Range]:
    """Return the huge pages that lie in ranges as a whole."""
    whole = [(-(-begin // size) * size, end // size * size) for begin, end in ranges]
    return [(begin, end) for begin, end in whole if begin < end]


def _filled(ranges: list[Range], size: int) -> list[Range]:
    """Return which huge pages of ranges are nearly full; all of them where the system does not tell."""
    result = list[Range]()
    pieces = [
        (place, min(place + _PIECE_BYTES, end)) for begin, end in ranges for place in range(begin, end, _PIECE_BYTES)
    ]
    for begin, end in pieces:
        words = _page_table(begin, end)
        if words is None:
            return ranges
        held = np.count_nonzero((words >> _HELD).reshape(-1, size // mmap.PAGESIZE), axis=1)
        full = held * mmap.PAGESIZE >= _FULL * size
        result += [
            (place, place + size) for place, is_full in zip(range(begin, end, size), full, strict=True) if is_full
        ]
    return _joined(result)


def _page_table(begin: int, end: int) -> NDArray[np.uint64] | None:
    """Return what the system says of each page of a range; None: it says nothing.

    Source: https://docs.kernel.org/admin-guide/mm/pagemap.html
    """
    with suppress(OSError), Path("/proc/self/pagemap").open("rb") as table:
        table.seek(begin // mmap.PAGESIZE * 8)
        words = np.frombuffer(table.read((end - begin) // mmap.PAGESIZE * 8), np.uint64)
        return words if len(words) == (end - begin) // mmap.PAGESIZE else None
    return None


def _is_as_read(begin: int, end: int) -> bool:
    """Return whether a mapping holds pages of its file and no others: what was written there would be lost."""
    words = _page_table(begin, end)
    if words is None:
        return False
    held = words[(words >> _HELD) != 0]
    return bool(held.size) and bool(((held >> _OF_FILE) & np.uint64(1) == 1).all())


def _joined(ranges: list[Range]) -> list[Range]:
    """Return rising ranges with those as one that touch."""
    result = list[Range]()
    for begin, end in ranges:
        begin = result.pop()[0] if result and result[-1][1] == begin else begin
        result.append((begin, end))
    return result


def _move(ranges: list[Range], files: Set[Path]) -> None:
    """Fill huge pages, and let go what was read of files."""
    sleep(_REST_S)
    _advise(ranges, _COLLAPSE)
    let_files_go(files)


def _advise(ranges: list[Range], advice: int) -> None:
    """Ask for them. What was freed meanwhile, what the kernel does not know or has no memory for, it refuses."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for begin, end in ranges:
        advise(begin, end - begin, advice)
