"""Answers to the windows of one sound, which make one answer to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Joined(Protocol):
    """A task whose answers to one window after another can be put together."""

    def joined(self, frames: Sequence[Any], answers: Sequence[Any]) -> tuple[Any, Any]:
        """Return the windows of one sound as one, and their answers."""
        ...
