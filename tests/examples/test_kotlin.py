"""The Kotlin example is Kotlin, and calls the names that the file for apps has."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "kotlin_litert"


def has_error(code: str) -> bool:
    kotlin, tree_sitter = pytest.importorskip("tree_sitter_kotlin"), pytest.importorskip("tree_sitter")
    parser = tree_sitter.Parser(tree_sitter.Language(kotlin.language()))
    return bool(parser.parse(code.encode()).root_node.has_error)


def test_the_file_is_kotlin():
    code = (FOLDER / "EdgeoptModel.kt").read_text("utf-8")
    assert not has_error(code)
    assert has_error(code.replace("fun run(", "fun run(("))


def test_the_page_calls_what_the_class_has():
    page, code = ((FOLDER / name).read_text("utf-8") for name in ("README.md", "EdgeoptModel.kt"))
    for name in ("inputBuffer(", "run("):
        assert f"model.{name}" in page
        assert f"fun {name}" in code
