"""The rule of accuracy: KEPT is wrong in at most 5 % of cases, whatever is true; labels of changed answers suffice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.measurement.accuracy.judgement import (
    LEVEL,
    LEVELS_IN_STAGES,
    LEVELS_OF_LOOKS,
    NO_TIME,
    Judgement,
    NoProof,
    Word,
    in_order,
    judge_agreement,
    judge_numbers,
    judge_pairs,
    judge_scores,
    unproven,
)
from edgeopt.measurement.accuracy.paired_shares import least_samples, lower_bound, upper_bound
from edgeopt.tasks import Accuracy


@pytest.mark.parametrize("level", [LEVEL, LEVELS_OF_LOOKS[0], LEVELS_IN_STAGES[0], LEVELS_OF_LOOKS[1]])
@pytest.mark.parametrize(("samples", "allowed"), [(64, 0.05), (64, 0.1), (120, 0.03)])
def test_kept_is_wrong_in_at_most_its_level_over_all_tables(samples: int, allowed: float, level: float) -> None:
    """Enumerated: every table of answers, at a true drop of just what is allowed, however many answers change."""
    kept = [
        (worse, better)
        for worse in range(samples + 1)
        for better in range(samples + 1 - worse)
        if worse - better < samples * allowed and upper_bound(worse, better, samples, level) <= allowed
    ]
    assert kept
    for gained in (1e-9, 0.002, 0.01, 0.03, 0.1, 0.2, 0.4 - allowed):
        chances = [_chance(worse, better, samples, gained + allowed, gained) for worse, better in kept]
        assert sum(chances) <= level


def _chance(worse: int, better: int, samples: int, lost: float, gained: float) -> float:
    same = samples - worse - better
    ways = math.lgamma(samples + 1) - math.lgamma(worse + 1) - math.lgamma(better + 1) - math.lgamma(same + 1)
    return math.exp(
        ways + worse * math.log(lost) + better * math.log(gained) + same * math.log(max(1 - lost - gained, 1e-300))
    )


@pytest.mark.parametrize(("samples", "word"), [(64, Word.NOT_DECIDED), (298, Word.NOT_DECIDED), (299, Word.KEPT)])
def test_where_nothing_changes_a_hundredth_takes_299_samples(samples: int, word: Word) -> None:
    judged = judge_pairs(0, 0, samples, 0.01)
    assert judged.word is word
    assert judged.wanted == (0 if word is Word.KEPT else 299)


def test_what_would_decide_is_reckoned_at_the_level_of_the_look_after_this_one() -> None:
    wanted = [judge_pairs(6, 1, 400, 0.02, level=0.04, later=later).wanted for later in (None, 0.005)]
    assert wanted[1] > 1.5 * wanted[0]
    assert judge_pairs(0, 0, 64, 0.01, level=0.04, later=0.005).wanted == least_samples(0.01, 0.005) == 528


def test_more_samples_are_never_proof_of_less() -> None:
    bounds = [upper_bound(3, 1, samples, LEVEL) for samples in (50, 200, 1000, 5000)]
    assert bounds == sorted(bounds, reverse=True)
    assert upper_bound(30, 10, 400, LEVEL) == pytest.approx(-lower_bound(10, 30, 400, LEVEL))
    assert lower_bound(30, 10, 400, LEVEL) < 0.05 < upper_bound(30, 10, 400, LEVEL)


def test_a_loss_that_is_certain_is_lost_and_a_gain_is_kept() -> None:
    assert judge_pairs(40, 4, 400, 0.01).word is Word.LOST
    assert judge_pairs(4, 40, 400, 0.01).word is Word.KEPT


def test_what_is_open_says_how_many_samples_and_labels_decide() -> None:
    judged = judge_pairs(8, 6, 400, 0.01, changed=16)
    assert judged.word is Word.NOT_DECIDED
    assert judged.is_open
    share = 14 / 400
    expected = 6.2 * (share - judged.drop**2) / (0.01 - judged.drop) ** 2
    assert judged.wanted == pytest.approx(expected, rel=0.01)
    assert judged.wanted_labels == math.ceil(judged.wanted * 16 / 400)
    assert f"about {judged.wanted:,} labelled samples would decide, {judged.wanted_labels} labels" in judged.remedy


def test_where_more_is_lost_than_allowed_no_number_of_labels_is_promised() -> None:
    judged = judge_pairs(14, 8, 400, 0.01)
    assert judged.word is Word.NOT_DECIDED
    assert not judged.is_open
    assert judged.wanted == 0
    assert judged.remedy.startswith("no number of labels would")


def test_nothing_may_be_lost_cannot_be_proven_by_samples() -> None:
    assert least_samples(0.0, LEVEL) == 0
    assert judge_pairs(0, 0, 100_000, 0.0).word is Word.NOT_DECIDED


def test_a_rewrite_within_the_rounding_of_floats_is_kept_without_a_label() -> None:
    judged = judge_numbers(121.0, 0.0)
    assert judged.word is Word.KEPT
    assert judged.samples == 0
    assert "121 dB" in str(judged)


def test_behind_the_first_that_is_not_proven_none_is() -> None:
    kept, still_open = judge_pairs(0, 0, 400, 0.01), judge_pairs(4, 2, 400, 0.01)
    words = [one.word for one in in_order([kept, still_open, kept, judge_pairs(40, 0, 400, 0.01)])]
    assert words == [Word.KEPT, Word.NOT_DECIDED, Word.NOT_DECIDED, Word.LOST]


@pytest.mark.parametrize(
    ("samples", "least", "word"), [(16, 0.99, Word.NOT_DECIDED), (16, 0.8, Word.AGREES), (400, 0.99, Word.AGREES)]
)
def test_few_samples_do_not_show_that_almost_all_answers_agree(samples: int, least: float, word: Word) -> None:
    judged = judge_agreement(1.0, np.ones(samples), least)
    assert judged.word is word
    assert judged.agreement_least < 1


def test_agreement_has_a_bound_by_what_its_samples_vary() -> None:
    each = np.concatenate([np.full(190, 1.0), np.full(10, 0.6)])
    judged = judge_agreement(float(each.mean()), each, 0.965, changed=10)
    assert judged.word is Word.AGREES
    assert judge_agreement(float(each.mean()), each, 0.975, changed=10).word is Word.NOT_DECIDED
    assert judge_agreement(float(each.mean()), each, 0.985, changed=10).word is Word.DIFFERS
    assert "10 answers changed" in str(judged)


def scored(right: str) -> Scored:
    values = [mark == "1" for mark in right]
    rng = np.random.default_rng(0)
    draws = rng.multinomial(len(right), np.full(len(right), 1 / len(right)), 1000)
    accuracy = Accuracy("top1", float(np.mean(values)), len(right))
    resampled = tuple((draws @ np.array(values, float) / len(right)).tolist())
    return Scored(accuracy, resampled, "labels.csv", "0", len(right), right)


def test_scores_of_right_and_wrong_are_judged_as_pairs_and_others_by_resamples() -> None:
    before, after = scored("1" * 300 + "0" * 300), scored("1" * 296 + "0" * 300 + "1" * 4)
    judged = judge_scores(before, after, 0.02)
    assert judged == judge_pairs(4, 4, 600, 0.02)
    by_resamples = judge_scores(replace_right(before), replace_right(after), 0.02)
    assert by_resamples.drop == pytest.approx(judged.drop)
    assert by_resamples.drop_most == pytest.approx(judged.drop_most, abs=0.003)
    assert judge_scores(before, scored("1" * 600), 0.02).word is Word.KEPT


def replace_right(one: Scored) -> Scored:
    return Scored(one.accuracy, one.resampled, one.labels, one.pictures_sha256, one.drawn)


def test_a_metric_that_is_no_share_is_not_kept_on_few_samples_that_are_all_alike() -> None:
    few = Scored(Accuracy("AP", 0.3, 64), (0.3,) * 1000, "labels.json", "0", 64)
    assert judge_scores(few, few, 0.01).word is Word.NOT_DECIDED
    assert judge_scores(few, few, 0.05).word is Word.KEPT


def test_other_labels_are_not_compared() -> None:
    other = Scored(Accuracy("top1", 0.5, 2), (0.5,), "labels.csv", "1", 2, "10")
    assert judge_scores(scored("10"), other, 0.01) is None


def test_a_judgement_is_told_with_its_bound_and_what_it_rests_on() -> None:
    judged = judge_pairs(2, 1, 1000, 0.01, changed=9, labels=9)
    assert str(judged).startswith("drop +0.0010, at most +0.00")
    assert str(judged).endswith("(0.01 allowed; 1000 samples, 9 answers changed, 9 labels)")
    assert isinstance(judged, Judgement)


def test_labels_that_prove_nothing_say_so_and_what_would_decide() -> None:
    kept = judge_pairs(0, 0, 400, 0.01)
    judged = unproven(kept, NoProof.STEERED)
    assert judged.word is Word.NOT_DECIDED
    assert str(judged).endswith("; these labels steered the search")
    assert judged.remedy == "labels of other samples would decide"
    overused = unproven(kept, NoProof.OVERUSED)
    assert str(overused).endswith("; these labels were looked at too often")
    assert overused.remedy == "labels of other samples would decide, in another folder (-o)"
    lost = judge_pairs(40, 0, 400, 0.01)
    assert unproven(lost, NoProof.STEERED) is lost
    untested = in_order([judge_pairs(4, 2, 400, 0.01), judge_pairs(0, 0, 400, 0.01)])[1]
    assert "safer candidate" in str(untested)
    assert untested.remedy == "what decides the safer candidate lets this one be tested"


def test_what_there_was_no_time_to_judge_is_open_the_greatest_risk_and_told_as_that():
    remedy = "give --time-limit 60s or more"
    judged = Judgement(Word.NOT_DECIDED, 0, 0.9, agreement_least=0.0, why=NO_TIME, instead=remedy)
    assert judged.is_open
    assert judged.risk == 1.0
    assert (str(judged), judged.remedy) == ("no time to judge it", remedy)
