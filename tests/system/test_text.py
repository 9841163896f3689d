"""Durations and numbers are written as a person would type them, and read back as they were."""

from __future__ import annotations

import pytest

from edgeopt.system.text import format_budget, parse_duration_s, typed_duration


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (33, "33ms"),
        (1000 / 30, "33.33ms"),
        (0.5, "500us"),
        (0.0001, "0.1us"),
        (999.99, "1000ms"),
        (1500, "1.5s"),
        (10_000, "10s"),
        (90_000, "90s"),
        (300_000, "5m"),
        (7_200_000, "2h"),
        (12_345_678, "12346s"),
        (30 * 86_400_000, "720h"),
    ],
)
def test_a_duration_is_short_and_reads_back(ms, text):
    assert typed_duration(ms) == text
    assert parse_duration_s(text) * 1000 == pytest.approx(ms, rel=1e-3)


def test_a_budget_has_no_exponent():
    numbers = (33.333, 10_000, 1e-7, 123_456.7, 0.25)
    assert [format_budget(one) for one in numbers] == ["33.33", "10000", "0.0000001", "123457", "0.25"]
