"""Where the true drop is known: what loses more than is allowed is hardly ever KEPT, and a proof takes few labels."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeopt.measurement.accuracy.judgement import LEVEL
from edgeopt.recipes.scoring.average_precision import MatchTable

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy_truth.py"


@pytest.fixture(scope="module")
def truth() -> ModuleType:
    """The benchmark of the same name, as a module."""
    spec = importlib.util.spec_from_file_location("accuracy_truth", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy_truth"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("labels", [64, 400, 2000])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_shares_beyond_what_is_allowed_are_kept_in_five_of_a_hundred_at_most(
    place: int, labels: int, truth: ModuleType
) -> None:
    rates = truth.judge_often(truth.POPULATIONS[place], labels, 400)
    assert rates.kept <= rates.kept_alone <= 30, "5 % of 400 are 20, and 30 are seen in 1 of 70 runs"
    assert rates.otherwise > 100, "the point estimate alone says so in about half of them"


@pytest.mark.parametrize("place", [4, 5])
def test_metrics_that_are_no_share_are_kept_no_oftener(place: int, truth: ModuleType) -> None:
    rates = truth.judge_often(truth.POPULATIONS[place], 400, 40)
    assert rates.kept <= rates.kept_alone <= 6
    assert rates.otherwise > 8


@pytest.mark.parametrize("place", [0, 1])
def test_three_looks_at_labels_that_are_added_are_wrong_no_oftener_than_one(place: int, truth: ModuleType) -> None:
    counted = truth.look_often(truth.POPULATIONS[place], (400, 800, 1600), 400)
    assert counted.kept <= 30, "5 % of 400 are 20, and 30 are seen in 1 of 70 runs"
    assert counted.otherwise > counted.kept, "each at the full level they are wrong oftener"


def test_few_resamples_refuse_only_what_all_of_them_refuse(truth: ModuleType) -> None:
    population, allowed = truth.POPULATIONS[4], 1.8 * truth.POPULATIONS[4].drop

    def drawn() -> list[Any]:
        found = [population.draw(400, np.random.default_rng(seed)) for seed in range(20)]
        truth._score(found, 1)
        return found

    whole = drawn()
    truth._score(whole, truth.RESAMPLES)
    kept = sum(one.is_kept(allowed, LEVEL) for one in whole)
    assert 0 < kept < len(whole)
    assert truth._kept(drawn(), allowed)[1] == kept


def test_quarters_tell_by_how_much_a_drop_of_average_precision_is_seen_too_small(truth: ModuleType) -> None:
    population = truth.Population("boxes", "AP", 500, *(boxes(flat) for flat in (False, True)))
    rng = np.random.default_rng(0)
    sets = rng.multinomial(64, np.full(500, 1 / 500), 1500)
    before, after = (population.score(one, sets) for one in (population.before, population.after))
    bias = float(np.mean(before - after)) - population.drop
    assert bias < -0.15 * float(np.std(before - after))
    told = []
    for _ in range(40):
        drawn = population.draw(64, rng)
        truth._score([drawn], 1)
        told.append(float(np.subtract(*drawn.parted).mean()) - drawn.drop)
    assert 0.8 * bias > np.mean(told) > 3 * bias


def boxes(is_flat: bool, pictures: int = 500) -> list[MatchTable]:
    """Three boxes a picture, of which the sure ones are oftener right, or all are right as often."""
    rng, count = np.random.default_rng(is_flat), 3 * pictures
    scores = np.sort(rng.random(count))[::-1]
    right = rng.random(count) < (0.55 if is_flat else 0.3 + 0.7 * scores)
    where = rng.permutation(np.repeat(np.arange(pictures), 3))
    truths = np.full(pictures, 3, np.int64)
    return [MatchTable(where, right[None], np.zeros((1, count), bool), truths)]


def test_counting_goes_on_where_it_was_ended(truth: ModuleType, tmp_path: Path) -> None:
    whole = truth.judge_often(truth.POPULATIONS[0], 400, 60)
    truth.judge_often(truth.POPULATIONS[0], 400, 25, truth.Store(tmp_path / "counted.json"))
    assert truth.judge_often(truth.POPULATIONS[0], 400, 60, truth.Store(tmp_path / "counted.json")) == whole


def test_the_best_of_twenty_is_not_lucky(truth: ModuleType) -> None:
    kept, by_point = truth.choose_often(400, 20, 300)
    assert kept <= 0.08
    assert by_point > 0.9


def test_few_labels_prove_a_form_that_loses_little(truth: ModuleType) -> None:
    power, labels = truth.prove_often(300)
    assert power >= 0.8
    assert labels <= 240
