"""Where the columns of an output lie, and with what each is compared."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.graph.columns import as_rows, column_axis, statistics_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5,), None),
        ((), None),
        ((0, 4), None),
        ((1, 4), 1),
        ((16, 4), 1),
        ((1, 1000, 1, 1), 1),
        ((1, 1, 1, 1000), 3),
        ((1, 300, 6), 2),
        ((1, 1, 200, 7), 3),
        ((1, 84, 8400), 1),
        ((4, 84, 8400), 1),
        ((1, 256, 7, 7), 1),
        ((1, 3, 480, 640), 1),
        ((1, 480, 640, 3), 3),
        ((1, 64, 80, 80), 1),
        ((1, 8, 8, 512), 3),
        ((1, 3, 80, 80, 85), 4),
        ((1, 3, 85, 80, 80), 2),
    ],
)
def test_columns_lie_where_the_shape_says(shape, axis):
    assert column_axis(shape) == axis


def test_the_samples_tell_rows_from_columns_where_there_are_fewer_rows():
    tokens = RNG.normal(0, 1, (1, 30, 64)) * np.geomspace(0.1, 10, 64)
    head = RNG.normal(0, 1, (1, 30, 64)) * np.geomspace(0.1, 10, 30)[:, None]
    assert column_axis(tokens.shape, [tokens]) == 2
    assert column_axis(head.shape, [head]) == 1
    assert as_rows(head, 1).shape == (64, 30)


def test_a_column_is_compared_with_its_own_variance_and_rounding_with_the_whole():
    rows = RNG.normal(0, 1, (500, 5)) * [300, 0.1, 1e-6, 1e-5, 0] + [0, 5, 0, 100, 0]
    scales = statistics_of([rows[:100], rows[100:]]).scales(is_table=True)
    whole = np.square(rows).mean()
    assert scales == pytest.approx([rows[:, 0].var(), rows[:, 1].var(), whole, 100**2, whole], rel=1e-3)


def test_a_channel_that_is_hardly_ever_active_is_compared_with_the_others():
    rows = RNG.normal(0, 1, (500, 40))
    rows[:, 7] *= 1e-3
    assert statistics_of([rows]).scales(is_table=False)[7] == pytest.approx(0.25, rel=0.2)
    assert statistics_of([rows]).scales(is_table=True)[7] == pytest.approx(1e-6, rel=0.2), "a table holds many units"
