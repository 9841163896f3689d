"""The rest of a language model's `optimize`: a listener hears where each part begins: one bar for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.proof import process_of_s

MAKING, TIMING, PROVING = "make, judge and time forms", "time the fastest forms", "prove in fresh processes"


@dataclass(frozen=True, slots=True)
class Ahead:
    """One contest and the proof behind it, as far as they were seen."""

    contest: FormContest
    processes: int
    """Fresh ones that prove the choice."""
    began_s: float = field(default_factory=monotonic)

    def tell_making(self, done: int, of: int, entrants: Sequence[Entrant]) -> None:
        """Tell how long the other forms take at the pace of those that are made; before the first nobody knows."""
        self.contest.listener.progress(MAKING, done, of)
        if done and done < of:
            left_s = (monotonic() - self.began_s) / done * (of - done)
            self.contest.listener.ahead(MAKING, left_s, self.contest.seconds + self._proof_s(entrants))

    def tell_timing(self, entrants: Sequence[Entrant]) -> None:
        """Tell that the fastest forms are timed now."""
        self.contest.listener.ahead(TIMING, self.contest.seconds, self._proof_s(entrants))

    def tell_proving(self, entrants: Sequence[Entrant]) -> None:
        """Tell that fresh processes prove the choice now."""
        self.contest.listener.ahead(PROVING, self._proof_s(entrants), 0.0)

    def _proof_s(self, entrants: Sequence[Entrant]) -> float:
        timed = [entrant.turns[0].median_ms("answer") for entrant in entrants if entrant.turns]
        return self.processes * process_of_s(2 * timed[-1] / 1000 if timed else 0.0)
