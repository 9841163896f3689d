"""Tokenizers that somebody else wrote: those of the usual parts here, those with patterns of their own in a child."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.recipes.texts.tokenizer_file import OF_TEKKEN, WORDS, TokenizerFile
from edgeopt.recipes.texts.tokens import PackageTokens

pytest.importorskip("tokenizers")
LETTERS = {letter: number for number, letter in enumerate("abcdefgh ")}


def written(folder: Path, **parts: Any) -> Path:
    """Write a tokenizer of nine letters with other parts."""
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": LETTERS, "merges": []},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**values, **parts}), "utf-8")
    return path


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


@pytest.mark.parametrize(
    ("parts", "is_here"),
    [
        ({}, True),
        ({"pre_tokenizer": {"type": "Whitespace"}}, True),
        ({"pre_tokenizer": sequence(split(WORDS.replace("NUMBERS", r"\p{N}{1,3}")))}, True),
        ({"pre_tokenizer": sequence(split(OF_TEKKEN))}, True),
        ({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}}, True),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 9}}, False),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 9}}, False),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}}, False),
        ({"pre_tokenizer": split("a*a*a*a*a*b")}, False),
        ({"pre_tokenizer": sequence({"type": "Whitespace"}, split("x?"))}, False),
    ],
)
def test_a_part_that_a_text_does_not_bound_is_run_in_a_child(tmp_path, parts, is_here):
    assert (TokenizerFile(written(tmp_path, **parts))._child is None) == is_here


def test_patterns_that_take_for_ever_panic_or_fill_memory_are_one_line(tmp_path, monkeypatch, capfd):
    """The child ends at most; it answers what is asked next."""
    monkeypatch.setattr("edgeopt.recipes.texts.tokenizer_file._SECONDS", 1.0)
    texts = {
        r"(a+)+$": ("a" * 40 + "b", "retry-limit|takes more than 1 s"),
        r"(?:a+){2,}h|(a*)*$": (("a" * 24 + "b") * 200, "retry-limit|takes more than 1 s"),
    }
    for pattern, (text, told) in texts.items():
        tokens = PackageTokens(written(tmp_path, pre_tokenizer=split(pattern)))
        with pytest.raises(UnsupportedError, match=told):
            tokens.encode(text)
        assert tokens.encode("bcd") == [1, 2, 3]
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1_000_000}
    tokens = PackageTokens(written(tmp_path, normalizer=longer))
    with pytest.raises(UnsupportedError, match="too much memory"):
        tokens.encode("a" * 10_000)
    assert capfd.readouterr().err == ""


def test_the_child_reads_as_the_package_does(tmp_path):
    package = pytest.importorskip("tokenizers")
    path = written(tmp_path, pre_tokenizer=split("(?:a|b)c?"), truncation=None)
    own, file = package.Tokenizer.from_file(str(path)), TokenizerFile(path)
    assert file._child is not None
    for text, second in (("abc abcd", None), ("a", "bc"), ("", None), ("x\ud800"[:1], "gh")):
        encoding, expected = file.encode(text, second), own.encode(text, second)
        assert (encoding.ids, encoding.type_ids) == (expected.ids, expected.type_ids)
        assert list(encoding.offsets) == expected.offsets
        assert not encoding.is_cut
    file.cut_to(3)
    assert file.encode("abcd").is_cut
    assert file.encode("abcd").ids == [0, 1, 2]


def test_a_pattern_that_is_none_is_told_with_the_file(tmp_path):
    tokens = PackageTokens(written(tmp_path, pre_tokenizer=split("(")))
    with pytest.raises(EdgeoptError, match=r"tokenizer\.json does not read this text"):
        tokens.encode("abc")
    (tmp_path / "tokenizer.json").write_text("[" * 100_000, "utf-8")
    with pytest.raises(InvalidFileError, match="is no tokenizer"):
        PackageTokens(tmp_path / "tokenizer.json")
