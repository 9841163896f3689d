"""The meaning of `--guesses` and `--draft` together."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import EdgeoptError

NONE = "none"
"""The word for `--draft` that lets the text so far make the guesses."""


def require_guesses(guesses: int | None, draft: str | Path | None) -> None:
    """Raise where a draft is named, and no guesses are asked for.

    Raises:
        EdgeoptError: If so.
    """
    if guesses == 0 and draft not in (None, NONE):
        raise EdgeoptError(
            "--guesses 0 asks for none, and --draft names who makes them", remedy="leave one of them out"
        )
