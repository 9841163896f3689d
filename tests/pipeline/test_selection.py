"""The choice: never what is not proven faster, never worse than allowed, what loses least unless another beats it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.pipeline.candidate import BASELINE, Candidate, candidate_from_json
from edgeopt.pipeline.selection import Prefer, Wish, choose, lighter_than, mark, shortlist
from edgeopt.tasks import Accuracy

BASE = Candidate(BASELINE, "", (), "fp32", "b.onnx", 100, score=Accuracy("AP", 0.5, 64))


def made(
    name: str, speedup: float | None, drop: float = 0.0, *, verdict: str = "", agreement: float = 0.99
) -> Candidate:
    word = verdict or ("FASTER" if (speedup or 1) > 1.02 else "SLOWER" if (speedup or 1) < 0.98 else "EQUIVALENT")
    ratio = Ratio(speedup, speedup * 0.99, speedup * 1.01, Change(word), processes=8) if speedup else None
    return replace(
        BASE,
        name=name,
        parent=BASELINE,
        speed=ratio,
        drop=drop,
        agreement=agreement,
        score=Accuracy("AP", 0.5 - drop, 64),
    )


def chosen_of(candidates: list[Candidate], max_drop: float = 0.01, prefer: Prefer = Prefer.SPEED):
    """Return candidates and choice; of two, the one that is 3 % faster is proven faster."""
    wish = Wish(max_drop, prefer=prefer)
    marked = mark(candidates, wish)
    speeds = {one.name: one.speed.speedup for one in marked if one.speed}
    return marked, choose(marked, wish, lambda one, other: speeds[one] > 1.03 * speeds[other])


def test_the_fastest_that_keeps_its_accuracy_is_chosen():
    candidates, chosen = chosen_of([BASE, made("fuse", 1.1), made("int8", 2.0, 0.005), made("int4", 3.0, 0.2)])
    assert chosen.name == "int8"
    assert "drops 0.2000 AP, 0.01 allowed" in next(one for one in candidates if one.name == "int4").refused
    assert "int4 drops" in chosen.reason


@pytest.mark.parametrize("verdict", ["INCONCLUSIVE", "EQUIVALENT", "UNCONFIRMED"])
def test_what_is_not_proven_faster_is_not_chosen(verdict):
    _, chosen = chosen_of([BASE, made("quantize", 1.05, 0.0068, verdict=verdict)])
    assert chosen.name == BASELINE
    assert chosen.reason == (
        f"the original stays: no candidate is proven faster and accurate enough (quantize 1.05x [1.04, 1.06] {verdict})"
    )


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
    chosen = replace(made("chosen", 1.5, agreement=0.99), drop=None, score=None)
    fast = replace(chosen, name="fast", speed=made("", 2.0).speed, agreement=agreement)
    assert names_lighter_than(chosen, fast) == expected


def test_a_tie_falls_to_the_smaller_and_then_to_the_earlier():
    small = replace(made("small", 1.5), size_bytes=50)
    _, chosen = chosen_of([BASE, made("first", 1.51), made("second", 1.5), small])
    assert chosen.name == "small"
    _, chosen = chosen_of([BASE, made("first", 1.5), made("second", 1.51)])
    assert chosen.name == "first"


def test_a_refusal_names_the_interval_of_the_drop():
    lost = replace(made("int8", 2.0, 0.02), drop_low=0.004, drop_high=0.036)
    candidates, _ = chosen_of([BASE, lost])
    assert candidates[1].refused == "drops 0.0200 AP [+0.0040, +0.0360], 0.01 allowed"
    kept = replace(made("int8", 2.0, 0.002), drop_low=-0.004, drop_high=0.009)
    _, chosen = chosen_of([BASE, kept])
    assert "loses 0.0020 AP (drop in [-0.0040, +0.0090], 0.01 allowed)" in chosen.reason


def test_a_candidate_of_an_older_file_has_no_interval():
    values = asdict(made("int8", 2.0))
    assert candidate_from_json(values) == made("int8", 2.0)
    del values["drop_low"], values["drop_high"]
    assert candidate_from_json(values).drop_interval == ""


def test_a_slower_candidate_is_never_chosen_however_accurate():
    candidates, chosen = chosen_of([BASE, made("int8", 0.8, -0.1)])
    assert chosen.name == BASELINE
    assert candidates[1].refused == "slower than the original: 0.80x [0.79, 0.81]"


def test_without_labels_agreement_filters_and_then_decides_ties():
    bad = replace(made("int8", 2.0, agreement=0.3), score=None, drop=None)
    candidates, chosen = chosen_of([replace(BASE, score=None), bad])
    assert chosen.name == BASELINE
    assert "0.300 only" in candidates[1].refused
    far, near = (
        replace(made(name, 2.0, agreement=one), score=None, drop=None) for name, one in (("a", 0.97), ("b", 1.0))
    )
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
    judged, chosen = chosen_of(candidates, max_drop)
    best = next(one for one in judged if one.name == chosen.name)
    assert best.refused == ""
    assert best.name == BASELINE or (best.speed.verdict == "FASTER" and best.drop <= max_drop + 1e-9)


@pytest.mark.parametrize("drop", [0.01, 0.0100001])
def test_the_allowed_drop_is_the_last_that_passes(drop):
    _, chosen = chosen_of([BASE, made("int8", 2.0, drop)])
    assert (chosen.name == "int8") == (drop <= 0.01)
