"""The choice: never what is not proven faster, never worse than allowed, what loses least unless another beats it."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.graph.drift import Drift
from edgeopt.measurement.accuracy.judgement import Judgement, Word
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import BASELINE, Candidate, Prediction, candidate_from_json
from edgeopt.optimization.candidates.measure import promise_of
from edgeopt.optimization.choice.accuracy_proof import prove_accuracy
from edgeopt.optimization.choice.selection import Wish, choose, lighter_than, mark, shortlist, why_refused
from edgeopt.optimization.options import Prefer
from edgeopt.recipes.recipe import LEAST_AGREEMENT
from edgeopt.steps._device_times.prediction import PredictedSpeed, PredictedTime
from edgeopt.tasks import Accuracy

BASE = Candidate(BASELINE, "", (), "fp32", "b.onnx", 100, score=Accuracy("AP", 0.5, 64))


def made(
    name: str, speedup: float | None, drop: float = 0.0, *, verdict: str = "", agreement: float | None = None
) -> Candidate:
    word = verdict or ("FASTER" if (speedup or 1) > 1.02 else "SLOWER" if (speedup or 1) < 0.98 else "EQUIVALENT")
    ratio = Ratio(speedup, speedup * 0.99, speedup * 1.01, Change(word), processes=8) if speedup else None
    return replace(
        BASE,
        name=name,
        parent=BASELINE,
        speed=ratio,
        judgement=judged(drop),
        agreement=0.99 - drop if agreement is None else agreement,
        score=Accuracy("AP", 0.5 - drop, 64),
    )


def judged(drop: float, *, allowed: float = 0.01, reach: float = 0.0) -> Judgement:
    """Return a judgement whose bounds lie `reach` on each side of the drop."""
    word = Word.KEPT if drop + reach <= allowed else Word.LOST if drop - reach > allowed else Word.NOT_DECIDED
    return Judgement(word, 1000, allowed, drop=drop, drop_least=drop - reach, drop_most=drop + reach)


def agreeing(name: str, speedup: float, agreement: float) -> Candidate:
    """Return a candidate that no labels judge."""
    word = Word.AGREES if agreement >= LEAST_AGREEMENT else Word.DIFFERS
    judgement = Judgement(word, 200, LEAST_AGREEMENT, agreement=agreement, agreement_least=agreement)
    return replace(made(name, speedup, agreement=agreement), score=None, judgement=judgement)


def test_where_times_are_predicted_a_lossy_form_without_one_is_refused() -> None:
    predicted = Prediction(PredictedTime(1.0, 0.9, 1.1), PredictedSpeed(2.0, 1.5, 2.5))
    known, unknown = replace(made("known", None), predicted=predicted), made("unknown", None)
    lossy = [replace(one, precision="w8a8", is_lossy=True) for one in (known, unknown)]
    assert [one.refused for one in mark([BASE, *lossy], Wish(0.01))] == [
        "",
        "",
        "no time of such a form is predicted or measured",
    ]
    assert not any(one.refused for one in mark([BASE, lossy[1]], Wish(0.01)))


def chosen_of(candidates: list[Candidate], max_drop: float = 0.01, prefer: Prefer = Prefer.SPEED):
    """Return candidates and choice; of two, the one that is 3 % faster is proven faster."""
    wish = Wish(max_drop, prefer=prefer)
    marked = mark(candidates, wish)
    speeds = {one.name: one.speed.speedup for one in marked if one.speed}
    return marked, choose(marked, wish, lambda one, other: speeds[one] > 1.03 * speeds[other])


def test_the_fastest_that_keeps_its_accuracy_is_chosen():
    candidates, chosen = chosen_of([BASE, made("fuse", 1.1), made("int8", 2.0, 0.005), made("int4", 3.0, 0.2)])
    assert chosen.name == "int8"
    refused = next(one for one in candidates if one.name == "int4").refused
    assert refused == "LOST: drop +0.2000, at most +0.2000 (0.01 allowed; 1000 samples)"
    assert "int4 LOST" in chosen.reason


@pytest.mark.parametrize("verdict", ["INCONCLUSIVE", "EQUIVALENT", "UNCONFIRMED"])
def test_what_is_not_proven_faster_is_not_chosen(verdict):
    _, chosen = chosen_of([BASE, made("quantize", 1.05, 0.0068, verdict=verdict)])
    assert chosen.name == BASELINE
    assert chosen.reason == (
        f"the original stays: no candidate is proven faster and accurate enough (quantize 1.05x [1.04, 1.06] {verdict})"
    )


def test_more_time_is_promised_to_prove_only_what_is_faster_in_one_run():
    assert promise_of(made("int8", 1.5), 4.2) == "int8 looks 1.50x as fast and agrees; 5 s more would prove it"
    told = promise_of(made("simplify", 0.96), 8.2)
    assert told == "simplify may be faster and agrees (0.96x [0.95, 0.97] so far); 9 s more would tell"


def test_what_loses_more_must_be_proven_faster_than_what_loses_less():
    _, chosen = chosen_of([BASE, made("fuse", 1.49), made("int8", 1.5, 0.005)])
    assert chosen.name == "fuse"
    _, chosen = chosen_of([BASE, made("fuse", 1.1), made("int8", 1.5, 0.005)])
    assert chosen.name == "int8"


def names_lighter_than(chosen: Candidate, *others: Candidate) -> list[str]:
    return [one.name for one in lighter_than(chosen, [BASE, chosen, *others])]


def test_an_app_degrades_to_what_is_faster_less_accurate_and_still_a_model():
    chosen, fast = made("chosen", 1.5, 0.005), made("fast", 2.0, 0.05)
    assert names_lighter_than(chosen, fast, made("slower", 1.4, 0.05)) == ["fast"]
    assert names_lighter_than(chosen, made("noise", 1.51, 0.05), made("better", 2.0, 0.004)) == []
    assert names_lighter_than(chosen, made("broken", 3.0, 0.2), replace(fast, unfit="the device refuses it")) == []
    assert names_lighter_than(chosen, replace(fast, speed=None)) == []
    four = [made("a", 1.6, 0.02), made("b", 1.8, 0.04), fast, made("c", 1.7, 0.01)]
    assert names_lighter_than(chosen, *four) == ["fast", "c"], "the fastest, then what loses least"
    assert names_lighter_than(BASE, fast) == ["fast"]


@pytest.mark.parametrize(("agreement", "expected"), [(0.9, ["fast"]), (0.5, []), (0.99, [])])
def test_without_labels_agreement_says_what_is_a_model(agreement, expected):
    chosen, fast = agreeing("chosen", 1.5, 0.99), agreeing("fast", 2.0, agreement)
    assert names_lighter_than(chosen, fast) == expected


def test_a_tie_falls_to_the_smaller_then_to_what_loses_less_and_then_to_the_earlier():
    small = replace(made("small", 1.5), size_bytes=50)
    _, chosen = chosen_of([BASE, made("first", 1.51), made("second", 1.5), small])
    assert chosen.name == "small"
    _, chosen = chosen_of([BASE, made("first", 1.5), made("second", 1.51)])
    assert chosen.name == "first"
    same_bound = replace(judged(0.0015), drop_most=0.002)
    lost = replace(made("lost", 1.5), judgement=same_bound, size_bytes=101)
    kept = replace(made("kept", 1.5), judgement=replace(same_bound, drop=-0.0005), size_bytes=102)
    _, chosen = chosen_of([replace(BASE, size_bytes=1000), lost, kept])
    assert chosen.name == "kept", "a tenth of a percent of the original is no smaller model"


def test_what_is_not_decided_is_chosen_only_where_nothing_faster_is_kept() -> None:
    still_open = replace(made("int8", 2.0), judgement=judged(0.002, reach=0.02))
    _, chosen = chosen_of([BASE, made("fuse", 1.1), still_open])
    assert chosen.name == "fuse"
    _, chosen = chosen_of([BASE, made("fuse", 1.01), still_open])
    assert chosen.name == "int8"
    assert "NOT DECIDED: drop +0.0020, at most +0.0220 (0.01 allowed; 1000 samples)" in chosen.reason


def test_of_what_is_not_decided_the_safest_is_chosen_and_never_what_lies_beyond() -> None:
    safe = replace(made("safe", 1.5), judgement=judged(0.004, reach=0.007))
    fast = replace(made("fast", 3.0), judgement=judged(0.001, reach=0.03))
    beyond = replace(made("beyond", 4.0), judgement=judged(0.0105, reach=0.001))
    candidates, chosen = chosen_of([BASE, fast, safe, beyond])
    assert chosen.name == "safe"
    assert candidates[3].refused.startswith("NOT DECIDED: drop +0.0105")


def test_of_what_may_lose_equally_much_the_fastest_is_chosen() -> None:
    """YOLOX-nano with 64 labels: three forms may lose 0.0491 at most, and the slowest was chosen for its bytes."""
    bound = replace(judged(0.0071, reach=0.042), drop_most=0.0491)
    small = replace(made("small", 1.29), judgement=bound, size_bytes=31)
    fast = replace(made("fast", 1.72), judgement=replace(bound, drop=-0.0069), size_bytes=34)
    between = replace(made("between", 1.38), judgement=replace(bound, drop=-0.0019), size_bytes=32)
    _, chosen = chosen_of([replace(BASE, size_bytes=100), small, fast, between])
    assert chosen.name == "fast"


def test_what_no_judgement_was_made_of_is_not_chosen() -> None:
    _, chosen = chosen_of([BASE, replace(made("int8", 2.0), judgement=None)])
    assert chosen.name == BASELINE


def test_a_candidate_of_a_file_is_read_back_with_its_judgement() -> None:
    values = asdict(made("int8", 2.0))
    assert candidate_from_json(values) == made("int8", 2.0)
    del values["judgement"]
    assert candidate_from_json(values).word == ""


def test_a_slower_candidate_is_never_chosen_however_accurate():
    candidates, chosen = chosen_of([BASE, made("int8", 0.8, -0.1)])
    assert chosen.name == BASELINE
    assert candidates[1].refused == "slower than the original: 0.80x [0.79, 0.81]"


def test_without_labels_agreement_filters_and_then_decides_ties():
    bad = replace(agreeing("int8", 2.0, 0.3), judgement=None)
    candidates, chosen = chosen_of([replace(BASE, score=None), bad])
    assert chosen.name == BASELINE
    assert "0.300 only" in candidates[1].refused
    far, near = agreeing("a", 2.0, 0.97), agreeing("b", 2.0, 1.0)
    _, chosen = chosen_of([replace(BASE, score=None), far, near])
    assert chosen.name == "b"


def test_what_was_not_measured_is_said():
    _, chosen = chosen_of([BASE, made("int8", None)])
    assert chosen.name == "int8"
    assert "not measured" in chosen.reason


def test_nothing_but_the_baseline():
    _, chosen = chosen_of([BASE])
    assert chosen.name == BASELINE


def test_the_front_holds_what_nothing_beats():
    candidates, _ = chosen_of([BASE, made("fast", 2.0, 0.005), made("dominated", 1.5, 0.008)])
    assert [one.name for one in candidates if one.on_front] == [BASELINE, "fast"]


def test_the_list_for_a_proof_holds_the_fastest_and_the_fastest_that_loses_less():
    lossy = [made(f"int8-{i}", 2.0 - i / 100, 0.005) for i in range(4)]
    others = [made("fuse", 1.4), made("simplify", 1.2), made("slow", 0.8), made("bad", 3.0, 0.5)]
    marked = mark([BASE, *lossy, *others], Wish(0.01))
    assert shortlist(marked, Wish(0.01), (), 3) == ("int8-0", "int8-1", "int8-2", "fuse")
    assert shortlist(marked, Wish(0.01), ("int8-0", "int8-1", "int8-2", "fuse"), 3) == ("int8-3", "simplify")


def test_the_list_for_a_proof_holds_what_no_label_need_decide():
    """Labels may leave every lossy form open: then the fastest rewrite is what is chosen, if it is proven."""
    exact = {"agreement": 1.0}
    fast = [made(f"bf16-{i}", 2.0 - i / 100, **exact) for i in range(4)]
    rewrites = [
        replace(made(name, speed, **exact), drift=Drift(1e-6, 1.0, 120.0))
        for name, speed in (("fuse", 1.2), ("fp32", 1.4))
    ]
    marked = mark([BASE, *fast, *rewrites], Wish(0.01))
    assert shortlist(marked, Wish(0.01), (), 2) == ("bf16-0", "bf16-1", "fp32")
    assert shortlist(marked, Wish(0.01), ("bf16-0", "bf16-1", "fp32"), 2) == ("bf16-2", "bf16-3", "fuse")


def test_a_rewrite_is_judged_though_a_lossy_form_is_faster_and_agrees_as_often():
    bf16 = replace(made("bf16", 2.0, agreement=1.0), judgement=judged(0.0, reach=0.1))
    rewrite = replace(made("fp32", 1.4, agreement=1.0), judgement=None, drift=Drift(1e-6, 1.0, 120.0))
    run = SimpleNamespace(wish=Wish(0.01), plan=SimpleNamespace(max_drop=0.01), judged_scores={})
    _, open_still, exact = prove_accuracy(run, [BASE, bf16, rewrite])
    assert open_still.word == "NOT DECIDED"
    assert exact.word == "KEPT"


def test_the_smallest_is_wanted_only_where_it_is_smaller_and_known_not_to_be_slower():
    small, tiny = replace(made("small", 1.0), size_bytes=60), replace(made("tiny", 0.5), size_bytes=10)
    _, chosen = chosen_of([BASE, made("fast", 2.0), small, tiny], prefer=Prefer.SIZE)
    assert chosen.name == "small"
    unknown = replace(made("small", 1.0, verdict="UNCONFIRMED"), size_bytes=60)
    _, chosen = chosen_of([BASE, made("fast", 2.0), unknown], prefer=Prefer.SIZE)
    assert chosen.name == BASELINE
    assert "no candidate is smaller and accurate enough" in chosen.reason


@given(st.lists(st.tuples(st.floats(0.2, 5), st.floats(-0.1, 0.5)), max_size=6), st.floats(0, 0.1))
def test_the_chosen_one_is_proven_faster_and_never_worse_than_allowed(pairs, max_drop):
    candidates = [BASE, *(made(f"c{i}", speed, drop) for i, (speed, drop) in enumerate(pairs))]
    allowing = [replace(one, judgement=judged(one.drop, allowed=max_drop)) for one in candidates[1:]]
    marked, chosen = chosen_of([BASE, *allowing], max_drop)
    best = next(one for one in marked if one.name == chosen.name)
    assert best.refused == ""
    assert best.name == BASELINE or (best.speed.verdict == "FASTER" and best.drop <= max_drop + 1e-9)


@pytest.mark.parametrize("drop", [0.01, 0.0100001])
def test_the_allowed_drop_is_the_last_that_passes(drop):
    _, chosen = chosen_of([BASE, made("int8", 2.0, drop)])
    assert (chosen.name == "int8") == (drop <= 0.01)


def test_smaller_pictures_are_asked_for_less_agreement_where_labels_decide_in_the_end():
    smaller = replace(made("resolution", 1.5, agreement=0.7), judgement=None, input_size=(320, 320))
    same_size = replace(smaller, name="quantize", input_size=())
    with_labels, without = Wish(0.01, 0.8, least_of_smaller=0.64), Wish(0.01, 0.8)
    assert not why_refused(smaller, with_labels)
    assert "0.700 only, 0.8 asked" in why_refused(same_size, with_labels)
    assert "0.700 only, 0.8 asked" in why_refused(smaller, without)
    assert "0.630 only, 0.64 asked" in why_refused(replace(smaller, agreement=0.63), with_labels)
    lost = replace(smaller, judgement=judged(0.05))
    assert why_refused(lost, with_labels).startswith("LOST")  # labels have the last word
