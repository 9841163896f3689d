"""Texts from files: what is read, and what is refused in one line."""

from __future__ import annotations

import pytest

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import require_picture
from edgeopt.recipes.inputs.frames import calibration_fingerprint, open_frames
from edgeopt.recipes.inputs.made_up import synthetic_like
from edgeopt.runtime.selftest import choose_samples


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("texts.txt", 'one text\r\n\r\n \nträge, "zwei"\n'),
        ("texts.csv", 'label,Text\n0,one text\n1,"träge, ""zwei"""\n'),
        ("texts.jsonl", '{"text": "one text"}\n{"text": "träge, \\"zwei\\"", "label": 1}\n'),
    ],
)
def test_texts_are_read_in_their_order(tmp_path, name, content):
    (tmp_path / name).write_text(content, "utf-8")
    frames = open_frames(tmp_path / name)
    assert list(frames) == ["one text", 'träge, "zwei"']
    assert frames.kind == "text"
    assert not frames.holds_pictures
    assert frames.names == ("texts[0]", "texts[1]")
    assert list(frames.select([1])) == ['träge, "zwei"']


def test_pairs_become_one_text_with_a_tab(tmp_path):
    (tmp_path / "pairs.csv").write_text("text,text_pair\nit\trains,it is wet\n")
    assert list(open_frames(tmp_path / "pairs.csv")) == ["it rains\tit is wet"]


def test_a_text_of_a_table_may_have_lines(tmp_path):
    (tmp_path / "texts.csv").write_text('text\n"two\nlines"\n')
    assert list(open_frames(tmp_path / "texts.csv")) == ["two\nlines"]


def test_empty_texts_are_left_out_with_a_note(tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\nall is well,1\n ,0\n")
    frames = open_frames(tmp_path / "texts.csv")
    assert list(frames) == ["all is well"]
    assert "1 text of" in frames.notes[0].detail


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"", "holds no text"),
        ("a.csv", b"text,label\n,1\n", "holds empty texts only"),
        ("a.txt", b"good\nb\0d\n", "line 2 holds a NUL"),
        ("a.txt", "träge".encode("latin-1"), "is not UTF-8"),
        ("a.txt", "träge".encode("utf-16"), "is not UTF-8"),
        ("a.csv", b"words,label\na,1\n", "no column text"),
        ("a.csv", b"text,label\na,b,c\n", "line 2: 3 columns in place of 2"),
        ("a.csv", b'text,label\n"a,1\n', "line 2"),
        ("a.jsonl", b'{"text": 3}\n', "line 1 is no object with a text"),
        ("a.jsonl", b'{"text": "a"}\nnothing\n', "line 2 is no JSON"),
        ("a.txt", b"a" * (1 << 20) + b"a", "line 1: a text of 1048577 characters"),
    ],
)
def test_what_is_no_text_is_told_with_its_line(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidFileError, match=told) as caught:
        open_frames(tmp_path / name)
    assert caught.value.remedy
    assert "\n" not in caught.value.problem


def test_a_text_is_no_picture(tmp_path):
    (tmp_path / "texts.txt").write_text("one\n")
    with pytest.raises(InvalidFileError, match="holds texts, no pictures"):
        open_frames(tmp_path / "texts.txt").picture(0)
    with pytest.raises(UnsupportedError, match="is fed a text"):
        require_picture("one")


def test_the_fingerprint_follows_every_letter(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("one\ntwo \n")
    (tmp_path / "c.txt").write_text("one\ntwO\n")
    prints = [calibration_fingerprint(open_frames(tmp_path / f"{name}.txt")) for name in "abc"]
    assert prints[0] == prints[1] != prints[2]


def test_made_up_texts_tell_no_given_one_and_are_the_same_each_time(tmp_path):
    (tmp_path / "a.txt").write_text("secret words of the customer\nall of them secret\n")
    given = open_frames(tmp_path / "a.txt")
    made, again = (list(synthetic_like(given, (), 8)) for _ in range(2))
    assert made == again
    assert len(set(made)) == 8
    assert not {"secret", "customer"} & {word for text in made for word in str(text).split()}


def test_texts_are_stored_as_they_are():
    assert choose_samples(["one", "träge"], ()) == ("one", "träge")
