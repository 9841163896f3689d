"""Defaults of an answer that is written."""

from __future__ import annotations

from typing import Final

ANSWER_TOKENS: Final = 256
"""Tokens that an answer may have."""
MOST_SLOTS = 256
"""Answers at the same time, at most."""
SLOTS: Final = 4
"""Texts that are written at once."""
GUESSES: Final = 4
"""Guesses a round where a draft is named and no number."""
