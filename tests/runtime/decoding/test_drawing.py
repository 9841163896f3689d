"""A drawn token is that which sorting all of them would give; only the likeliest are sorted."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.runtime.decoding.sampling import Chooser, Sampling, largest

SAMPLINGS = (
    {},
    {"top_k": 3},
    {"top_k": 1 << 20},
    {"top_p": 0.0},
    {"top_p": 0.9},
    {"top_p": 0.9999, "min_p": 0.001},
    {"min_p": 0.05},
    {"top_k": 400, "top_p": 0.5},
)


def drawn_from_all(logits: np.ndarray, sampling: Sampling, chance: float) -> int:
    order = np.argsort(-logits, kind="stable")[: sampling.top_k or len(logits)]
    shares = np.exp((logits[order] - logits[order[0]]) / sampling.temperature)
    shares /= shares.sum()
    kept = int(np.searchsorted(np.cumsum(shares), sampling.top_p)) + 1
    kept = min(kept, np.count_nonzero(shares >= sampling.min_p * shares[0]), np.count_nonzero(shares))
    sums = np.cumsum(shares[:kept] / shares[:kept].sum())
    return int(order[min(int(np.searchsorted(sums, chance, side="right")), kept - 1)])


@pytest.mark.parametrize("numbers", SAMPLINGS, ids=str)
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_the_drawn_token_is_that_of_all_tokens_sorted(numbers, spread):
    chance = np.random.default_rng(1)
    for size in (3, 100, 5000):
        for temperature in (0.1, 1.0, 1.5):
            sampling = Sampling(temperature=temperature, seed=4, **numbers)
            chooser, draws = Chooser(sampling), np.random.default_rng(4)
            for _ in range(8):
                logits = np.round(spread * chance.standard_normal(size), 1).astype(np.float32)  # many are equal
                logits[-1] = -np.inf
                wanted = drawn_from_all(logits.astype(np.float64), sampling, draws.random())
                assert chooser.choose(logits, ()) == wanted


def test_of_equal_numbers_the_first_are_the_largest():
    assert largest(np.array([1.0, 2.0, 2.0, 0.0, 2.0, -np.inf]), 2).tolist() == [1, 2]
    assert largest(np.array([1.0, 2.0, 2.0, 0.0, 2.0, -np.inf]), 6).tolist() == [1, 2, 4, 0, 3, 5]
