"""The choice: never slower than the parent, never worse than allowed, the fastest of what is left."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.candidate import BASELINE, Candidate, Score, SpeedRatio, candidate_from_json
from edgeopt.search import choose

BASE = Candidate(BASELINE, "", (), "fp32", "b.onnx", 100, score=Score("AP", 0.5, 64))


def made(
    name: str, speedup: float | None, drop: float = 0.0, *, verdict: str = "", agreement: float = 0.99
) -> Candidate:
    word = verdict or ("FASTER" if (speedup or 1) > 1.02 else "SLOWER" if (speedup or 1) < 0.98 else "EQUIVALENT")
    ratio = SpeedRatio(BASELINE, speedup, speedup * 0.99, speedup * 1.01, word) if speedup else None
    return replace(
        BASE,
        name=name,
        parent=BASELINE,
        speed=ratio,
        speed_to_parent=ratio,
        drop=drop,
        agreement=agreement,
        score=Score("AP", 0.5 - drop, 64),
    )


def test_the_fastest_that_keeps_its_accuracy_is_chosen():
    candidates, chosen = choose([BASE, made("fuse", 1.1), made("int8", 2.0, 0.005), made("int4", 3.0, 0.2)], 0.01)
    assert chosen.name == "int8"
    assert "drops 0.2000 AP, 0.01 allowed" in next(one for one in candidates if one.name == "int4").refused
    assert "int4 drops" in chosen.reason


def test_a_refusal_names_the_interval_of_the_drop():
    lost = replace(made("int8", 2.0, 0.02), drop_low=0.004, drop_high=0.036)
    candidates, _ = choose([BASE, lost], 0.01)
    assert candidates[1].refused == "drops 0.0200 AP [+0.0040, +0.0360], 0.01 allowed"
    kept = replace(made("int8", 2.0, 0.002), drop_low=-0.004, drop_high=0.009)
    _, chosen = choose([BASE, kept], 0.01)
    assert "loses 0.0020 AP (drop in [-0.0040, +0.0090], 0.01 allowed)" in chosen.reason


def test_a_candidate_of_an_older_file_has_no_interval():
    values = asdict(made("int8", 2.0))
    assert candidate_from_json(values) == made("int8", 2.0)
    del values["drop_low"], values["drop_high"]
    assert candidate_from_json(values).drop_interval == ""


def test_of_two_that_are_equally_fast_the_more_accurate_is_chosen():
    _, chosen = choose([BASE, made("first", 2.02, 0.01), made("second", 2.0, 0.002), made("third", 1.8)], 0.01)
    assert chosen.name == "second"


def test_a_slower_candidate_is_never_chosen_however_accurate():
    candidates, chosen = choose([BASE, made("int8", 0.8, -0.1)], 0.01)
    assert chosen.name == BASELINE
    assert "slower than baseline" in candidates[1].refused


def test_a_candidate_slower_than_its_parent_is_refused_even_if_faster_than_the_original():
    slow = replace(made("int8", 1.2), speed_to_parent=SpeedRatio("fuse", 0.9, 0.88, 0.92, "SLOWER"))
    _, chosen = choose([BASE, made("fuse", 1.3), slow], 0.01)
    assert chosen.name == "fuse"


def test_without_labels_agreement_filters():
    bad = replace(made("int8", 2.0, agreement=0.3), score=None, drop=None)
    candidates, chosen = choose([replace(BASE, score=None), bad], 0.01)
    assert chosen.name == BASELINE
    assert "0.300 only" in candidates[1].refused


def test_what_was_not_measured_is_said():
    _, chosen = choose([BASE, made("int8", None)], 0.01)
    assert chosen.name == "int8"
    assert "not measured" in chosen.reason


def test_nothing_but_the_baseline():
    _, chosen = choose([BASE], 0.01)
    assert chosen.name == BASELINE


def test_the_front_holds_what_nothing_beats():
    candidates, _ = choose([BASE, made("fast", 2.0, 0.005), made("dominated", 1.5, 0.008)], 0.01)
    assert [one.name for one in candidates if one.on_front] == [BASELINE, "fast"]


@given(st.lists(st.tuples(st.floats(0.2, 5), st.floats(-0.1, 0.5)), max_size=6), st.floats(0, 0.1))
def test_the_chosen_one_is_never_slower_and_never_worse_than_allowed(pairs, max_drop):
    candidates = [BASE, *(made(f"c{i}", speed, drop) for i, (speed, drop) in enumerate(pairs))]
    judged, chosen = choose(candidates, max_drop)
    best = next(one for one in judged if one.name == chosen.name)
    assert best.refused == ""
    assert best.name == BASELINE or (best.speed.speedup > 1 and best.drop <= max_drop + 1e-9)


@pytest.mark.parametrize("drop", [0.01, 0.0100001])
def test_the_allowed_drop_is_the_last_that_passes(drop):
    _, chosen = choose([BASE, made("int8", 2.0, drop)], 0.01)
    assert (chosen.name == "int8") == (drop <= 0.01)
