"""Caches of prefixes on disk: a system prompt that was computed once costs nothing in another process."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime.decoder import CachePart
from edgeopt.executors.onnxruntime.state_parts import StatePart
from edgeopt.system.disk.caches import cache_folder
from edgeopt.system.disk.files import write_beside

_MOST_FILES = 16
"""Most files in a folder: the oldest goes."""
_NAME = "prefix-{}.npz"


@dataclass(frozen=True, slots=True)
class Prefix:
    """First tokens of prompts whose cache is kept."""

    tokens: tuple[int, ...]
    """Without those that stand before every prompt."""
    held_tokens: int
    """Tokens in the cache, with those."""
    computed_tokens: int
    """Tokens that went through the model for it; 0: it was read."""
    note: str = ""
    """Why it was computed although it was stored, or is not stored; empty: all is well."""

    def before(self, prompt: Sequence[int]) -> list[int]:
        """Return the tokens of a prompt behind the prefix."""
        return [*self.tokens, *prompt]


class StoredPrefix:
    """The file of one prefix of one model."""

    def __init__(self, folder: Path, model: str, tokens: Sequence[int], parts: Sequence[CachePart | StatePart]) -> None:
        """Name it by its model and its tokens.

        Args:
            folder: Made when it is first written.
            model: What tells the model from others.
            tokens: With those before every prompt.
            parts: Of the model's cache, and its states.
        """
        self._tokens, self._parts = np.array(tokens, np.int64), tuple(parts)
        told = hashlib.sha256(f"{model} {self._parts}".encode())
        told.update(self._tokens.tobytes())
        self.file = folder / _NAME.format(told.hexdigest()[:32])

    def read(self) -> tuple[list[NDArray[Any]] | None, str]:
        """Return (1, heads, tokens, head) of each part, or None and why not; empty where there is no file."""
        try:
            with self.file.open("rb") as file, np.load(file, allow_pickle=False) as values:
                arrays = [values[f"part{i}"] for i in range(len(self._parts))]
                same = np.array_equal(values["tokens"], self._tokens)
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            return None, f"{self.file} is damaged and computed anew: {str(error)[:100]}"
        shapes = [part.stored_shape(len(self._tokens)) for part in self._parts]
        if not same or [(array.shape, str(array.dtype)) for array in arrays] != [
            (shape, part.dtype) for shape, part in zip(shapes, self._parts, strict=True)
        ]:
            return None, f"{self.file} is another prefix's and computed anew"
        with suppress(OSError):
            os.utime(self.file)  # the oldest is the one not used for longest
        return arrays, ""

    def write(self, arrays: Sequence[NDArray[Any]]) -> str:
        """Store the cache; return why that failed, empty where it did not: an answer does not depend on it."""
        data = io.BytesIO()
        named: dict[str, Any] = {f"part{i}": array for i, array in enumerate(arrays)}
        np.savez(data, tokens=self._tokens, **named)
        try:
            write_beside(self.file, data.getvalue())
        except EdgeoptError as error:
            return f"the prefix is not stored: {error.problem}"
        with suppress(OSError):
            files = sorted(self.file.parent.glob(_NAME.format("*")), key=lambda path: path.stat().st_mtime)
            for file in files[:-_MOST_FILES]:
                file.unlink()
        return ""


def prefix_folder() -> Path:
    """Return where prefixes are stored unless somebody says: below the user's caches, as the system has them."""
    return cache_folder() / "prefixes"
