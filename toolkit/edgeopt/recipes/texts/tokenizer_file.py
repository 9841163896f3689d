"""A `tokenizer.json` opened with the package `tokenizers`: here where its parts are bounded, else in a child.

A file from elsewhere brings patterns of its own, and one such as `(a+)+$` takes a minute for a line of text, or ends in
a panic of the package. Files of the usual parts and patterns are opened here; others in a child with limits
(`tokenizing.py`), which costs a fraction of a millisecond a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.recipes.texts.byte_pairs import KNOWN_PATTERNS as OF_GPT_2
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.files import read_file
from edgeopt.system.processes.guarded import Guarded, GuardError
from edgeopt.system.text import short

_MOST_BYTES = 128 << 20
_REMEDY = "copy tokenizer.json from where the model came from"
_MOST_WRITTEN = 8
"""Characters that a normalizer may put in the place of one: a text then stays of bounded length."""
_SECONDS, _BYTES_A_SECOND = 10.0, 50_000
"""Seconds that a text may take in the child, and bytes for which it gets a second more: usual tokenizers read a
megabyte a second."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
"""The pattern of words of GPT-4 and most models since; they differ in how many digits are a word."""
OF_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = frozenset(
    (
        *OF_GPT_2,
        *(WORDS.replace("NUMBERS", numbers) for numbers in (r"\p{N}", r"\p{N}{1,3}", r"\p{N}+")),
        *(OF_TEKKEN, r"\p{N}", r"\p{N}{1,3}", r"\p{N}+", r"\d", r"[0-9]", r"\s+", r" {2,}", r"[\r\n]", r"\s", r" "),
    )
)
"""Patterns whose time grows with the length of the text alone."""
_STEPS = frozenset(
    (
        *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Sequence"),
        *("UnicodeScripts", "Whitespace", "WhitespaceSplit"),
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Strip", "StripAccents"),
    )
)
"""Pre-tokenizers and normalizers of bounded time and length."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The tokens of a text."""

    ids: Sequence[int]
    type_ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]
    """First character of each token, and the one after its last."""
    is_cut: bool
    """Whether the text has more tokens."""


class TokenizerFile:
    """An open tokenizer. Threads share it."""

    def __init__(self, path: Path, purpose: str = "this kind of tokenizer") -> None:
        """Open it.

        Args:
            path: Of the `tokenizer.json`.
            purpose: Of the package, for the error.

        Raises:
            MissingDependencyError: If the package is not installed.
            InvalidFileError: If it does not read the file.
        """
        package = require("tokenizers", extra="text", purpose=purpose)
        self._path, self._length = path, 0
        data = read_file(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
        try:
            values = json.loads(data)
            self.is_byte_level: bool = _has_bytes_as_letters(values)
            """Whether each letter of a token stands for a byte, as GPT-2 has it."""
            self._child = None if _is_bounded(values) else Guarded("edgeopt.recipes.texts.tokenizing", "the tokenizer")
            if self._child is not None:  # what is asked for here needs the vocabulary alone
                values |= {"pre_tokenizer": None, "normalizer": None, "decoder": None}
                data = json.dumps(values).encode()
            with no_panic():
                self.package: Any = package.Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the package raises Exception itself
            raise InvalidFileError(f"{path} is no tokenizer: {short(str(error))}", remedy=_REMEDY) from error
        self.pad: str = (self.package.padding or {}).get("pad_token", "")
        """The token that fills short texts, where the file says so."""
        self.package.no_padding()
        self.package.no_truncation()

    def cut_to(self, length: int) -> None:
        """Cut texts to so many tokens from now on, its own marks among them; 0: do not cut them."""
        self._length = length
        if length:
            self.package.enable_truncation(length)
        else:
            self.package.no_truncation()

    def encode(
        self, text: str, second: str | None = None, *, with_marks: bool = True, reads_special: bool = True
    ) -> Encoding:
        """Return the tokens of a text, or of a pair of texts.

        Args:
            text: Any.
            second: Of a pair.
            with_marks: Whether what the file says is put around it.
            reads_special: Whether names of special tokens in it become these tokens.

        Raises:
            UnsupportedError: If the tokenizer fails on it, or takes too much time or memory.
        """
        question = {"text": text, "second": second, "marks": with_marks, "special": reads_special}
        try:
            if self._child is None:
                with no_panic():
                    return Encoding(**encode_with(self.package, question))
            place = {"path": str(self._path.resolve()), "length": self._length}
            seconds = _SECONDS + (len(text) + len(second or "")) / _BYTES_A_SECOND
            answer = self._child.ask({**question, **place}, seconds=seconds)
        except Exception as error:  # the package raises Exception itself
            raise UnsupportedError(
                f"{self._path} does not read this text: {short(str(error))}", remedy=_REMEDY
            ) from error
        return Encoding(**{**answer, "offsets": [(first, last) for first, last in answer["offsets"]]})


def encode_with(package: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an `Encoding`, of a `tokenizers.Tokenizer`."""
    package.encode_special_tokens = not question["special"]
    encoding = package.encode(question["text"], question["second"], add_special_tokens=question["marks"])
    fields = {"ids": encoding.ids, "type_ids": encoding.type_ids, "offsets": encoding.offsets}
    return {**fields, "is_cut": bool(encoding.overflowing)}


@contextmanager
def no_panic() -> Iterator[None]:
    """Turn a panic of the package, which is no Exception, into one.

    Raises:
        GuardError: In its place.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise GuardError(f"the package tokenizers panics: {short(str(error))}") from error


def _has_bytes_as_letters(values: Any) -> bool:
    """Return whether a step of the file turns bytes into letters, or letters into bytes.

    The vocabulary does not tell: SmolLM2's lacks the letters of bytes that its texts never had, and a vocabulary of
    many languages may hold all 256 letters as what they are.
    """
    steps = ("decoder", "pre_tokenizer", "normalizer")
    parts = [values.get(step) for step in steps] if isinstance(values, dict) else []
    while parts:
        part = parts.pop()
        if not isinstance(part, dict):
            continue
        if part.get("type") == "ByteLevel":
            return True
        inner = ("decoders", "pretokenizers", "normalizers")
        parts += [each for kind in inner for each in part.get(kind) or ()]
    return False


def _is_bounded(values: Any) -> bool:
    """Return whether a file has the usual parts alone, whose time and memory a text bounds."""
    if not isinstance(values, dict):
        return False
    parts = [values.get("pre_tokenizer"), values.get("normalizer")]
    while parts:
        part = parts.pop()
        if part is None:
            continue
        if not isinstance(part, dict):
            return False
        inner = [*(part.get("pretokenizers") or ()), *(part.get("normalizers") or ())]
        parts += inner
        kind, pattern = part.get("type"), part.get("pattern")
        is_literal = isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and bool(pattern["String"])
        is_known = is_literal or (isinstance(pattern, dict) and pattern.get("Regex") in _PATTERNS)
        is_short = all(len(str(part.get(key, ""))) <= _MOST_WRITTEN for key in ("content", "prepend"))
        if kind in ("Split", "Replace"):
            is_usual = is_known and is_short
        else:
            is_usual = (kind in _STEPS or kind == "Prepend") and is_short
        if not is_usual:
            return False
    return True
