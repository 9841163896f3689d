"""The order in which language models take turns."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from edgeopt.measurement.generation.sides.turns import _order


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_model_has_every_place_and_follows_itself_equally_often(count):
    names = list("abcde"[:count])
    rounds = [_order(names, number) for number in range(2 * count * 4)]
    assert all(sorted(order) == names for order in rounds)
    places = Counter((name, place) for order in rounds for place, name in enumerate(order))
    assert len(set(places.values())) == 1
    assert len(places) == count * count
    within = Counter(before[-1] for before, after in list(pairwise(rounds))[::2] if before[-1] == after[0])
    assert len(set(within.values())) == 1
    assert {*within} == {*names}
