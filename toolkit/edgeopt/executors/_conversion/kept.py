"""Files that conversions for an engine made, the last ones of a process: a search opens one model many times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_MOST_BYTES = 64 << 20
"""Bytes of files that are kept for an engine; a larger file is made each time."""
Made = TypeVar("Made")


class KeptFiles(Generic[Made]):
    """Small files of one engine, those that were asked for last. Safe in threads."""

    def __init__(self, size_bytes: Callable[[Made], int]) -> None:
        """Keep nothing yet.

        Args:
            size_bytes: Returns the size of a file.
        """
        self._size_bytes = size_bytes
        self._kept: dict[str, Made] = {}
        self._turn = threading.Lock()

    def made_of(self, key: str, convert: Callable[[], Made]) -> Made:
        """Return the file of a model, which is converted unless its file is kept; conversions take turns.

        Args:
            key: The model's fingerprint, and how it is written where that differs.
            convert: Makes the file.
        """
        with self._turn:
            made = self._kept.pop(key, None)
            if made is None:
                made = convert()
            self._keep(key, made)
        return made

    def _keep(self, key: str, made: Made) -> None:
        """Keep a file, and let those go that were not asked for longest until all fit."""
        size_bytes = self._size_bytes(made)
        if size_bytes > _MOST_BYTES:
            return
        while sum(map(self._size_bytes, self._kept.values())) + size_bytes > _MOST_BYTES:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = made
