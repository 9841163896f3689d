from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.recipes.texts.byte_pairs import read_byte_pairs
from edgeopt.recipes.texts.tokens import read_tokens

FILE = Path(__file__).parents[2] / "models" / "tiny_lm" / "tokenizer.json"
TEXTS = (
    "",
    " ",
    "\n\n\t x   y \u00a0z",
    "import os\n\n\ndef read(path: str) -> bytes:\n    return open(path, 'rb').read()\n",
    "I'll don't 'S ’s x'd",
    "½ Ⅷ 一二三 héllo wörld 123४५ _x_ ②③ ²³",
    "👩‍🚀 a\u0301 \x1c\x1d \x00 ﷽ a b\u200bc",
    "".join(map(chr, range(32, 0x3000))),
    "".join(map(chr, range(0x2000, 0xD7FF, 7))),
    "".join(map(chr, range(0x1D000, 0x1F900, 5))),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_tokens(text):
    tokenizer = read_byte_pairs(FILE)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 < token < tokenizer.size for token in tokens)


@pytest.mark.parametrize("text", [*TEXTS, Path(json.__file__).read_text("utf-8")])
def test_tokens_are_those_of_the_package_tokenizers(text):
    package = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    assert read_byte_pairs(FILE).encode(text) == package.Tokenizer.from_file(str(FILE)).encode(text).ids


def test_names_of_special_tokens_are_text_unless_asked_for():
    tokenizer = read_byte_pairs(FILE)
    end = tokenizer.special["<|end|>"]
    assert end not in tokenizer.encode("a<|end|>b")
    assert tokenizer.encode("a<|end|>b", reads_special=True) == [
        *tokenizer.encode("a"),
        end,
        *tokenizer.encode("b"),
    ]
    assert tokenizer.token_bytes(end) == b""


def test_a_lone_surrogate_is_no_character():
    tokenizer = read_byte_pairs(FILE)
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def written(tmp_path: Path, **changes) -> Path:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(FILE.read_text("utf-8")), **changes}), "utf-8")
    return file


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "WordPiece", "vocab": {}}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"pre_tokenizer": None},
        {"model": None},
    ],
)
def test_another_kind_of_tokenizer_is_refused(changes, tmp_path):
    with pytest.raises(UnsupportedError, match="tokenizer whose text is cut in another way"):
        read_byte_pairs(written(tmp_path, **changes))


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        {"type": "BPE", "vocab": [], "merges": []},
        {"type": "BPE", "merges": []},
        {"type": "BPE", "vocab": {"a": "x"}, "merges": []},
    ],
)
def test_a_damaged_table_is_one_line(model, tmp_path):
    with pytest.raises(InvalidFileError, match=r"tokenizer\.json"):
        read_byte_pairs(written(tmp_path, model=model))


def test_what_is_no_json_is_one_line(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b"\x00\xff")
    with pytest.raises(InvalidFileError):
        read_byte_pairs(file)
    with pytest.raises(InvalidFileError):
        read_byte_pairs(tmp_path / "absent.json")


def test_added_tokens_of_text_are_left_to_the_package(tmp_path):
    package = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    values = json.loads(FILE.read_text("utf-8"))
    number = max([*values["model"]["vocab"].values(), *(one["id"] for one in values["added_tokens"])]) + 1
    spaces = {"id": number, "content": "    ", "special": False, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False}  # fmt: skip
    file = written(tmp_path, added_tokens=[*values["added_tokens"], spaces])
    with pytest.raises(UnsupportedError, match="adds tokens of text"):
        read_byte_pairs(file)
    text, tokens = "def f():\n    return 1\n", read_tokens(file)
    found = tokens.encode(text)
    assert number in found
    assert found == package.Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
    assert tokens.decode(found) == text
    assert "    " not in tokens.special
