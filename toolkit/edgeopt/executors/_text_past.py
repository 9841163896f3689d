"""Account that the caches of each engine keep: tokens that texts hold, and how many more they take."""

from __future__ import annotations

from collections.abc import Sequence


class TextPast:
    """A cache of one text."""

    def __init__(self, capacity: int) -> None:
        """Begin empty; the text may have `capacity` tokens."""
        self.capacity, self._past = capacity, 0
        self._single_from = capacity
        """The first token that was run alone: those before it have the numbers of a text that is run at once."""

    @property
    def past(self) -> int:
        """Tokens that the cache holds."""
        return self._past

    @property
    def exact_past(self) -> int:
        """First tokens of the cache whose numbers are those of the same text run at once."""
        return min(self._past, self._single_from)

    def reusable(self, past: int) -> int:
        """Return how many of the first `past` tokens that are held can be kept."""
        return past

    def rewind(self, past: int) -> None:
        """Forget all tokens but the first `past`."""
        if not 0 <= past <= self._past:
            raise ValueError(f"the cache holds {self._past} tokens, not {past}")
        self._cut(past)

    def _cut(self, past: int) -> None:
        self._past = past
        if past <= self._single_from:
            self._single_from = self.capacity


class RowPasts:
    """Several texts in one memory, each a row of it."""

    def __init__(self, count: int, capacity: int, tokens: int) -> None:
        """Begin empty.

        Args:
            count: Texts.
            capacity: Tokens that each may have.
            tokens: Memory for so many is reserved, which is what `arrange` has; 0: count * capacity.
        """
        self.count, self.capacity, self._tokens = count, capacity, tokens or count * capacity
        self._past = [0] * count

    def past(self, row: int) -> int:
        """Return how many tokens a row holds."""
        return self._past[row]

    def _after(self, row: int, tokens: Sequence[int], room: int = 0) -> int:
        """Return how many tokens a row holds behind the next ones; raise where it does not take them, and `room` more.

        Raises:
            ValueError: If so, or if there are none.
        """
        after = self._past[row] + len(tokens)
        if not len(tokens) or after + room > self.capacity:
            raise ValueError(f"{len(tokens)} tokens behind {self._past[row]} do not fit in {self.capacity}")
        return after

    def _require_next(self, count: int) -> None:
        """Raise unless each of the first rows takes a next token.

        Raises:
            ValueError: If there are none, or a row is full or empty.
        """
        if not count or not all(0 < past < self.capacity for past in self._past[:count]):
            raise ValueError(f"rows of {self._past[:count]} tokens take no next one, the room is {self.capacity}")

    def _require_held(self, row: int, past: int) -> None:
        """Raise unless a row holds so many tokens.

        Raises:
            ValueError: If so.
        """
        if not 0 <= past <= self._past[row]:
            raise ValueError(f"row {row} holds {self._past[row]} tokens, not {past}")

    def _kept_pasts(self, count: int, capacity: int, kept: Sequence[int]) -> list[int]:
        """Return how many tokens the rows hold that stay where rows are laid out anew.

        Raises:
            ValueError: If they do not fit into the memory.
        """
        pasts = [self._past[row] for row in kept]
        if count * capacity > self._tokens or len(kept) > count or max(pasts, default=0) > capacity:
            raise ValueError(f"{count} rows of {capacity} tokens do not hold {pasts} in {self._tokens}")
        return pasts
