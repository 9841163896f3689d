"""Memory that is allocated inside lies in huge pages, zeros too, and nothing else is asked for.

What was freed inside is not held again, and of files that are mapped inside only what was written to stays.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from edgeopt.system.machine import heap
from edgeopt.system.machine import huge_pages as pages
from edgeopt.system.machine.huge_pages import _size_bytes, huge_zeros, without

LARGE = 1 << 26


@pytest.mark.parametrize(
    ("ranges", "others", "left"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(2, 4), (6, 7)], [(0, 2), (4, 6), (7, 10)]),
        ([(5, 10), (20, 30)], [(0, 6), (8, 25)], [(6, 8), (25, 30)]),
        ([(5, 10)], [(0, 5), (10, 12)], [(5, 10)]),
    ],
)
def test_what_was_there_before_is_left_out(ranges, others, left):
    assert without(ranges, others) == left


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, (1 << 21) - 1, 1 << 21, (5 << 20) + 3])
def test_zeros_are_as_many_as_asked_for_and_may_be_written(size_bytes):
    zeros, others = huge_zeros(size_bytes), huge_zeros(size_bytes)
    assert zeros.shape == (size_bytes,)
    assert not zeros.any()
    zeros[:] = 255
    assert not others.any()
    assert np.count_nonzero(zeros) == size_bytes


IN_A_PROCESS = f"""
import ctypes, threading
from pathlib import Path
from edgeopt.system.machine.huge_pages import MOVER, huge_pages, huge_zeros

def advised(memory):
    middle = ctypes.addressof(ctypes.c_char.from_buffer(memory, len(memory) // 2))
    inside = False
    for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
        where, *rest = line.split()
        if "-" in where and rest[0][0] in "r-":
            begin, end = (int(one, 16) for one in where.split("-"))
            inside = begin <= middle < end
        elif inside and where == "VmFlags:":
            return "hg" in rest
    raise AssertionError("the memory is not mapped")

before = bytearray({LARGE})
before[:] = bytes([7]) * {LARGE}
with huge_pages():
    inside = bytearray(bytes([5]) * {LARGE})
after = bytearray({LARGE})
zeros = huge_zeros({LARGE})
for one in threading.enumerate():
    if one.name == MOVER:
        one.join()
assert advised(inside), "inside"
assert not advised(before), "before"
assert not advised(after), "after"
assert advised(zeros), "zeros"
assert inside.count(5) == {LARGE}, "moved, not changed"
"""


@pytest.mark.skipif(not _size_bytes(), reason="no huge pages here, or forbidden by the machine's owner")
def test_only_what_is_allocated_inside_is_asked_for():
    _run(IN_A_PROCESS)  # a process of its own: what an earlier test asked for may now be other memory at the same place


READY = """
import ctypes, re
from pathlib import Path
from edgeopt.system.machine import huge_pages as pages

def is_asked_for(memory):
    place, inside = ctypes.addressof(ctypes.c_char.from_buffer(memory)), False
    for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
        if bounds := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= place < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()

pages._free_huge_bytes = lambda size: 1 << 40
with pages.huge_pages(64 << 20):
    blocks = [bytearray(bytes([7]) * (1 << 20)) for _ in range(48)]
    assert is_asked_for(blocks[24])
assert all(block.count(7) == 1 << 20 for block in blocks)
"""


@pytest.mark.skipif(
    not _size_bytes() or platform.libc_ver()[0] != "glibc", reason="no huge pages here, or no heap that leaves room"
)
def test_what_is_expected_is_asked_for_before_it_is_written():
    # How many the system then gives is its own affair: others may have taken what was free a moment ago.
    _run(READY)


GIVEN_BACK = """
import ctypes, sys
from pathlib import Path
from edgeopt.system.machine import heap, huge_pages as pages

MIB = 1 << 20
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)

def held_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

def left_of(count_mib, keeper_mib=0):
    # memory that is held after a block was written and freed, below another one where that is asked for
    before = held_mib()
    block = libc.malloc(count_mib * MIB)
    keeper = libc.malloc(keeper_mib * MIB) if keeper_mib else 0
    ctypes.memset(block, 7, count_mib * MIB)
    libc.free(block)
    left = held_mib() - before
    libc.free(keeper)
    return left

def limit():
    probes = []
    size = heap._limit(probes)
    # not freed: glibc's own rule would raise it
    return size

pages._free_huge_bytes = lambda size: 1 << 40
own_kib = int(sys.argv[1])
if own_kib:
    libc.mallopt(-3, own_kib << 10)
before = limit()
for _ in range(2):  # the second one finds what the first has left
    with pages.huge_pages(64 * MIB):
        raised = limit()
        blocks = [bytearray(bytes([7]) * MIB) for _ in range(48)]
    assert (raised > 31 * MIB) == (own_kib == 0), raised
    del blocks
after, least = limit(), before if own_kib else max(before, 8 * MIB)
# a block below the limit's double may be cut from what the heap keeps free at its end, whatever the limit is
most = least if own_kib else 2 * least
assert least - (1 << 16) <= after <= most + (1 << 16), (before, after)
left = [left_of(24), left_of(30, 20), left_of(12, 9), left_of(24)]
assert max(left) < 8, left  # a huge page or two at the heap's end may stay, a block of 24 MiB may not
"""


@pytest.mark.parametrize("own_kib", [0, 1024], ids=["glibc's rule", "the program's limit"])
@pytest.mark.skipif(
    not _size_bytes() or platform.libc_ver()[0] != "glibc", reason="no huge pages here, or no heap that leaves room"
)
def test_a_large_block_that_is_freed_afterwards_is_given_back(own_kib):
    # In a process of its own: what was allocated and freed in this one before decides glibc's limit.
    _run(GIVEN_BACK, str(own_kib))


REUSED = (
    READY.partition("pages._free_huge_bytes")[0]
    + """
import threading
ctypes.CDLL(None).mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: blocks are cut from the heap
others = [bytearray(bytes([3]) * (1 << 20)) for _ in range(49)]
kept = others.pop()  # behind them, so that the heap does not shrink
others.clear()
with pages.huge_pages():
    blocks = [bytearray(bytes([7]) * (1 << 20)) for _ in range(40)]
for each in threading.enumerate():
    if each.name == pages.MOVER:
        each.join()
assert is_asked_for(blocks[20]), "memory of another model was written again"
assert not is_asked_for(kept)
assert all(block.count(7) == 1 << 20 for block in blocks) and kept.count(3) == 1 << 20
"""
)


@pytest.mark.skipif(
    not _size_bytes() or platform.libc_ver()[0] != "glibc", reason="no huge pages here, or no heap that is used again"
)
def test_what_is_written_into_memory_that_was_freed_before_is_asked_for():
    _run(REUSED)


AFTERWARDS = """
import gc, mmap, threading, sys
from pathlib import Path
from edgeopt.system.machine.huge_pages import MOVER, huge_pages

def held_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

def file_kib(name):
    inside, result = False, []
    for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(name)
        elif inside and line.startswith("Rss:"):
            result.append(int(line.split()[1]))
    return result

folder, size = Path(sys.argv[1]), 4 << 20
files = [folder / "read.bin", folder / "written.bin"]
for file in files:
    file.write_bytes(bytes([9]) * size)
before = held_mib()
with huge_pages(64 << 20, folder):
    blocks = [bytearray(bytes([7]) * (1 << 20)) for _ in range(48)]
    blocks = blocks[::8]
    gc.collect()
    maps = []
    for file in files:
        with file.open("r+b") as opened:
            maps.append(mmap.mmap(opened.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    sums = [sum(each[::4096]) for each in maps]
    maps[1][5] = 1
for each in threading.enumerate():
    if each.name == MOVER:
        each.join()
assert file_kib("read.bin") == [0], file_kib("read.bin")
assert file_kib("written.bin")[0] > 0, "what was written is lost"
assert maps[1][5] == 1 and maps[1][6] == 9 and [sum(each[::4096]) for each in maps] == sums
assert all(block.count(7) == 1 << 20 for block in blocks)
assert held_mib() - before < 6 + 2 * 4 + 8, (before, held_mib())
"""


@pytest.mark.skipif(not _size_bytes(), reason="no huge pages here, or forbidden by the machine's owner")
def test_what_was_freed_or_only_read_inside_is_not_held(tmp_path):
    _run(AFTERWARDS, str(tmp_path))


def test_where_they_are_forbidden_nothing_is_asked_for(monkeypatch):
    monkeypatch.setattr(pages, "_size_bytes", lambda: 0)
    monkeypatch.setattr(pages, "_advise", lambda ranges, advice: pytest.fail(f"{advice} of {ranges}"))
    with pages.huge_pages(LARGE):
        assert not np.zeros(LARGE, np.uint8).any()


def test_blocks_of_another_malloc_are_not_read(monkeypatch):
    monkeypatch.setattr(heap, "_is_glibcs", lambda: False)
    monkeypatch.setattr(heap, "_raised", lambda: pytest.fail("it was tried"))
    monkeypatch.setattr(heap, "_allocated", lambda size: pytest.fail(f"{size} bytes were allocated"))
    with heap.room_in_heap(LARGE):
        pass


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_where_nothing_else_is_loaded_malloc_is_glibcs_own(monkeypatch):
    assert heap._is_glibcs()
    places = iter((1, 2))
    monkeypatch.setattr(heap, "_place", lambda _: next(places))
    assert not heap._is_glibcs()


def _run(code: str, *arguments: str) -> None:
    """Run code in a process of its own, with glibc's own rules: any variable of them ends the one this is about."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False, env=own
    )
    assert not ended.returncode, ended.stderr
