"""Errors: one line of a length that can be read, whatever a file holds."""

from __future__ import annotations

from edgeopt.errors import EdgeoptError, NotFoundError


def test_a_name_of_thousands_of_characters_is_cut_in_the_middle():
    error = NotFoundError("decoder", "x" * 4000, ["yolox"])
    assert error.problem.startswith("no decoder named 'xxx")
    assert error.problem.endswith("xxx'")
    assert len(error.problem) < 1000
    assert str(error).endswith("-> choose from: yolox")


def test_a_line_of_a_usual_length_stays_whole():
    assert EdgeoptError("a" * 1000, remedy="b").problem == "a" * 1000
