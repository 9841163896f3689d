"""A byte-level BPE tokenizer, read from Hugging Face's `tokenizer.json` with the standard library alone.

Source: Sennrich et al., 2016, arXiv:1508.07909; Radford et al., 2019 (bytes as letters, and the pattern of words).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.system.toml import read_json

_MOST_BYTES = 64 << 20
_REMEDY = "copy tokenizer.json from where the model came from"
_ASCII = range(ord(" "), ord("~") + 1)
"""Bytes that every table has; others it may lack where the texts that it was made of never had them."""
_KEPT_WORDS, _LONGEST_KEPT = 1 << 16, 64
"""Words whose tokens are remembered, and their most characters: a text from outside fills no memory."""
_ENDINGS = r"'(?:[sdmt]|ll|ve|re)"
_LETTERS, _NUMBERS = r"[^\W\d_]", r"\d"
_WORDS = rf"{_ENDINGS}| ?{{letters}}+| ?{{numbers}}+| ?(?:{{other}})+|\s+(?!\S)|\s+"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
KNOWN_PATTERNS = (_GPT2, r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


class BytePairs:
    """Text to tokens and back."""

    def __init__(self, source: Path, values: Mapping[str, Any]) -> None:
        """Take what a `tokenizer.json` says.

        Raises:
            InvalidFileError: If its table of tokens is damaged.
            UnsupportedError: If it is no byte-level BPE in GPT-2's words.
        """
        _require_byte_level(source, values)
        model = values["model"]
        try:
            self._ids: dict[str, int] = {str(token): int(number) for token, number in model["vocab"].items()}
            self._ranks = {_pair(value): rank for rank, value in enumerate(model["merges"])}
            # by text, as tuples of texts take three times the memory; no letter that stands for a byte is a space
            added = {str(value["content"]): int(value["id"]) for value in values.get("added_tokens") or []}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidFileError(f"{source} is no table of tokens: {error}", remedy=_REMEDY) from error
        self.special: Mapping[str, int] = added
        """Tokens that stand for no text, for example the end, by name."""
        texts = max((number for token, number in self._ids.items() if token not in added), default=-1) + 1
        self._ids |= added
        self._tokens = dict(zip(self._ids.values(), self._ids.keys(), strict=True))
        missing = [chr(byte) for byte in _ASCII if _letters()[byte] not in self._ids]
        if missing or min(self._tokens, default=-1) < 0:
            raise InvalidFileError(f"{source} lacks the bytes {missing[:5]}", remedy=_REMEDY)
        self.size = texts
        """One more than the largest token that a text can become; special ones may lie beyond."""
        self._known_words: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, reads_special: bool = False) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: Any; what is no Unicode character (a lone surrogate) becomes a question mark.
            reads_special: Whether names of special tokens in the text become these tokens: never for what a user wrote.
        """
        if not reads_special or not self.special:
            return list(self._encode(text))
        result = list[int]()
        for part in self._special_pattern.split(text):
            result += [self.special[part]] if part in self.special else self._encode(part)
        return result

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        names = sorted(self.special, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})")

    def _encode(self, text: str) -> Iterator[int]:
        for word in _pattern(is_ascii=text.isascii()).findall(text):
            known = self._known_words.get(word)
            if known is None:
                known = self._merged(word)
                if len(word) <= _LONGEST_KEPT and len(self._known_words) < _KEPT_WORDS:
                    self._known_words[word] = known
            yield from known

    def _merged(self, word: str) -> tuple[int, ...]:
        """Join neighbours, the pair that was learned first before all others, until none is left."""
        letters = _letters()
        parts = [letters[byte] for byte in word.encode("utf-8", "replace")]
        parts = [part for part in parts if part in self._ids]  # a byte that the table lacks is dropped, as elsewhere
        while len(parts) > 1:
            ranks = [self._ranks.get(f"{a} {b}", len(self._ranks)) for a, b in pairwise(parts)]
            best = min(ranks)
            if best == len(self._ranks):
                break
            joined, i = list[str](), 0
            while i < len(parts):
                is_pair = i < len(ranks) and ranks[i] == best
                joined.append(parts[i] + parts[i + 1] if is_pair else parts[i])
                i += 1 + is_pair
            parts = joined
        return tuple(self._ids[part] for part in parts)

    def token_bytes(self, token: int) -> bytes:
        """Return what one token writes, which may be a part of a character; nothing for a special or unknown one."""
        text = self._tokens.get(token, "")
        if text in self.special:
            return b""
        return bytes_of(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no character become U+FFFD."""
        return b"".join(self.token_bytes(token) for token in tokens).decode("utf-8", "replace")


def read_byte_pairs(path: Path) -> BytePairs:
    """Read a `tokenizer.json`.

    Raises:
        InvalidFileError: If it is absent, larger than 64 MiB, no JSON, or damaged.
        UnsupportedError: If it is another kind of tokenizer.
    """
    values = read_json(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    if not isinstance(values, dict):
        raise InvalidFileError(f"{path} is no tokenizer", remedy=_REMEDY)
    return BytePairs(path, values)


def _require_byte_level(source: Path, values: Mapping[str, Any]) -> None:
    model, before = values.get("model") or {}, values.get("pre_tokenizer") or {}
    kind = model.get("type", "no") if isinstance(model, Mapping) else "no"
    steps = before.get("pretokenizers", [before]) if isinstance(before, Mapping) else [{}]
    added = values.get("added_tokens") or []
    texts = [value for value in added if isinstance(value, Mapping) and not value.get("special", True)]
    parts = [_told(step) for step in steps if isinstance(step, Mapping)]
    if kind != "BPE" or values.get("normalizer") or parts not in (["words"], ["split", "bytes"]):
        raise UnsupportedError(
            f"{source} is a {kind} tokenizer whose text is cut in another way than GPT-2's",
            remedy="name a model with a byte-level BPE tokenizer",
        )
    if texts:  # they are text that is found before words are cut, as runs of spaces in Phi's files
        raise UnsupportedError(
            f"{source} adds tokens of text, such as {str(texts[0].get('content'))[:40]!r}, to its pairs",
            remedy="name a model whose added tokens are all special",
        )


def _told(step: Mapping[str, Any]) -> str:
    if step.get("type") == "ByteLevel" and not step.get("add_prefix_space"):
        return "words" if step.get("use_regex", True) else "bytes"
    pattern = (step.get("pattern") or {}).get("Regex") if step.get("type") == "Split" else None
    return "split" if pattern in KNOWN_PATTERNS else ""


def _pair(value: str | Sequence[str]) -> str:
    """Return what is joined, with a space between: files hold it so, or as two texts."""
    first, second = value.split(" ") if isinstance(value, str) else map(str, value)
    return value if isinstance(value, str) else f"{first} {second}"


@lru_cache
def _pattern(*, is_ascii: bool) -> re.Pattern[str]:
    r"""Return GPT-2's pattern of words. `re` knows no \p{L}: beyond ASCII its \w holds numbers that are no digits."""
    if is_ascii:
        return re.compile(_WORDS.format(letters="[A-Za-z]", numbers="[0-9]", other=r"[^\sA-Za-z0-9]"))
    numbers = "".join(
        re.escape(chr(code)) for code in range(128, 0x110000) if unicodedata.category(chr(code))[0] == "N"
    )
    number = f"[0-9{numbers}]"
    letters = f"(?:(?!{number})[^\\W_])"
    return re.compile(_WORDS.format(letters=letters, numbers=number, other=rf"(?!{letters}|{number})\S"))


@lru_cache
def _letters() -> Mapping[int, str]:
    """Return the letter that stands for each byte: itself where it can be printed, else the next ones from 256."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def bytes_of(token: str) -> bytes:
    """Return what a token of a byte-level vocabulary writes: a byte a letter, or itself where it has other letters."""
    letters = _bytes_of_letters()
    return bytes(map(letters.__getitem__, token)) if letters.keys() >= {*token} else token.encode("utf-8", "replace")


@lru_cache
def _bytes_of_letters() -> Mapping[str, int]:
    return {letter: byte for byte, letter in _letters().items()}
