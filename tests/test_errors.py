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


def test_of_hundreds_of_names_a_few_are_told():
    error = NotFoundError("layer", "nosuch", [f"/stage{i:03}/Conv" for i in range(330)])
    assert error.remedy.startswith("choose from: /stage000/Conv, ")
    assert error.remedy.endswith("/stage039/Conv and 290 more")
