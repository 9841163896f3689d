from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.statistics.ratio import Change, Ratio, ratio_of_rounds
from edgeopt.measurement.turns.calls import MIN_ROUNDS, compare_calls, round_order, run_blocks

CALL_NS = 10_000_000
CALLS = 2000


def simulate(seed: int, slowdown: float, *, drift: float = 0.0, bursts: float = 0.0) -> Ratio:
    """Compare two variants on a machine that gets slower over the run and is noisy in bursts of 25 calls."""
    rng, clock = np.random.default_rng(seed), ScriptedClock()
    noise = np.exp(0.05 * rng.standard_normal(3 * CALLS))
    noise *= np.repeat(np.where(rng.random(3 * CALLS // 25) < bursts, 1.5, 1.0), 25)
    factors = iter(noise.tolist())

    def variant(factor: float) -> Callable[[int], None]:
        def call(index: int) -> None:
            heat = 1 + drift * clock.now_ns / (CALLS * CALL_NS)
            clock.advance(int(CALL_NS * factor * heat * next(factors)))

        return call

    runs = {"a": variant(1.0), "b": variant(1 + slowdown)}
    seconds = 0.95 * CALLS * CALL_NS / 1e9
    return compare_calls(runs, baseline="a", seconds=seconds, block=25, seed=seed, clock=clock)["b"]


def test_a_null_comparison_is_rarely_significant_while_the_machine_drifts():
    found = [simulate(seed, 0.0, drift=0.08) for seed in range(200)]
    assert np.mean([not ratio.low <= 1 <= ratio.high for ratio in found]) <= 0.07
    assert not {ratio.verdict for ratio in found} & {Change.FASTER, Change.SLOWER}


def test_a_null_comparison_is_rarely_significant_on_a_machine_with_bursts():
    found = [simulate(seed, 0.0, drift=0.08, bursts=0.02) for seed in range(200)]
    assert np.mean([not ratio.low <= 1 <= ratio.high for ratio in found]) <= 0.07
    assert not {ratio.verdict for ratio in found} & {Change.FASTER, Change.SLOWER}


def test_one_percent_of_slowdown_is_found():
    found = [simulate(seed, 0.01, drift=0.08) for seed in range(200)]
    assert np.mean([ratio.high < 1 for ratio in found]) >= 0.85


def test_five_percent_of_slowdown_is_slower_and_as_much_less_is_faster():
    assert all(simulate(seed, 0.05, drift=0.08).verdict is Change.SLOWER for seed in range(10))
    assert all(simulate(seed, -0.05, drift=0.08).verdict is Change.FASTER for seed in range(10))


def scripted(clock: ScriptedClock, duration_ns: int, seen: list[int]) -> Callable[[int], None]:
    def call(index: int) -> None:
        seen.append(index)
        clock.advance(duration_ns)

    return call


def test_all_variants_get_the_same_inputs_in_the_same_order():
    clock = ScriptedClock()
    seen: dict[str, list[int]] = {name: [] for name in "abc"}
    runs = {name: scripted(clock, 1000, seen[name]) for name in "abc"}
    blocks = run_blocks(runs, seconds=0.0, block=4, seed=3, clock=clock)
    assert seen["a"] == seen["b"] == seen["c"] == [*range(4), *range(8 * MIN_ROUNDS)]
    assert blocks["a"].shape == (MIN_ROUNDS, 2, 4)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_a_round_is_a_palindrome_in_which_every_variant_has_the_same_mean_position(count, seed):
    names = tuple("abcdef"[:count])
    order = round_order(names, np.random.default_rng(seed))
    assert order == order[::-1]
    assert {sum(i for i, one in enumerate(order) if one == name) for name in names} == {2 * count - 1}


def test_the_order_depends_on_the_seed_alone():
    orders = [[round_order(("a", "b"), rng) for _ in range(20)] for rng in map(np.random.default_rng, (1, 1, 2))]
    assert orders[0] == orders[1] != orders[2]


def test_three_variants_are_compared_with_the_baseline_and_a_linear_drift_cancels():
    clock = ScriptedClock()

    def drifting(factor: float) -> Callable[[int], None]:
        return lambda index: clock.advance(int(factor * (1_000_000 + clock.now_ns // 1000)))

    runs = {"base": drifting(1.0), "twice": drifting(2.0), "half": drifting(0.5)}
    found = compare_calls(runs, baseline="base", seconds=1.0, block=5, seed=0, clock=clock)
    assert set(found) == {"twice", "half"}
    assert found["twice"].speedup == pytest.approx(0.5, rel=0.01)
    assert found["half"].speedup == pytest.approx(2.0, rel=0.01)
    assert [found[name].verdict for name in ("twice", "half")] == [Change.SLOWER, Change.FASTER]


def test_a_comparison_needs_two_variants_and_a_known_baseline():
    with pytest.raises(ValueError, match="baseline 'c'"):
        compare_calls({"a": print, "b": print}, baseline="c", seconds=0)
    with pytest.raises(ValueError, match="two variants"):
        compare_calls({"a": print}, baseline="a", seconds=0)
    with pytest.raises(ValueError, match="two or more"):
        ratio_of_rounds(np.zeros(1), pairs=2)


@pytest.mark.parametrize(
    ("logs", "verdict"),
    [
        (np.full(20, np.log(0.97)), Change.SLOWER),
        (np.full(20, np.log(1.03)), Change.FASTER),
        (np.full(20, np.log(1.01)), Change.EQUIVALENT),
        (np.tile([-0.2, 0.2], 10), Change.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_what_the_interval_proves_against_the_margin(logs, verdict):
    ratio = ratio_of_rounds(logs, pairs=40)
    assert ratio.verdict is verdict
    assert (ratio.pairs_needed == 0) == (verdict is not Change.INCONCLUSIVE)


def test_a_ratio_on_the_margin_would_never_be_decided():
    rng = np.random.default_rng(0)
    logs = rng.normal(0, 0.05, 40)
    assert ratio_of_rounds(logs - logs.mean() + np.log(1.02), pairs=80).pairs_needed is None


def test_as_many_pairs_more_as_it_says_do_decide():
    logs = np.random.default_rng(1).normal(0, 0.1, 20)
    logs -= logs.mean()
    few = ratio_of_rounds(logs, pairs=40)
    assert few.verdict is Change.INCONCLUSIVE
    assert few.pairs_needed is not None
    longer = np.tile(logs, 1 + few.pairs_needed // 40 + 1)
    assert ratio_of_rounds(longer, pairs=2 * len(longer)).verdict is Change.EQUIVALENT


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=30))
def test_swapping_the_variants_inverts_the_ratio(values):
    logs = np.array(values)
    ratio, inverse = ratio_of_rounds(logs, pairs=2), ratio_of_rounds(-logs, pairs=2)
    assert ratio.low <= ratio.speedup * (1 + 1e-12)
    assert ratio.high >= ratio.speedup * (1 - 1e-12)
    assert ratio.speedup * inverse.speedup == pytest.approx(1.0)
    assert ratio.low * inverse.high == pytest.approx(1.0, rel=0.02)
