from __future__ import annotations

from pathlib import Path

import pytest

from edgeopt.recipes.texts.byte_pairs import read_byte_pairs
from edgeopt.runtime.decoding.guessing.lookup import LookUp
from edgeopt.runtime.decoding.pieces import Pieces

TOKENIZER = read_byte_pairs(Path(__file__).parents[3] / "models" / "tiny_lm" / "tokenizer.json")


def shown(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], Pieces]:
    pieces = Pieces(TOKENIZER, stop)
    found = []
    for token in TOKENIZER.encode(text):
        found.append(pieces.add(token))
        if pieces.is_over:
            return found, pieces
    return [*found, pieces.end()], pieces


@pytest.mark.parametrize("text", ["def read(path):\n", "héllo 👩‍🚀 wörld", "一二三", "\x00\t ", ""])
def test_pieces_add_up_to_the_text_and_split_no_character(text):
    found, _ = shown(text)
    assert "".join(found) == text
    assert all("\ufffd" not in one for one in found)


def test_half_a_character_at_the_end_is_shown_as_a_replacement():
    pieces = Pieces(TOKENIZER)
    half = TOKENIZER.encode("👩")[:1]
    assert pieces.add(half[0]) == ""
    assert pieces.end() == "\ufffd"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("a = 1\n\nb = 2", ("\n\n",), "a = 1"),
        ("return x + returned", ("returned", "never"), "return x + "),
        ("aaab", ("aab",), "a"),
        ("no stop here ret", ("return",), "no stop here ret"),
        ("first END second STOP", ("STOP", "END"), "first "),
    ],
)
def test_nothing_of_a_stop_string_is_shown(text, stop, expected):
    found, pieces = shown(text, stop)
    assert "".join(found) == expected
    assert pieces.is_over is (expected != text)
    assert all(expected.startswith("".join(found[:i])) for i in range(len(found)))


def test_guesses_follow_the_last_place_where_the_end_stood_before():
    assert LookUp().guess([1, 2, 3, 4, 9, 1, 2, 3], 2) == [4, 9]
    assert LookUp().guess([7, 2, 3, 5, 1, 2, 3, 6, 0, 2, 3], 3) == [6, 0, 2]
    assert LookUp().guess([1, 2, 3, 4], 4) == []
    assert LookUp().guess([1], 4) == []
