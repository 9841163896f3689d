"""Whole frames of several variants in turns, with stages marked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgeopt.executors import Session
from edgeopt.measurement.blocks import MIN_ROUNDS, round_order
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.frame_loop import Frames, MarkedFrames
from edgeopt.measurement.samples import Samples
from edgeopt.tasks import FrameTask


def run_interleaved(
    frames: Frames,
    variants: Mapping[str, tuple[FrameTask, Session]],
    *,
    seconds: float,
    enough: int | None = None,
    block: int = 25,
    least_rounds: int = MIN_ROUNDS,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
) -> Mapping[str, Samples]:
    """Run blocks of frames of each variant in turns (A B B A) and return one run per variant.

    The first block of each variant is marked as warm-up; `round_id` numbers the rounds from 0.

    Args:
        frames: One or more; all variants of a round get the same ones in the same order.
        variants: Task and loaded session of each.
        seconds: How long to go on; the least rounds run whatever it says.
        enough: Stop before that once each variant has so many frames after warm-up; None: never.
        block: Frames per block, at least 1.
        least_rounds: Two or more.
        seed: Of the order.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If there is no frame, a block is empty or there are not two variants.
    """
    if len(variants) < 2 or block < 1:
        raise ValueError(f"need two variants and blocks of one frame or more, got {len(variants)} and {block}")
    rng, zero_ns, epoch_ns = np.random.default_rng(seed), clock(), time.time_ns()
    marked = {name: MarkedFrames(frames, task, session, clock) for name, (task, session) in variants.items()}
    for run in marked.values():
        _run_block(run, 0, block)
    rounds = 0
    wanted = least_rounds if enough is None else max(least_rounds, -(-enough // (2 * block)))
    while rounds < least_rounds or (clock() - zero_ns < seconds * 1e9 and (enough is None or rounds < wanted)):
        for name in round_order(tuple(variants), rng):
            _run_block(marked[name], len(marked[name]) - block, block)
        rounds += 1
    return {name: _samples(run, name, block, zero_ns, epoch_ns) for name, run in marked.items()}


def _run_block(run: MarkedFrames, first: int, block: int) -> None:
    for index in range(first, first + block):
        run.run(index)


def _samples(run: MarkedFrames, name: str, block: int, zero_ns: int, epoch_ns: int) -> Samples:
    rows = np.arange(len(run))
    samples = run.samples(rows < block, zero_ns=zero_ns, epoch_ns=epoch_ns, variant=name)
    return replace(samples, round_id=np.maximum(rows - block, 0) // (2 * block))
