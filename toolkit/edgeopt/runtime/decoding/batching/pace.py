"""When a part of a prompt may run between the next tokens of other texts."""

from __future__ import annotations

MOST_RUNS = 64
"""Runs of next tokens for which prompts wait at most: where texts are slower than asked for, none starves."""


class PromptPace:
    """Time that runs of tokens leave of what is asked for is saved, and parts of prompts are paid with it."""

    def __init__(self, token_s: float = 0.0) -> None:
        """Begin with nothing saved.

        Args:
            token_s: Time between two tokens of a text that is asked for, on average; 0: prompts wait for nobody.
        """
        self._token_s, self._saved_s, self._runs = token_s, 0.0, 0

    @property
    def lets_prompts_run(self) -> bool:
        """Whether a part of a prompt may run now although others write."""
        return not self._token_s or self._saved_s >= 0 or self._runs >= MOST_RUNS

    def count_prompt(self, seconds: float) -> None:
        """Take what a part of a prompt took while others waited for their next token."""
        self._saved_s, self._runs = self._saved_s - seconds, 0

    def count_tokens(self, seconds: float) -> None:
        """Take what a run of next tokens took; no more is saved than one token may take."""
        self._runs += 1
        self._saved_s = min(self._saved_s + max(self._token_s - seconds, 0.0), self._token_s)

    def count_mixed(self, seconds: float) -> None:
        """Take what a part of a prompt and next tokens took in one run."""
        self.count_prompt(seconds)
        self.count_tokens(0.0)
