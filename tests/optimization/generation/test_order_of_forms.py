"""Which forms are put together, and which are not begun where a time limit leaves no time for them."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.optimization.generation import optimize, writer_run
from edgeopt.optimization.generation.contest import Entrant
from edgeopt.optimization.generation.forms import split
from edgeopt.optimization.generation.writer_run import Made
from edgeopt.system.processes import time_limit
from edgeopt.system.processes.time_limit import OutOfTime, limited

FASTEST_FIRST = ("bf16+openvino", "w8a8-w4", "w8a8", "w4", "w8")


def entrant(name: str, **more: Any) -> Entrant:
    return Entrant(name, name, name.partition("+")[0], Path(name), **more)


@pytest.fixture
def contest() -> SimpleNamespace:
    """Prompts and tokens are fastest in the order of `FASTEST_FIRST`."""

    def fastest(entrants: list[Entrant], part: str) -> Entrant | None:
        del part
        return min(entrants, key=lambda each: FASTEST_FIRST.index(each.name), default=None)

    times = {"entering_s": lambda entrants: 1.0, "has_time": lambda entrants: True}
    return SimpleNamespace(fastest=fastest, tried=set(), **times)


def test_two_graphs_are_made_of_single_forms_on_one_engine_alone(contest, monkeypatch):
    entered = list[Entrant]()
    monkeypatch.setattr(split, "_kept", lambda contest, entrants: entrants)
    monkeypatch.setattr(split, "enter_pair", lambda contest, place, entrant, *_: entered.append(entrant) or [])
    entrants = [
        entrant("w8a8"),
        entrant("w8"),
        entrant("w4"),
        entrant("w8a8-w4", prompts_by="w8a8", tokens_by="w4"),
        entrant("bf16+openvino", engine="openvino"),
    ]
    split.enter_split(contest, SimpleNamespace(file_of=Path), entrants)
    assert [(each.prompts_by, each.tokens_by) for each in entered] == [("w8a8", "w4")]
    assert split.fastest_for_tokens(contest, entrants).name == "w4"


def test_prompts_may_be_of_a_form_that_is_not_decided_where_one_form_is_the_fastest_that_is_kept(contest, monkeypatch):
    entered = list[Entrant]()
    monkeypatch.setattr(split, "enter_pair", lambda contest, place, entrant, *_: entered.append(entrant) or [])
    entrants = [entrant("w8a8", turns=[None]), entrant("w8", turns=[None]), entrant("w4", turns=[None], out="LOST")]
    contest.word = lambda each: Word.KEPT if each.name == "w8" else Word.NOT_DECIDED
    assert split.enter_split(contest, SimpleNamespace(file_of=Path), entrants) == []
    assert [(each.prompts_by, each.tokens_by) for each in entered] == [("w8a8", "w8")]
    contest.has_time = lambda entrants: False
    assert split.enter_split(contest, SimpleNamespace(file_of=Path), entrants) == []  # which is fastest is not known
    contest.has_time = lambda entrants: True
    (note,) = split.enter_split(contest, SimpleNamespace(file_of=Path), entrants[1:])
    assert note.detail == "w8 is the fastest form for prompts and for tokens: no second graph"


def test_a_form_is_not_begun_that_would_not_be_judged_if_it_took_as_long_as_one_before(contest, monkeypatch):
    clock = SimpleNamespace(now_s=monotonic())
    for module in (writer_run, time_limit):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now_s)
    made = Made()
    with limited(clock.now_s + 100):
        with made.making("w4", contest, is_known=False):
            clock.now_s += 60
        with made.making("w8a8+parts", contest, is_known=True):
            pass
        assert made.longest_s == pytest.approx(60)
        with pytest.raises(OutOfTime), made.making("w4+long", contest, is_known=False):
            pass
        with made.making("w4+mixed", contest, is_known=True):  # it lies on disk: it is judged alone
            pass
    assert made.told_missing(["w4+long"]) == "not made, as no time was left to judge them: w4+long"


def test_a_limit_that_ends_among_what_is_put_together_is_told(contest, monkeypatch):
    def out_of_time(*_: object) -> None:
        raise OutOfTime

    monkeypatch.setattr(optimize, "enter_split", lambda *_: [])
    monkeypatch.setattr(optimize, "enter_elsewhere", out_of_time)
    made = Made()
    with pytest.raises(OutOfTime):
        optimize._enter_together(contest, SimpleNamespace(), made)
    (note,) = made.more
    assert note.detail == "time limit reached: not all two graphs and forms by OpenVINO were tried"
