"""Defaults stand once: what help describes in words is what the library does where nobody says."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import edgeopt
from edgeopt.recipes.default_limits import MAX_DROP, MAX_RISE
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.system.declared.options import options_of
from edgeopt.workloads import kinds
from edgeopt.workloads.generation.options import GenerationRun

PACKAGE = Path(edgeopt.__file__).parent
OF_LIBRARY = {each.name: each.default for options in (Sampling, AnswerOptions) for each in fields(options)}
"""Defaults of an answer from Python."""
DRAWN = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed")


def number_in(text: str) -> float:
    """Return the first number of a text; `5%` is 0.05."""
    (number, percent) = re.findall(r"([0-9.]+)(%?)", text)[0]
    return float(number) / (100 if percent else 1)


@pytest.mark.parametrize("name", DRAWN)
def test_help_says_of_an_answer_what_the_library_does(name):
    shown = {field: option.shown_default for field, option in options_of(GenerationRun)}[name]
    assert number_in(shown) == OF_LIBRARY[name]


def test_a_number_that_help_describes_is_no_second_literal():
    """A `shown=` with a number in it is made of the constant that decides, or is held by the test above."""
    literal: dict[str, str] = {}
    for path in PACKAGE.rglob("options.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "option":
                continue
            shown = next((each.value for each in node.keywords if each.arg == "shown"), None)
            if isinstance(shown, ast.Constant) and re.search(r"\d", str(shown.value)):
                literal[f"{path.relative_to(PACKAGE)}:{node.lineno}"] = str(shown.value)
    assert len(literal) <= len(DRAWN), literal


@pytest.mark.parametrize("value", [MAX_DROP, MAX_RISE])
def test_what_may_be_lost_is_a_default_in_one_place(value):
    """Every other field or parameter of that name takes the constant."""
    names = {"max_drop", "max_rise", "accuracy_drop", "max_miss_ratio"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            pairs = []
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                pairs = [(node.target.id, node.value)]
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = [*node.args.posonlyargs, *node.args.args]
                with_default = named[len(named) - len(node.args.defaults) :]
                pairs = [(each.arg, default) for each, default in zip(with_default, node.args.defaults, strict=True)]
                pairs += [
                    (each.arg, default)
                    for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                ]
            for name, default in pairs:
                is_literal = isinstance(default, ast.Constant) and default.value == value
                assert not (name in names and is_literal), f"{path}:{node.lineno}: {name} = {value}"


def test_a_field_of_one_name_has_one_default_for_all_kinds_of_a_verb():
    """Where kinds differ on purpose, help shows each: the others would be two defaults of one flag."""
    meant = {("bench", "--seconds"), ("bench", "--max-miss"), ("bench", "--load"), ("bench", "--repeats")}
    seen: dict[tuple[str, str], set[str]] = {}
    for kind in kinds():
        for verb, options in kind.options.items():
            defaults = {each.name: each.default for each in fields(options)}
            for name, option in options_of(options):
                if not option.shown_default and not option.required:
                    seen.setdefault((verb, option.flags[0]), set()).add(repr(defaults[name]))
    assert {flag for flag, values in seen.items() if len(values) > 1} <= meant
