"""The app's own stage: from digits in a frame to products in a database."""

from __future__ import annotations

import sqlite3
from typing import Any

_NAMES = ("apple", "bread", "cheese", "dates", "eggs", "flour", "grapes", "honey", "ice", "jam")


def _open() -> sqlite3.Connection:
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute("create table product (code integer primary key, name text)")
    base.executemany("insert into product values (?, ?)", enumerate(_NAMES))
    return base


_PRODUCTS = _open()


def find_products(crops: Any, digits: list[Any]) -> list[str]:
    """Return the products whose digits are in a frame, from left to right.

    Args:
        crops: What was cut out: `boxes` (n, 4) in pixels of the frame.
        digits: The classifier's answer for each.
    """
    found = []
    for row in crops.boxes[:, 0].argsort().tolist():
        code = int(digits[row].indices[0])
        found.append(_PRODUCTS.execute("select name from product where code = ?", (code,)).fetchone()[0])
    return found
