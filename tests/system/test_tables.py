"""Files from outside are read within limits: size, depth, finite numbers, declared ranges; one line each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import read_file, read_text, require_there
from edgeopt.system.toml import Within, parse_table, read_json, read_object, read_toml

DEEP = "[" * 10_000 + "]" * 10_000


@dataclass(frozen=True, slots=True)
class Shelf:
    """A table with limits."""

    books: Annotated[int, Within(1, 100)] = 1
    width_m: Annotated[float, Within(0, above=True)] = 1.0
    labels: tuple[Annotated[int, Within(0)], ...] = ()
    owner: str | None = None


def refused(tmp_path, text, read=read_json, name="file.json"):
    """Return the one line with which a file is refused."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidFileError) as caught:
        read(path) if read is read_toml else read(path, remedy="mend it")
    assert "\n" not in caught.value.problem
    assert len(caught.value.problem) < 400
    return caught.value.problem


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        (DEEP, "nests deeper than 32"),
        ("[" * 40 + "]" * 40, "nests deeper than 32"),
        ('{"a": [1, {"b": NaN}]}', "a[1].b is nan"),
        ('{"a": 1e999}', "a is inf"),
        ("Infinity", "the value is inf"),
        (f'{{"a": {2**64}}}', "a is 18446744073709551616, no finite number of 64 bits"),
        ("9" * 6000, "thousands of digits"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_json_beyond_a_limit_is_refused_and_the_place_named(tmp_path, text, told):
    assert told in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = " + "9" * 6000, "thousands of digits"),
        ("a = 0x" + "f" * 6000, "thousands of digits"),
        (f"a = {2**70}", "a is 1180591620717411303424"),
        ("a = " + DEEP, "nests deeper than 32"),
        (".".join("a" * 100_000) + " = 1", "nests deeper than 32"),
        ("[" + " . ".join("a" * 100_000) + "]", "nests deeper than 32"),
        ("a = {" + ".".join(["'a'"] * 50_000) + " = 1}", "nests deeper than 32"),
        ("a = nan", "a is nan"),
    ],
)
def test_toml_beyond_a_limit_is_refused_and_the_place_named(tmp_path, text, told):
    assert told in refused(tmp_path, text, read_toml, "file.toml")


def test_dots_that_are_no_dotted_key_are_read_and_long_words_take_no_time(tmp_path):
    text = "a = '" + "x" * 400_000 + "'\n" + "b" * 100_000 + " = 1\nc = '" + "Two words. " * 5000 + "'\nd.e.f = 1.5\n"
    (tmp_path / "file.toml").write_text(text, "utf-8")
    assert read_toml(tmp_path / "file.toml")["d"] == {"e": {"f": 1.5}}


def test_a_mark_that_an_editor_put_before_json_is_no_part_of_it(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"schema": 1}')
    assert read_object(tmp_path / "a.json", schema=1, remedy="") == {"schema": 1}


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 2}', '{"schema": "1"}', '{"schema": true}'])
def test_an_object_of_another_schema_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InvalidFileError, match="schema"):
        read_object(tmp_path / "a.json", schema=1, remedy="")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InvalidFileError, match="no regular file"):
        read_file(tmp_path / "pipe.json", remedy="")


def test_a_file_beyond_its_limit_is_not_loaded(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(3 << 20)
    with pytest.raises(InvalidFileError, match="3 MiB, more than 1 MiB"):
        read_file(tmp_path / "large.json", remedy="", most_bytes=1 << 20)


@pytest.mark.parametrize(("name", "told"), [("none", "does not exist"), ("n" * 5000, "too long"), ("a\0b", "null")])
@pytest.mark.parametrize("read", [read_file, read_text, require_there])
def test_what_cannot_be_read_says_why(tmp_path, name, told, read):
    with pytest.raises(InvalidFileError, match=told):
        read(tmp_path / name, remedy="")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"books": 0}, "books is 0"),
        ({"books": 101}, "books is 101"),
        ({"books": True}, "books is True"),
        ({"books": 2**62}, "books is 4611686018427387904"),
        ({"width_m": 0}, "width_m is 0"),
        ({"width_m": "wide"}, "width_m is 'wide'"),
        ({"labels": [1, -1]}, "labels is -1"),
        ({"labels": {"a": 1}}, "labels is {'a': 1}"),
        ({"owner": 3}, "owner is 3"),
        ({"owner": [[[[[[[[[[]]]]]]]]]]}, "owner is"),
        ({"o" * 9000: 3}, "unknown ooo"),
    ],
)
def test_a_value_outside_its_declared_range_is_named(values, told):
    with pytest.raises(InvalidFileError) as caught:
        parse_table(Shelf, values, "shelf.toml")
    assert told in caught.value.problem
    assert len(str(caught.value)) < 400


def test_a_range_is_told_in_words():
    assert str(Within(1, 100)) == "from 1 to 100"
    assert str(Within(0, above=True)) == "above 0"
    assert str(Within(0, 1, above=True)) == "above 0, to 1"
    assert str(Within(most=5)) == "5 or less"


def test_values_inside_their_ranges_are_taken():
    found = parse_table(Shelf, {"books": 100, "width_m": 2, "labels": [0, 3], "owner": None}, "shelf")
    assert found == Shelf(100, 2.0, (0, 3), None)
