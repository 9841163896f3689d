"""Where in a picture an answer lies, as a task says it."""

import numpy as np

from edgeopt.tasks._places import CELL, places_of, spread_over


def test_each_box_spreads_its_amount_over_the_cells_that_it_touches():
    boxes = np.array([[0, 0, 2 * CELL, CELL], [CELL, 0, CELL + 3, 3 * CELL]], np.float32)
    found = spread_over(boxes, np.array([1.0, 3.0]), (3 * CELL, 4 * CELL))
    np.testing.assert_allclose(found, [[0.5, 1.5, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]], atol=1e-12)


def test_what_lies_outside_or_nowhere_counts_nothing():
    outside = [[-50, -50, -10, -10], [1e30, 0, 2e30, 9], [np.nan, 0, 9, 9], [30, 0, 20, 9]]
    size = (4 * CELL, 4 * CELL)
    assert not spread_over(np.array(outside, np.float32), np.ones(4), size).any()
    whole = spread_over(np.array([[-50, -50, 500, 500]], np.float32), np.array([1.6]), size)
    np.testing.assert_allclose(whole, np.full((4, 4), 0.1))


def test_a_task_that_says_nothing_is_asked_for_no_outputs():
    def outputs():
        raise AssertionError("the model need not run")
        yield {}

    assert places_of(object(), outputs()) == ()
