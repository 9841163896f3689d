"""The cost of a stream, and its memory.

    python benchmarks/stream.py [MODEL] [RTSP_ADDRESS]

1. Milliseconds that a stream adds to a frame over `Runtime.predict`, in turns, with the 95 % interval.
2. The time between two answers with stages in turns and overlapped, as a ratio with its interval; on two cores and more
   a preprocess that takes a share of the frame is hidden, on one it is not.
3. Memory after 100,000 frames on the null executor, and while nobody reads a stream of 1,000 frames a second.
4. With an address: a minute of it that nobody reads, then the age of the next answer.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray
from runtime import interval, null_bundle, real_bundle

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream import Stream

ROUNDS, BLOCK = 40, 25


def memory_mib() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def per_frame_ms(runtime: Runtime, frames: list[Frame], *, pipelined: bool) -> float:
    """Return the time between two answers of a block."""
    with Stream(runtime, repeat(frames[0], BLOCK), fps=None, queue="fifo", degrade=None, pipelined=pipelined) as stream:
        next(stream)
        began = time.perf_counter()
        count = sum(1 for _ in stream)
        return (time.perf_counter() - began) * 1e3 / count


def alone_ms(runtime: Runtime, frames: list[Frame]) -> float:
    began = time.perf_counter()
    for _ in range(BLOCK - 1):
        runtime.predict(frames[0].copy())
    return (time.perf_counter() - began) * 1e3 / (BLOCK - 1)


def compare(runtime: Runtime, frames: list[Frame]) -> tuple[NDArray[np.float64], ...]:
    """Return (rounds,) milliseconds a frame: predict, stages in turns, stages overlapped."""
    rows = []
    for number in range(ROUNDS):
        ways = [
            lambda: alone_ms(runtime, frames),
            lambda: per_frame_ms(runtime, frames, pipelined=False),
            lambda: per_frame_ms(runtime, frames, pipelined=True),
        ]
        order = np.roll(np.arange(3), number)
        times = {int(way): ways[way]() for way in order}
        rows.append([times[way] for way in range(3)])
    found = np.array(rows)
    return found[:, 0], found[:, 1], found[:, 2]


def many_frames(folder: Path) -> str:
    frame = {"x": np.zeros((1, 4), np.float32)}
    with Runtime.load(null_bundle(folder)) as runtime:
        wishes = {"queue": "fifo", "degrade": None, "pipelined": False, "most_waiting_mib": 1}
        stream = Stream(runtime, repeat(frame, 101_000), fps=None, **wishes)
        for _ in range(1000):
            next(stream)
        before = memory_mib()
        began = time.perf_counter()
        count = sum(1 for _ in stream)
        took_us = (time.perf_counter() - began) * 1e6 / count
        grown = memory_mib() - before
        began = time.perf_counter()
        for _ in range(10_000):
            runtime.predict(frame)
        alone_us = (time.perf_counter() - began) * 1e2
    left = [one.name for one in threading.enumerate() if one.name.startswith("edgeopt")]
    cost = f"{took_us:.0f} us a frame, {alone_us:.0f} us by predict"
    return f"{grown:+.2f} MiB over {count} frames, {len(left)} threads left, {cost}"


def nobody_reads(runtime: Runtime) -> str:
    frames: Iterator[Frame] = (np.zeros((480, 640, 3), np.uint8) for _ in repeat(0))
    with Stream(runtime, frames, fps=1000) as stream:
        time.sleep(1)
        before, fed = memory_mib(), stream.stats().fed
        time.sleep(10)
        return f"{memory_mib() - before:+.2f} MiB over {stream.stats().fed - fed} frames of 640x480"


def address_unread(runtime: Runtime, address: str) -> str:
    with Stream(runtime, address) as stream:
        next(stream)
        time.sleep(2)
        before = memory_mib()
        time.sleep(60)
        grown, fed = memory_mib() - before, stream.stats().fed
        age = next(stream).age_ns / 1e6
    return f"{grown:+.2f} MiB over a minute ({fed} frames); the next answer is {age:.1f} ms old"


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "digits_detector"
    with tempfile.TemporaryDirectory() as folder:
        print(f"memory, null executor   {many_frames(Path(folder) / 'null')}")
        with Runtime.load(real_bundle(Path(folder) / "real", name)) as runtime:
            size = runtime.bundle.recipe.input.size or (480, 640)
            frames = [synthetic_frames(size, 1).picture(0)]
            alone, serial, overlapped = compare(runtime, frames)
            print(f"{name}: predict {np.median(alone):.2f} ms a frame")
            print(f"a stream adds           {interval(serial - alone)} ms")
            print(f"stages overlapped       {interval(serial / overlapped)} times as fast as in turns")
            print(f"memory, nobody reads    {nobody_reads(runtime)}")
            if len(sys.argv) > 2:
                print(f"memory, address unread  {address_unread(runtime, sys.argv[2])}")


if __name__ == "__main__":
    main()
