"""Numbers and words that the command refuses are refused from Python too, in one line."""

from __future__ import annotations

import pytest

import edgeopt
from edgeopt.errors import EdgeoptError
from edgeopt.workloads.generation import KIND as GENERATION


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"port": 70000}, "port is 70000"),
        ({"slots": 0}, "slots is 0"),
        ({"time_limit_s": -1.0}, "time_limit_s is -1"),
        ({"tpot_ms": float("nan")}, "tpot_ms is nan"),
    ],
)
def test_serve_refuses_numbers_out_of_their_range(wish, told):
    with pytest.raises(EdgeoptError, match=told):
        edgeopt.serve("tiny_lm", **wish)


@pytest.mark.parametrize(
    ("wish", "told"), [({"output_tokens": 0}, "output_tokens is 0"), ({"long": "cut"}, "long is 'cut'")]
)
def test_run_refuses_numbers_and_words_that_it_does_not_take(wish, told):
    with pytest.raises(EdgeoptError, match=told):
        edgeopt.run("tiny_lm", prompt="The", **wish)


def test_one_text_stands_for_a_row_of_them():
    assert GENERATION.make_options("run", {"stop": "x"}).stop == ("x",)
