"""Each common complaint is recognised from figures by a rule of its own, and good figures raise no alarm."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from edgeopt.measurement.generation.diagnosis import RULES, Symptoms, find_complaints
from edgeopt.measurement.generation.doubts import doubts_of_answers
from edgeopt.measurement.statistics.quantile import summarize

GOOD = Symptoms(
    model="m",
    network_ms=2.0,
    queue_ms=0.1,
    tiny_ttft_ms=25.0,
    tiny_prompt_tokens=5.0,
    prompt_tokens=512.0,
    ttft_ms=300.0,
    server_ttft_ms=295.0,
    tpot_ms=20.0,
    server_tpot_ms=19.0,
    burst_ratio=0.03,
    whole_ms=1580.0,
    output_tokens=64.0,
    tiny_after_ratio=12.0,
    gap_max_ms=45.0,
    short_prompt_tokens=128.0,
    short_ttft_ms=80.0,
    short_tpot_ms=19.0,
    load="closed:4",
    load_ttft_ms=450.0,
    load_ttft_p95_ms=700.0,
    load_queue_ms=40.0,
    load_tpot_ms=30.0,
    load_server_tpot_ms=29.0,
    load_burst_ratio=0.05,
    load_gap_max_ms=90.0,
    load_refused_ratio=0.0,
    tokens_per_s=45.0,
    load_tokens_per_s=110.0,
    good_ratio=1.0,
    load_good_ratio=0.99,
)
CASES = {
    "a server that starts something before each answer": (
        "tiny",
        "keep the model loaded",
        {"tiny_ttft_ms": 900.0, "ttft_ms": 1100.0, "server_ttft_ms": 1090.0, "whole_ms": 2400.0,
         "tiny_after_ratio": 0.4, "short_ttft_ms": 920.0},
    ),
    "a queue before each answer": (
        "tiny",
        "slots",
        {"tiny_ttft_ms": 400.0, "queue_ms": 370.0, "ttft_ms": 600.0, "server_ttft_ms": 230.0, "whole_ms": 1900.0},
    ),
    "a hidden prompt": (
        "tiny",
        "hidden prompt",
        {"tiny_ttft_ms": 500.0, "tiny_prompt_tokens": 900.0, "ttft_ms": 700.0, "server_ttft_ms": 690.0},
    ),
    "a guard before the server counts": (
        "tiny",
        "guards",
        {"network_ms": 2.0, "tiny_ttft_ms": 330.0, "ttft_ms": 600.0, "server_ttft_ms": 280.0},
    ),
    "a far server that says what it takes": (
        "far",
        "connections open",
        {"network_ms": 180.0, "tiny_ttft_ms": 210.0, "ttft_ms": 420.0, "server_ttft_ms": 60.0, "whole_ms": 1700.0},
    ),
    "a far server that says nothing": (
        "far",
        "nearer",
        {"network_ms": 250.0, "tiny_ttft_ms": 280.0, "ttft_ms": 400.0, "server_ttft_ms": None, "queue_ms": None},
    ),
    "a proxy that holds the stream back": (
        "held back",
        "proxy_buffering off",
        {"ttft_ms": 1560.0, "whole_ms": 1580.0, "tpot_ms": 0.3, "gap_max_ms": 2.0, "tiny_ttft_ms": 400.0,
         "tiny_after_ratio": 0.01, "server_ttft_ms": None, "short_tpot_ms": 0.3, "short_ttft_ms": 1300.0},
    ),
    "a long prompt": (
        "prefill",
        "begin alike",
        {"ttft_ms": 4000.0, "server_ttft_ms": 3990.0, "prompt_tokens": 6000.0, "short_ttft_ms": 90.0,
         "whole_ms": 5200.0, "load_ttft_p95_ms": 6000.0},
    ),
    "a machine that stops": ("stutter", "swapped", {"gap_max_ms": 900.0, "load_gap_max_ms": 1000.0}),
    "prompts of others": ("stutter", "chunked prefill", {"load_gap_max_ms": 800.0}),
    "a queue at the peak": (
        "peak",
        "slots",
        {"load_ttft_ms": 5000.0, "load_ttft_p95_ms": 9000.0, "load_queue_ms": 4600.0},
    ),
    "a server that refuses at the peak": ("peak", "second machine", {"load_refused_ratio": 0.2}),
    "a cache that is copied": ("big", "cache", {"short_tpot_ms": 12.0, "tpot_ms": 20.0}),
    "attention over long prompts": (
        "big",
        "begin alike",
        {"short_ttft_ms": 200.0, "ttft_ms": 1900.0, "server_ttft_ms": 1890.0, "whole_ms": 4900.0, "tpot_ms": 24.0},
    ),
    "a busy machine": ("distrust", "--seconds 60", {"doubts": ("3 of 4",), "load_gap_max_ms": 900.0}),
    "an answer that comes in one read": ("distrust", "94% of an answer", {"burst_ratio": 0.94, "tpot_ms": 0.01}),
    "the same where the server says nothing": (
        "distrust",
        "from another machine",
        {"load_burst_ratio": 0.6, "load_server_tpot_ms": None},
    ),
    "tokens that come faster than they were written": ("distrust", "wrote one in 50 ms", {"server_tpot_ms": 50.0}),
    "tokens that come far later than they were written": ("distrust", "wrote one in 9 ms", {"server_tpot_ms": 9.0}),
    "slots that cost each one its time": (
        "live",
        "fewer slots",
        {"load_tpot_ms": 160.0, "load_server_tpot_ms": 158.0, "load_good_ratio": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_complaint_is_recognised_with_its_cause_and_what_to_do(case):
    rule, told, figures = CASES[case]
    found = find_complaints(replace(GOOD, **figures))
    assert [one.rule for one in found] == [rule], found
    assert told in f"{found[0].what} {found[0].do}"
    assert found[0].evidence
    assert any(letter.isdigit() for letter in found[0].evidence)


def test_what_is_counted_is_told_of_figures_that_cannot_be_trusted():
    found = find_complaints(replace(GOOD, doubts=("other processes used 1.2 cores",), load_refused_ratio=0.2))
    assert [one.rule for one in found] == ["distrust", "peak"]


def test_few_answers_and_wide_intervals_are_doubts():
    def told(*values_ms: float, count: float = 1.0) -> list[str]:
        times = summarize(np.array([1e6 * one for one in values_ms], np.int64))
        return list(doubts_of_answers([("TTFT", times, count)]))

    steady, apart = [100.0 + i for i in range(12)], [100.0 * (i % 4 + 1) for i in range(12)]
    assert told(*steady) == []
    assert told(*steady[:3]) == ["TTFT is known of 3 answers"]
    assert told(*apart)[0].startswith("the median of TTFT lies from ")
    assert told(*(one / 100 for one in apart)) == []  # nobody notices milliseconds
    assert told(*(one / 100 for one in apart), count=64.0)


def test_good_figures_raise_no_alarm():
    assert find_complaints(GOOD) == ()
    quick = {f.name: 0.01 * value for f in fields(GOOD) if isinstance(value := getattr(GOOD, f.name), float)}
    counts = {name: getattr(GOOD, name) for name in quick if not name.endswith("_ms")}
    assert find_complaints(replace(GOOD, **{**quick, **counts})) == ()


@pytest.mark.parametrize("scale", [0.3, 0.7, 1.0, 1.5])
def test_a_slower_or_quicker_machine_with_the_same_shape_raises_none(scale):
    times = {f.name: scale * value for f in fields(GOOD) if f.name.endswith("_ms") and (value := getattr(GOOD, f.name))}
    assert find_complaints(replace(GOOD, **times)) == ()


@pytest.mark.parametrize("name", [one.name for one in fields(Symptoms)])
def test_a_figure_that_was_not_measured_is_no_error_and_no_alarm(name):
    missing = "" if isinstance(getattr(GOOD, name), str) else None
    assert find_complaints(replace(GOOD, **{name: missing})) == ()
    for _, _, figures in CASES.values():
        find_complaints(replace(GOOD, **figures, **({} if name in figures else {name: missing})))
    assert find_complaints(Symptoms()) == ()


def test_every_rule_is_tried():
    tried = {rule(replace(GOOD, **figures)) is not None and rule for _, _, figures in CASES.values() for rule in RULES}
    assert tried - {False} == set(RULES)
