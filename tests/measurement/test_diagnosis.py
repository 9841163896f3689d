from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeopt.measurement.bench.finding import Finding, first_command, show_findings
from edgeopt.measurement.frames.attribution import Attribution, StageShare
from edgeopt.measurement.frames.diagnosis import RULES, explain, find_all
from edgeopt.measurement.frames.figures import (
    AnswerGrowth,
    Figures,
    growth_with_answers,
    make_figures,
    rank_correlation,
)
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.models.poisson import Poisson
from edgeopt.measurement.resources.trust import Reason, Trust, TrustLevel
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import judge_budget
from edgeopt.measurement.statistics.trend import Slope, Steadiness, Warmup

MS = 1_000_000


def shares(tail: dict[str, float] | None = None, **mean: float) -> dict[str, StageShare]:
    return {name: StageShare(value, (tail or {}).get(name, value)) for name, value in mean.items()}


def trust(level: TrustLevel, *names: str) -> Trust:
    return Trust(level, tuple(Reason(name, level, 2.0, 1.0, f"{name} was seen") for name in names))


BALANCED = shares(preprocess=0.25, execute=0.28, postprocess=0.25, upload=0.05, download=0.05)
NOISY = trust(TrustLevel.NOISY, "steal")
BAD = Attribution(valid=False, residual_ns=3e6, tolerance_ns=5e4, n=40)
UNSTEADY = Warmup(10, Steadiness.NOT_STEADY, ("times drift by +9.0% over the run",))
GROWTH = AnswerGrowth("postprocess", 0.9, 1.0, 4.0, 300)
SHORT = judge_budget(np.full(20, 5 * MS), 10.0)

CASES = {
    "distrust": [
        ({"trust": NOISY}, "steal was seen"),
        ({"trust": trust(TrustLevel.INVALID, "send lag")}, "INVALID: do not trust these figures (send lag)"),
        ({"trust": trust(TrustLevel.TRUSTED)}, None),
        ({"trust": Trust(TrustLevel.NOISY, ())}, None),
    ],
    "attribution": [
        ({"attribution": BAD}, "reading the clock between stages costs"),
        ({"attribution": replace(BAD, valid=True)}, None),
        ({"attribution": replace(BAD, n=0)}, None),
    ],
    "unsteady": [
        ({"warmup": UNSTEADY}, "drift by +9.0%"),
        ({"warmup": Warmup(10, Steadiness.STEADY)}, None),
    ],
    "provider fallback": [
        (
            {"provider": "QNN", "nodes_by_provider": {"QNN": 0.7, "CPU": 0.3}, "target": "npu"},
            "edgeopt inspect m.onnx --target npu",
        ),
        ({"provider": "QNN", "nodes_by_provider": {"QNN": 0.99, "CPU": 0.01}}, None),
        ({"provider": "QNN"}, None),
        ({"nodes_by_provider": {"CPU": 1.0}}, None),
    ],
    "oversubscription": [
        ({"threads": 8, "cores": 2.5}, "edgeopt bench m.onnx --threads 2"),
        ({"threads": 8, "cores": 0.5}, "--threads 1"),
        ({"threads": 2, "cores": 2.0}, None),
        ({"threads": 8}, None),
        ({"cores": 1.0}, None),
    ],
    "queue": [
        (
            {
                "queue_wait_p50_ms": 200,
                "response_p50_ms": 220,
                "offered_per_s": 60,
                "capacity_per_s": 40,
                "load": FixedRate(60),
            },
            "--load fps:36",
        ),
        (
            {
                "queue_wait_p50_ms": 200,
                "response_p50_ms": 220,
                "offered_per_s": 60,
                "capacity_per_s": 40,
                "load": Poisson(20),
                "streams": 3,
            },
            "--load poisson:12",
        ),
        (
            {
                "queue_wait_p50_ms": 200,
                "response_p50_ms": 220,
                "utilisation": 0.99,
                "queue": "fifo",
                "offered_per_s": 30,
            },
            "edgeopt bench m.onnx --queue latest",
        ),
        ({"queue_wait_p50_ms": 20, "response_p50_ms": 40, "utilisation": 0.5}, "Frames arrive in bursts"),
        (
            {"dropped_ratio": 0.4, "utilisation": 0.99, "queue": "latest"},
            "served in time (40.0% of the frames are dropped",
        ),
        ({"dropped_ratio": 0.01, "utilisation": 0.99, "queue": "latest"}, None),
        ({"queue_wait_p50_ms": 1, "response_p50_ms": 40, "utilisation": 0.99}, None),
        ({"queue_wait_p50_ms": 20}, None),
    ],
    "load": [
        ({"shares": shares(load=0.6, execute=0.4), "stage_p50_ms": {"load": 12.0}}, "12 ms, 60% of the frame"),
        ({"shares": shares(load=0.4, execute=0.6)}, None),
        ({"shares": {}}, None),
    ],
    "preprocess": [
        ({"shares": shares(preprocess=0.5, execute=0.4)}, "feed frames that have the model's own size"),
        ({"shares": shares(preprocess=0.29, execute=0.28)}, None),
    ],
    "decode": [
        ({"shares": shares(prefill=0.3, decode=0.6)}, "The stage decode takes the largest part"),
        ({"shares": shares(prefill=0.6, decode=0.3)}, None),
    ],
    "postprocess": [
        ({"shares": shares(postprocess=0.5, execute=0.4)}, "raise score_threshold"),
        ({"shares": shares(postprocess=0.4, execute=0.5)}, None),
    ],
    "transfer": [
        ({"shares": shares(upload=0.15, download=0.1, execute=0.29)}, "upload alone takes 15% of the frame"),
        ({"shares": shares(upload=0.05, download=0.05, execute=0.29)}, None),
    ],
    "execute": [
        (
            {"shares": shares(execute=0.7), "target": "cpu"},
            "edgeopt optimize m.onnx --target cpu",
        ),
        ({"shares": shares(execute=0.29, overhead=0.28)}, None),
        ({"shares": shares(execute=0.4, overhead=0.6)}, None),
    ],
    "growth": [
        (
            {"shares": BALANCED, "growth": GROWTH},
            "1 ms where few things are found, 4 ms where many are; rank correlation 0.90",
        ),
        ({"shares": BALANCED, "growth": replace(GROWTH, correlation=0.3)}, None),
        ({"shares": BALANCED, "growth": replace(GROWTH, many_ms=1.1)}, None),
        ({"shares": shares(postprocess=0.05), "growth": GROWTH}, None),
        ({"growth": GROWTH}, None),
        ({"shares": BALANCED}, None),
    ],
    "tail": [
        (
            {
                "shares": shares({"postprocess": 0.7}, postprocess=0.2, execute=0.28),
                "service_p50_ms": 10.0,
                "service_p99_ms": 40.0,
            },
            "p99 is 4.0 times p50; postprocess takes 70% of slow frames and 20% of all frames",
        ),
        (
            {
                "shares": shares({"postprocess": 0.7}, postprocess=0.2),
                "service_p50_ms": 10.0,
                "service_p99_ms": 12.0,
            },
            None,
        ),
        ({"shares": BALANCED, "service_p50_ms": 10.0, "service_p99_ms": 40.0}, None),
        ({"service_p50_ms": 10.0, "service_p99_ms": 40.0}, None),
    ],
    "sustained": [
        ({"sustained_low": 1.2, "sustained_ratio": 1.3}, "1.30 times as long as the first, at least 1.20"),
        ({"sustained_low": 0.99, "sustained_ratio": 1.3}, None),
    ],
    "first run": [
        ({"first_ms": 634.0, "steady_p50_ms": 1.9}, "634 ms against 1.9 ms later"),
        ({"first_ms": 6.0, "steady_p50_ms": 1.9}, None),
        ({"first_ms": 60.0, "steady_p50_ms": 40.0}, None),
        ({"first_ms": 60.0}, None),
    ],
    "cold start": [
        ({"cold_first_ms": 1000.0, "cold_session_ms": 800.0}, "800 ms of the 1000 ms"),
        ({"cold_first_ms": 1000.0, "cold_session_ms": 300.0}, None),
    ],
    "memory": [
        ({"memory_growth": Slope(40.0, 30.0, 50.0, 40), "memory_grown_mib": 6.6}, "40 MiB an hour, at least 30"),
        ({"memory_growth": Slope(40.0, -3.0, 50.0, 40), "memory_grown_mib": 6.6}, None),
        ({"memory_growth": Slope(40.0, 30.0, 50.0, 40), "memory_grown_mib": 0.1}, None),
        ({"memory_growth": Slope(40.0, 30.0, 50.0, 40)}, None),
    ],
    "budget": [
        ({"budget": SHORT}, f"--frames {SHORT.n + SHORT.frames_needed}"),
        ({"budget": judge_budget(np.full(1000, 5 * MS), 10.0)}, None),
    ],
}


def explained(figures: Figures) -> str:
    return explain(figures, find_all(figures))


def only(**known: object) -> Figures:
    return Figures(model="m.onnx", **known)


@pytest.mark.parametrize(
    ("rule", "known", "said"), [(rule, known, said) for rule, cases in CASES.items() for known, said in cases]
)
def test_a_rule_fires_on_its_evidence_and_only_then(rule: str, known: dict, said: str | None):
    found = {one.rule: one for one in find_all(only(**known))}
    if said is None:
        assert rule not in found
    else:
        assert said in f"{found[rule]} {found[rule].do}; {found[rule].command}"


def test_every_rule_has_cases_and_none_fires_without_figures():
    assert find_all(Figures()) == ()
    known = [only(**known) for cases in CASES.values() for known, said in cases if said]
    assert {one.rule for figures in known for one in find_all(figures)} == CASES.keys()
    assert {rule for rule in RULES for figures in known if rule(figures)} == set(RULES)


def test_a_finding_quotes_a_command_of_edgeopt():
    for cases in CASES.values():
        for known, said in cases:
            for found in find_all(only(**known)) if said else ():
                assert found.command.startswith("edgeopt ") or (not found.command and found.do)
                assert "edgeopt " not in found.do
                assert ("m.onnx" in found.command) == bool(found.command)
                assert found.evidence


def test_the_next_command_is_one_that_needs_nothing_else():
    found = [Finding("a", "A", "1", "mend it", "edgeopt bench a"), Finding("b", "B", "2", "", "edgeopt bench b")]
    assert first_command(found) == "edgeopt bench b"
    assert first_command(found[:1]) == ""
    assert [(one.label, one.text, one.is_command) for one in show_findings(found)] == [
        ("why", "A", False),
        ("do", "mend it", False),
        ("run", "edgeopt bench a", True),
        ("why", "B", False),
        ("run", "edgeopt bench b", True),
    ]


def test_a_diagnosis_says_where_and_why():
    text = explained(
        only(
            shares=shares({"postprocess": 0.6}, execute=0.7, postprocess=0.2),
            service_p50_ms=12.34,
            service_p99_ms=30.0,
            threads=4,
            cores=2.0,
            target="cpu",
        )
    )
    assert text == (
        "A frame takes 12.3 ms (median), 70% in execute and 20% in postprocess. "
        "The engine has more threads than cores (4 threads on 2 cores). "
        "The model itself takes the largest part of a frame (70% of the frame). "
        "The stage postprocess makes the slow frames slow (p99 is 2.4 times p50; postprocess takes 60% of slow frames "
        "and 20% of all frames)."
    )


def test_a_healthy_run_gets_one_sentence_and_no_figures_get_none():
    calm = only(shares=BALANCED, service_p50_ms=8.0)
    assert explained(calm) == (
        "A frame takes 8 ms (median), 28% in execute and 25% in preprocess. Nothing else stands out."
    )
    assert explained(Figures()) == ""


def test_what_makes_figures_void_comes_first():
    found = find_all(only(trust=NOISY, shares=shares(execute=0.9), threads=8, cores=1.0))
    assert [one.rule for one in found] == ["distrust", "oversubscription", "execute"]


def samples(n: int = 200, **columns: object) -> Samples:
    boxes = np.arange(n) % 20
    times = np.stack([np.full(n, 5 * MS), MS + boxes * 200_000], axis=1)
    frames = times.sum(axis=1) + 10_000
    made = {"n_out": boxes, "warmup": np.arange(n) < 20} | columns
    return Samples(("execute", "postprocess"), times, frames, **made)


def test_figures_come_from_samples_and_from_what_is_known_beside_them():
    figures = make_figures(samples(), model="m.onnx", threads=2)
    assert figures.service_p50_ms == pytest.approx(7.91, abs=0.2)
    assert figures.first_ms == pytest.approx(6.01)
    assert figures.stage_p50_ms["execute"] == 5.0
    assert figures.growth.stage == "postprocess"
    assert figures.growth.correlation == pytest.approx(1.0)
    assert figures.growth.ratio > 2
    assert (figures.threads, figures.attribution, figures.queue_wait_p50_ms) == (2, None, None)
    assert figures.service_p99_ms is None  # 180 frames say nothing about a p99
    assert "growth" in {one.rule for one in find_all(figures)}


def test_figures_of_an_open_loop_hold_wait_and_response():
    n = 200
    intended = np.arange(n) * 30 * MS
    run = samples(intended_ns=intended, started_ns=intended + 4 * MS, done_ns=intended + 12 * MS)
    figures = make_figures(run)
    assert (figures.queue_wait_p50_ms, figures.response_p50_ms) == (4.0, 12.0)
    assert figures.utilisation == pytest.approx(7.9 / 30, abs=0.01)
    assert make_figures(run, workers=2).utilisation == pytest.approx(figures.utilisation / 2)
    assert figures.dropped_ratio == 0.0


def test_figures_of_no_frames_hold_only_what_is_known():
    assert make_figures(samples(20), threads=2) == Figures(threads=2)


def test_few_frames_or_few_counts_say_nothing_about_growth():
    assert growth_with_answers(samples(40)) is None
    assert growth_with_answers(samples(n_out=np.arange(200) % 3)) is None
    assert growth_with_answers(samples(n_out=None)) is None
    assert growth_with_answers(samples(n_out=np.full(200, -1))) is None


def test_rank_correlation_knows_order_and_nothing_else():
    x = np.arange(20.0)
    assert rank_correlation(x, np.exp(x)) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    assert rank_correlation(x, np.ones(20)) == 0.0
    assert AnswerGrowth("postprocess", 1.0, 0.0, 1.0, 30).ratio == 1.0
