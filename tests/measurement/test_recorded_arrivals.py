"""A record of arrivals from elsewhere: what is none is refused in one line, at once."""

from __future__ import annotations

import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.models import file_of_load, parse_load

WRONG = {
    "no finite span": (b"-1e308\n1e308\n", "inf years"),
    "milliseconds in a column of seconds": (b"time\n1700000000000\n1700086400000\n", "2.73 years"),
    "dates of other ages": (b"0001-01-01T00:00:00+23:59\n9999-12-31T23:59:59\n", "years"),
    "a number of 400 digits": (b'{"time": 1' + b"0" * 400 + b'}\n{"time": 0}\n', "too large"),
    "a number of 5000 digits": (b'{"time": 1' + b"0" * 5000 + b'}\n{"time": 0}\n', "limit"),
    "infinity": (b"1\ninf\n", "is no time"),
    "an answer that took for ever": (b'{"time":0,"method":"POST","ms":1e999}\n{"time":1,"method":"POST"}\n', "no time"),
    "an answer that took a word": (b'{"time":0,"method":"POST","ms":"x"}\n{"time":1,"method":"POST"}\n', "no trace"),
    "tokens without end": (b'{"time":0,"prompt_tokens":1e999}\n{"time":1}\n', "infinity"),
    "more tokens than a text has": (b'{"time":0,"prompt_tokens":1e300}\n{"time":1}\n', "tokens in a request"),
    "lines that are no objects": (b'{"time":0}\n[1]\n', "a line is no object"),
    "deep lines": (b'{"time":' + b"[" * 100_000, "recursion"),
    "escape sequences": (b"\x1b[2J\n\x1b[31m\n", "x1b"),
    "one instant": (b"1\n1\n", "at one time"),
}


@pytest.mark.parametrize(("data", "problem"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_record_is_refused_in_one_line(tmp_path, data, problem):
    file = tmp_path / "record"
    file.write_bytes(data)
    with pytest.raises(EdgeoptError, match=problem) as refused:
        parse_load(f"trace:{file}")
    assert "\n" not in refused.value.problem
    assert "\x1b" not in refused.value.problem


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("trace:day.csv", "day.csv"),
        ("trace:day.csv@2x", "day.csv"),
        ("trace:a:b@0.5x", "a:b"),
        ("trace:", ""),
        ("fps:30", ""),
        ("closed", ""),
        ("none:FILE", ""),
    ],
)
def test_the_file_of_a_load_is_known_by_its_text(text, file):
    assert file_of_load(text) == file
