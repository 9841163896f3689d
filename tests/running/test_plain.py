"""The return value of an app's function, as JSON can hold it, and in a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgeopt.running.plain import as_text, plain


@dataclass
class Product:
    name: str
    price: float


ITSELF: list[object] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("answer", "told", "text"),
    [
        (None, None, "nothing"),
        ([], [], "nothing"),
        (["apple", "bread"], ["apple", "bread"], "apple, bread"),
        ({"a": np.float32(1.5), "b": (np.arange(2), {3})}, {"a": 1.5, "b": [[0, 1], [3]]}, "a 1.5, b 0, 1, 3"),
        ([Product("jam", 1 / 3)], [{"name": "jam", "price": 1 / 3}], "name jam, price 0.3333"),
        ({7: float("nan"), "inf": np.float64("inf")}, {"7": None, "inf": None}, "7 n/a, inf n/a"),
        (np.zeros((4, 5, 3), np.uint8), {"height": 4, "width": 5}, "height 4, width 5"),
        (True, True, "yes"),
        (b"raw", "b'raw'", "b'raw'"),
    ],
)
def test_an_answer_is_plain_and_a_line(answer, told, text):
    assert plain(answer) == told
    assert as_text(answer) == text


@pytest.mark.parametrize(
    "answer", [ITSELF, Path("x"), {"a": np.array([np.nan, 1.0])}, np.datetime64("2026-01-01", "ns")]
)
def test_whatever_it_is_it_can_be_written(answer):
    json.dumps(plain(answer), allow_nan=False)
