"""Files that conversions made are kept by their model, as many as fit."""

from __future__ import annotations

import pytest

from edgeopt.executors._conversion import kept
from edgeopt.executors._conversion.kept import KeptFiles


def test_the_last_small_files_are_kept_and_the_first_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST_BYTES", 100)
    files, made = KeptFiles[bytes](len), dict[str, int]()

    def convert(key: str, size: int) -> bytes:
        made[key] = made.get(key, 0) + 1
        return key.encode() * size

    models = (("a", 40), ("b", 40), ("c", 40), ("d", 101))
    for key, size in (*models, *models[1:], models[0]):
        assert files.made_of(key, lambda key=key, size=size: convert(key, size)) == key.encode() * size
    assert made == {"a": 2, "b": 1, "c": 1, "d": 2}


def test_what_is_asked_for_again_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST_BYTES", 100)
    files, made = KeptFiles[bytes](len), list[str]()

    def convert(key: str) -> bytes:
        made.append(key)
        return bytes(40)

    for key in "abaca":
        files.made_of(key, lambda key=key: convert(key))
    assert made == ["a", "b", "c"], "the original, which each comparison opens, is converted once"


def test_what_a_conversion_refuses_is_refused_again() -> None:
    files = KeptFiles[bytes](len)

    def refuse() -> bytes:
        raise ValueError("no such node")

    for _ in range(2):
        with pytest.raises(ValueError, match="no such node"):
            files.made_of("a", refuse)
    assert files.made_of("a", lambda: b"file") == b"file"
