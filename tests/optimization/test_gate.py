"""The exit code of `optimize`, whatever was optimized."""

from __future__ import annotations

import pytest

from edgeopt.optimization.report.gate import exit_code_of, noise_of, verdict_of

NOISY = "NOISY; pressure: tasks waited for a core 90.0% of the time"


@pytest.mark.parametrize(
    ("frames", "trust", "asked", "verdict"),
    [
        ("PASS", "TRUSTED", True, "PASS"),
        ("FAIL", NOISY, True, "NOISY"),
        ("FAIL", NOISY, False, "FAIL"),
        ("PASS", "INVALID; clock step: the system clock was set", True, "INVALID"),
        ("INCONCLUSIVE", "", True, "INCONCLUSIVE"),
        (None, NOISY, True, "INCONCLUSIVE"),
    ],
)
def test_noise_closes_a_gate_that_somebody_asked_for(frames, trust, asked, verdict):
    assert verdict_of(frames, trust, budget_asked=asked) == verdict


def test_an_interrupt_comes_before_all_and_open_accuracy_after_the_budget():
    assert noise_of("TRUSTED") == noise_of("") == ""
    assert exit_code_of(0, is_accuracy_open=False, was_cut=False) == 0
    assert exit_code_of(0, is_accuracy_open=True, was_cut=False) == 3
    assert exit_code_of(2, is_accuracy_open=True, was_cut=False) == 2
    assert exit_code_of(2, is_accuracy_open=True, was_cut=True) == 130
