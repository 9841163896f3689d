"""Times of the tokens of one answer, on the clock that all processes share."""

from __future__ import annotations

from time import perf_counter_ns

from edgeopt.measurement.generation.rivals import EngineAnswer


class TokenTimes:
    """Tokens of an answer on its way; the clock starts when it is made."""

    def __init__(self) -> None:
        self._tokens, self._at_ns = list[int](), list[int]()
        self._begun_ns = perf_counter_ns()

    def take(self, token: int) -> None:
        """Note that a token is there."""
        self._at_ns.append(perf_counter_ns() - self._begun_ns)
        self._tokens.append(token)

    @property
    def answer(self) -> EngineAnswer:
        """The answer so far."""
        return EngineAnswer(tuple(self._tokens), self._begun_ns, tuple(self._at_ns))
