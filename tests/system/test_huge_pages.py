"""What is allocated inside lies in huge pages, what is asked for zeros too, and nothing else is asked for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

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
    # A process of its own: what an earlier test asked for may by now be other memory at the same address.
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
