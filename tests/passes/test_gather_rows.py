from __future__ import annotations

import pytest
from fixture_models import assert_same, chosen_rows, run_pass

NAME = "gather_rows"


@pytest.mark.parametrize("axis", [1, -2])
def test_an_index_for_each_number_of_a_row_becomes_one_for_the_row(axis: int) -> None:
    before = chosen_rows(axis=axis)
    found, made = run_pass(NAME, before)
    assert (found, "GatherElements" in made.op_counts) == (1, False)
    assert_same(before, made)


@pytest.mark.parametrize(("wide", "axis"), [((1, 3, 2), 1), ((1, 3, 4), 2)])
def test_a_part_of_each_row_and_indices_along_a_row_are_left(wide: tuple[int, ...], axis: int) -> None:
    before = chosen_rows(wide, axis)
    found, made = run_pass(NAME, before)
    assert (found, made.op_counts) == (0, before.op_counts)
