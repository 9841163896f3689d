"""Plain calls in turns, so that a drifting machine slows all alike.

One round is a random order of the variants and then the same order reversed: A B B A. Every variant then has the same
mean position in time, and a linear drift cancels within the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Session
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.clock import Clock
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.system.device_clock import device_clock
from edgeopt.system.processes.time_limit import require_time

MIN_ROUNDS = 5
"""Ten pairs of blocks: fewer give an interval that no machine's noise fits."""
_LONGER = 10
"""So many times the seconds, or a second, may the least rounds take; blocks of slower calls are shorter."""


def call_of(session: Session, inputs: Tensors) -> Callable[[int], None]:
    """Return what runs a session once on the same inputs, for `compare_calls`."""

    def call(_: int) -> None:
        session.run(inputs)

    return call


def compare_calls(
    runs: Mapping[str, Callable[[int], None]],
    *,
    baseline: str,
    seconds: float,
    block: int = 25,
    seed: int = 0,
    clock: Clock = device_clock,
) -> Mapping[str, Ratio]:
    """Call the variants in turns and return how many times as fast as the baseline each is, the baseline left out.

    Args:
        runs: One call per variant; the argument is the number of the input.
        baseline: What the others are compared with.
        seconds: How long to go on; at least five rounds run whatever it says.
        block: Calls per block; fewer where calls are slow.
        seed: Of the order.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If `baseline` is not among two or more `runs`.
    """
    if baseline not in runs:
        raise ValueError(f"baseline {baseline!r} is not among {', '.join(runs)}")
    times = run_blocks(runs, seconds=seconds, block=block, seed=seed, clock=clock)
    logs = {name: np.log(np.maximum(np.median(array, axis=2), 1.0)) for name, array in times.items()}
    return {
        name: ratio_of_rounds((logs[baseline] - log).mean(axis=1), pairs=log.size)
        for name, log in logs.items()
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
    clock: Clock = device_clock,
) -> Mapping[str, NDArray[np.int64]]:
    """Call the variants in turns for a time, at least five rounds; return (rounds, 2, block) nanoseconds of each.

    Each variant first runs one block that is not kept, as warm-up.

    Args:
        runs: One call per variant; the argument counts the inputs, and all variants get the same ones.
        seconds: How long to go on.
        block: Calls per block, at least 1; fewer where calls are slow.
        seed: Of the order.
        clock: Nanoseconds that never go back.

    Raises:
        ValueError: If there are not two variants, or a block is empty.
        OutOfTime: At the end of a time limit.
    """
    if len(runs) < 2 or block < 1:
        raise ValueError(f"need two variants and blocks of one call or more, got {len(runs)} and {block}")
    rng, start = np.random.default_rng(seed), clock()
    for run in runs.values():
        (first_ns,) = _time_block(run, 0, 1, clock).tolist()
        least_ns = 2 * MIN_ROUNDS * len(runs) * max(first_ns, 1)
        block = max(1, min(block, int(max(_LONGER * seconds, 1.0) * 1e9 / least_ns)))
        _time_block(run, 1, block - 1, clock)
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
        require_time()
        before = clock()
        run(first + i)
        times[i] = clock() - before
    return times
