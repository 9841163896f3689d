"""The Swift example is Swift, calls the names that it has, and reads the keys that `edgeopt.json` has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from edgeopt.executors.coreml.conversion import FLOAT_FORMS, INTEGER_FORMS
from edgeopt.recipes.inputs.preprocess import Anchor, Colour, Input, Preprocess, Resize
from edgeopt.recipes.recipe import Postprocess, Recipe

FOLDER = Path(__file__).parents[2] / "examples" / "swift_coreml"
PAGE, CODE = ((FOLDER / name).read_text("utf-8") for name in ("README.md", "EdgeoptModel.swift"))
READ = {"Recipe": Recipe, "Input": Input, "Preprocess": Preprocess, "Postprocess": Postprocess}


def has_error(code: str) -> bool:
    swift, tree_sitter = pytest.importorskip("tree_sitter_swift"), pytest.importorskip("tree_sitter")
    parser = tree_sitter.Parser(tree_sitter.Language(swift.language()))
    return bool(parser.parse(code.encode()).root_node.has_error)


def test_the_file_is_swift():
    assert not has_error(CODE)
    assert has_error(CODE.replace("func run(", "func run(("))


def test_the_page_calls_what_the_class_has():
    for name in ("run(", "boxes(", "labels("):
        assert f"model.{name}" in PAGE
        assert f"func {name}" in CODE


@pytest.mark.parametrize("name", READ)
def test_it_reads_keys_that_the_file_has(name):
    block = re.search(rf"struct {name}: Decodable {{(.*?)\n    }}", CODE, re.DOTALL)
    assert block is not None
    keys = {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key) for key in re.findall(r"let (\w+):", block[1])}
    assert keys
    assert keys <= {field.name for field in fields(READ[name])}


def test_it_knows_the_words_of_a_recipe():
    resizes = set(re.findall(r'case "(\w+)"', CODE))
    assert resizes == {str(mode) for mode in Resize} - {"line"}
    assert f'anchor == "{Anchor.CENTRE}"' in CODE
    assert f'colour == "{Colour.RGB}"' in CODE


def test_the_page_names_every_package():
    for form in (*FLOAT_FORMS, *INTEGER_FORMS):
        assert f"`{form.file}`" in PAGE
