"""Probabilities of prompts, computed one prompt at a time, and once for all answers to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from threading import Lock
from typing import Final, TypeVar

from edgeopt.runtime.decoding.sampling import TokenOdds

T = TypeVar("T")
Scoring = Generator[TokenOdds | None]
"""The probability of each token; None while others have their turn, and once when its own begins."""
_LOOK_S: Final = 0.1
"""So often whoever waits for a turn can look whether anybody still wants it."""


def in_turn(turn: Lock, run: Callable[[], Iterator[T]]) -> Generator[T | None]:
    """Yield what runs while a lock is held; None now and then while it is waited for, and once when it is taken."""
    while not turn.acquire(timeout=_LOOK_S):
        yield None
    try:
        yield None
        yield from run()
    finally:
        turn.release()


class PromptScores:
    """The probabilities of one prompt, which the first of its answers computes for the others."""

    def __init__(self) -> None:
        """Begin with none."""
        self._turn = Lock()
        self._kept: list[TokenOdds] | None = None

    def told(self, compute: Callable[[], Scoring]) -> Scoring:
        """Yield them, computed where no answer to the prompt has done it to the end.

        Args:
            compute: Computes them; it may wait for its own turn.
        """
        return in_turn(self._turn, lambda: self._computed(compute))

    def _computed(self, compute: Callable[[], Scoring]) -> Scoring:
        if self._kept is None:
            odds = list[TokenOdds]()
            with closing(compute()) as computing:
                for each in computing:
                    odds += [each] if each is not None else []
                    yield each
            self._kept = odds
            return
        yield from self._kept
