"""A drawn token is that which sorting all of them would give, whatever is sorted; and what is no number."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.decoding.sampling import UNKNOWN_ODDS, Chooser, Sampling, largest, odds_of

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


def test_the_largest_numbers_come_in_order():
    numbers = np.array([1.0, 2.0, 2.0, 0.0, 2.0, -np.inf], np.float32)
    assert largest(numbers, 2).tolist() == [2, 2]
    assert largest(numbers, 6).tolist() == [2, 2, 2, 1, 0, -np.inf]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logit", [np.nan, -np.inf])
@pytest.mark.filterwarnings("error")
def test_a_model_that_computes_no_number_is_one_line(logit, temperature):
    with pytest.raises(EdgeoptError, match="the model computes no number") as failed:
        Chooser(Sampling(temperature)).choose(np.full(300, logit, np.float32), ())
    assert "\n" not in failed.value.problem
    assert odds_of(np.full(300, logit, np.float32), 3, 5) == UNKNOWN_ODDS


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 50.0])
def test_what_is_no_number_is_never_drawn(temperature):
    logits = np.array([np.nan, -np.inf, 0.5, np.nan, 0.4], np.float32)
    drawn = {Chooser(Sampling(temperature, seed=seed)).choose(logits, ()) for seed in range(40)}
    assert drawn <= {2, 4}


def test_odds_list_no_token_that_may_not_follow():
    odds = odds_of(np.array([-np.inf, 1.0, np.nan, 1.0, -np.inf], np.float32), 3, 5)
    assert [token for token, _ in odds.likely] == [1, 3]
    assert odds.logprob == pytest.approx(np.log(0.5))
