"""Variants run in turns, block by block, so that a drifting machine slows all alike.

One round is a random order of the variants and then the same order reversed: A B B A. Every variant then has
the same mean position in time, and a linear drift cancels within the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.clock import Clock

MIN_ROUNDS = 5
"""Ten pairs of blocks: fewer give an interval that no machine's noise fits."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Raw times of an interleaved run: (rounds, 2, block) nanoseconds for each variant."""

    times_ns: Mapping[str, NDArray[np.int64]]

    @property
    def rounds(self) -> int:
        """How often each variant ran two blocks."""
        return len(next(iter(self.times_ns.values())))

    @property
    def pairs(self) -> int:
        """How many blocks of each variant can be paired."""
        return 2 * self.rounds


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
) -> Blocks:
    """Run the variants in turns for a time, at least five rounds.

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
    return Blocks({name: np.array([halves[name] for halves in rounds]) for name in runs})


def _time_block(run: Callable[[int], None], first: int, block: int, clock: Clock) -> NDArray[np.int64]:
    times = np.zeros(block, np.int64)
    for i in range(block):
        before = clock()
        run(first + i)
        times[i] = clock() - before
    return times
