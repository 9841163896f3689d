"""Variants in turns, block by block, so that a drifting machine slows all alike: plain calls, or whole frames.

One round is a random order of the variants and then the same order reversed: A B B A. Every variant then has the same
mean position in time, and a linear drift cancels within the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Session
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.frame_loop import Frames, MarkedFrames
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.tasks import FrameTask

MIN_ROUNDS = 5
"""Ten pairs of blocks: fewer give an interval that no machine's noise fits."""


def compare_calls(
    runs: Mapping[str, Callable[[int], None]],
    *,
    baseline: str,
    seconds: float,
    block: int = 25,
    seed: int = 0,
    margin: float = 0.02,
    clock: Clock = time.perf_counter_ns,
) -> Mapping[str, Ratio]:
    """Call the variants in turns and return how many times as fast as the baseline each is, the baseline left out.

    Args:
        runs: One call per variant; the argument is the number of the input.
        baseline: What the others are compared with.
        seconds: How long to go on; at least five rounds run whatever it says.
        block: Calls per block.
        seed: Of the order.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If `baseline` is not among two or more `runs`.
    """
    if baseline not in runs:
        raise ValueError(f"baseline {baseline!r} is not among {', '.join(runs)}")
    times = run_blocks(runs, seconds=seconds, block=block, seed=seed, clock=clock)
    logs = {name: np.log(np.maximum(np.median(one, axis=2), 1.0)) for name, one in times.items()}
    return {
        name: ratio_of_rounds((logs[baseline] - found).mean(axis=1), pairs=found.size, margin=margin)
        for name, found in logs.items()
        if name != baseline
    }


def round_order(variants: tuple[str, ...], rng: np.random.Generator) -> tuple[str, ...]:
    """Return the variants in random order, then reversed."""
    order = [variants[i] for i in rng.permutation(len(variants))]
    return (*order, *reversed(order))


def run_blocks(
    runs: Mapping[str, Callable[[int], None]],
    *,
    seconds: float,
    block: int,
    seed: int,
    clock: Clock = time.perf_counter_ns,
) -> Mapping[str, NDArray[np.int64]]:
    """Call the variants in turns for a time, at least five rounds; return (rounds, 2, block) nanoseconds of each.

    Each variant first runs one block that is not kept, as warm-up.

    Args:
        runs: One call per variant; the argument counts the inputs, and all variants get the same ones.
        seconds: How long to go on.
        block: Calls per block, at least 1.
        seed: Of the order.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If there are not two variants, or a block is empty.
    """
    if len(runs) < 2 or block < 1:
        raise ValueError(f"need two variants and blocks of one call or more, got {len(runs)} and {block}")
    rng, start = np.random.default_rng(seed), clock()
    for run in runs.values():
        _time_block(run, 0, block, clock)
    rounds: list[dict[str, list[NDArray[np.int64]]]] = []
    while len(rounds) < MIN_ROUNDS or clock() - start < seconds * 1e9:
        halves: dict[str, list[NDArray[np.int64]]] = {name: [] for name in runs}
        for name in round_order(tuple(runs), rng):
            first = (2 * len(rounds) + len(halves[name])) * block
            halves[name].append(_time_block(runs[name], first, block, clock))
        rounds.append(halves)
    return {name: np.array([halves[name] for halves in rounds]) for name in runs}


def _time_block(run: Callable[[int], None], first: int, block: int, clock: Clock) -> NDArray[np.int64]:
    times = np.zeros(block, np.int64)
    for i in range(block):
        before = clock()
        run(first + i)
        times[i] = clock() - before
    return times


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
