"""A runtime that runs for long: memory stays, answers stay, no thread is left.

    python benchmarks/soak.py

100,000 frames through an executor that does nothing, 5,000 through the real detector, and 2,000 of each by 8 threads at
once. Memory is the resident set after a warm-up of each part; the claim is that it grows by less than 2 MB in each.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
from runtime import null_bundle, real_bundle

from edgeopt.graph.model import find_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.runtime.runtime import Runtime

MOST_MB = 2.0


def resident_mb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


def same(found: Any, expected: Any) -> bool:
    """Whether two answers are equal to the last bit."""
    pairs = (
        [(found[name], expected[name]) for name in expected]
        if isinstance(expected, dict)
        else [(getattr(found, name), getattr(expected, name)) for name in ("boxes", "scores", "classes")]
    )
    return all(np.array_equal(one, other) for one, other in pairs)


def part(title: str, folder: Path, frames: list[Any], count: int, threads: int) -> bool:
    """Run frames and print what became of memory, answers and threads; return whether all holds."""
    started = threading.active_count()
    with Runtime.load(folder, threads=1) as runtime:
        expected = [runtime.predict(frame) for frame in frames]

        def ask(i: int) -> bool:
            return same(runtime.predict(frames[i % len(frames)]), expected[i % len(frames)])

        wrong, grown, seconds = _run(ask, count, threads)
        stats = runtime.stats()
    left = threading.active_count() - started
    fed = stats.fed - stats.served
    holds = grown < MOST_MB and not wrong and not left and not fed
    print(
        f"{title}: {count} frames, {threads} thread(s), {seconds:.0f} s: memory {grown:+.2f} MB, {wrong} wrong, "
        f"{left} threads left, {fed} frames without an answer: {'holds' if holds else 'DOES NOT HOLD'}"
    )
    return holds


def _run(ask: Callable[[int], bool], count: int, threads: int) -> tuple[int, float, float]:
    """Return how many answers were wrong, by how much memory grew after the warm-up, and the seconds."""

    def share(number: int, of: int) -> int:
        return sum(map(ask, range(number, of, threads)))

    with ThreadPoolExecutor(threads) as workers:

        def together(frames: int) -> int:
            return sum(workers.map(partial(share, of=frames), range(threads)))

        together(max(count // 10, 300))
        before, began = resident_mb(), perf_counter()
        right = together(count)
        seconds = perf_counter() - began
        grown = resident_mb() - before
    return count - right, grown, seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        null, real = null_bundle(Path(folder, "null")), real_bundle(Path(folder, "real"), "digits_detector")
        pictures = open_frames(find_model("digits_detector").parent / "calib")
        frames = [pictures.picture(i) for i in range(16)]
        inputs = [{"x": np.full((1, 4), i, np.float32)} for i in range(4)]
        held = [
            part("null executor", null, inputs, 100_000, 1),
            part("digits_detector", real, frames, 5_000, 1),
            part("null executor", null, inputs, 2_000, 8),
            part("digits_detector", real, frames, 2_000, 8),
        ]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
