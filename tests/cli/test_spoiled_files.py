"""Every reader takes spoiled files: an answer or one line. The rules are those of benchmarks/fuzz.py."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_SPEC = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[2] / "benchmarks" / "fuzz.py")
fuzz = sys.modules["fuzz"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fuzz)

FAILED_ONCE = {
    "npz": (17, 18, 22),
    "pictures": (8,),
    "baseline": (14, 38),
    "result": (28,),
    "report": (0, 11, 20, 21, 25, 32, 36),
    "model": (34,),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return {name: tmp_path_factory.mktemp(name) for name in fuzz.READERS}


@pytest.fixture(scope="module", autouse=True)
def hurried() -> Iterator[None]:
    """A command that never ends is ended soon: the limits of a user are seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeopt.recipes.texts.chat_template._SECONDS", 0.2)
        patch.setattr("edgeopt.recipes.texts.tokenizer_file._SECONDS", 0.2)
        yield


@pytest.mark.parametrize("name", fuzz.READERS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(seed=st.integers(0, 2**32))
def test_a_spoiled_file_ends_in_an_answer_or_one_line(name, places, seed):
    for package in {"gguf": ["gguf"], "tokenizer": ["tokenizers"], "template": ["jinja2"]}.get(name, []):
        pytest.importorskip(package)
    assert fuzz.attempt(name, seed, places[name]) == ""


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in FAILED_ONCE.items() for seed in seeds])
def test_what_failed_once_ends_in_one_line(name, seed, places):
    assert fuzz.attempt(name, seed, places[name]) == ""
