"""Tokens of a language model: text to numbers and back, whoever reads the tokenizer's file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from edgeopt.errors import UnsupportedError
from edgeopt.recipes.texts.byte_pairs import bytes_of, read_byte_pairs

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""Character for a space in the tokens of SentencePiece."""


class Tokens(Protocol):
    """A tokenizer."""

    special: Mapping[str, int]
    """Tokens that stand for no text, by name."""
    size: int
    """One more than the largest token that a text can become; special ones may lie beyond."""

    def encode(self, text: str, *, reads_special: bool = False) -> list[int]:
        """Return the tokens of a text; names of special tokens are text unless `reads_special`."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return what one token writes, which may be a part of a character; nothing for a special one."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...


def read_tokens(path: Path) -> Tokens:
    """Read a `tokenizer.json`: a byte-level BPE as GPT-2's by itself, others with the package `tokenizers`.

    Raises:
        InvalidFileError: If it is absent or damaged.
        MissingDependencyError: If it needs the package, which is not installed.
    """
    try:
        return read_byte_pairs(path)
    except UnsupportedError:
        return PackageTokens(path)


class PackageTokens:
    """A tokenizer that the package `tokenizers` reads."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            MissingDependencyError: If the package is not installed.
            InvalidFileError: If it does not read the file.
        """
        from edgeopt.recipes.texts.tokenizer_file import TokenizerFile  # with what keeps a child

        self._file = TokenizerFile(path)
        self._tokenizer: Any = self._file.package
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: Mapping[str, int] = {value.content: number for number, value in added.items() if value.special}
        self._silent = frozenset(self.special.values())
        vocabulary: Mapping[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max((index for name, index in vocabulary.items() if name not in self.special), default=-1) + 1
        self._plain = {number: value.content for number, value in added.items()}

    def encode(self, text: str, *, reads_special: bool = False) -> list[int]:
        """Return the tokens of a text; nothing is put around it.

        Raises:
            UnsupportedError: If the tokenizer fails on it, or takes too much time or memory.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return list(self._file.encode(clean, with_marks=False, reads_special=reads_special).ids)

    def token_bytes(self, token: int) -> bytes:
        """Return what one token writes, which may be a part of a character; nothing for a special or unknown one."""
        name = self._tokenizer.id_to_token(token)
        if name is None or token in self._silent:
            return b""
        if token in self._plain:
            return str(self._plain[token]).encode()
        if self._file.is_byte_level:
            return bytes_of(name)
        byte = _BYTE.fullmatch(name)
        return bytes([int(byte[1], 16)]) if byte else str(name).replace(_SPACE, " ").encode()

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no character become U+FFFD."""
        return b"".join(self.token_bytes(token) for token in tokens).decode("utf-8", "replace")
