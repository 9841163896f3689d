"""How long the proof of the best form takes, by what a search saw of the original and of each form.

All forms run in turns in one process, which shows the fastest; fresh processes prove that one; samples judge its
accuracy. A time limit keeps so much of it back from the search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgeopt.measurement.statistics.distributions import student_quantile
from edgeopt.measurement.statistics.ratio import LEAST_RANKED
from edgeopt.measurement.turns.calls import MIN_ROUNDS
from edgeopt.measurement.turns.interleaved import LEAST_WHOLE

SLOW_S = 0.5
"""A frame that takes longer is slow: fewer rounds of it are measured."""
FEWEST_PROCESSES = 3
"""Fresh processes, or rounds that open each model anew, that may prove a form which looks much faster."""
PROOF_ROUNDS, PROOF_BLOCK_S = 3, 0.01
"""Rounds of a fresh process, and seconds of a block in it: short, because processes differ by more than rounds."""
START_S = 1.5
"""Seconds of a fresh process before it opens a model, where none was run."""
SPARE = 1.2
"""Times what a proof should take: openings and processes differ by so much."""
_DIFFER = 0.1
"""Standard deviation of the logarithm of a ratio over processes: memory moves a session by up to 20 %, which gives
0.06."""
_ROOM = 2.0
"""Times the reach of an interval that a form should be away from no gain, so that the interval decides."""
_MARGIN = 0.02
_SEEN = 0.8
"""Share of the gain in one scoring that is counted on before models ran in turns."""
_TURNS_BLOCK_S = 0.04
_LISTED = 3
"""Forms, those that look fastest, that are measured in turns at the least."""
_NEAR = 0.8
"""Share of the largest gain from which on a form may be the fastest: a scoring times no better."""
_OTHER_ENGINE = 1.0
"""Times the start of a process that another engine takes to be ready in it."""
_MOST_SLOWER = 4.0


def processes_that_decide(speedup: float) -> int:
    """Return how few fresh processes prove a form faster that looks so many times as fast: three to six.

    Below six, Student's interval judges them; what the form gains should be twice what that reaches where processes
    differ by a tenth.
    """
    gain = math.log(max(speedup, 1e-9) / (1 + _MARGIN))
    for count in range(FEWEST_PROCESSES, LEAST_RANKED):
        if gain >= _ROOM * student_quantile(0.975, count - 1) * _DIFFER / math.sqrt(count):
            return count
    return LEAST_RANKED


@dataclass(frozen=True, slots=True)
class SeenTimes:
    """Rough times of a model, seen as it was opened and scored."""

    open_s: float
    frame_s: float
    """Seconds of a whole frame, with reading and all stages."""
    engine: str = ""
    """Name of the engine that runs it; empty: the original's own."""

    @property
    def turns_s(self) -> float:
        """The least seconds of its turns beside other models in one process."""
        rounds = LEAST_WHOLE if self.frame_s > SLOW_S else MIN_ROUNDS
        return self.open_s + (1 + 2 * rounds) * max(self.frame_s, _TURNS_BLOCK_S)

    @property
    def in_process_s(self) -> float:
        """Seconds of a fresh process that are its own."""
        rounds = 1 if self.frame_s > SLOW_S else PROOF_ROUNDS
        return self.open_s + (1 + 2 * rounds) * max(self.frame_s, PROOF_BLOCK_S)


@dataclass(frozen=True, slots=True)
class ProofTime:
    """The seconds that measuring and proving take, from what was seen so far."""

    process_s: float
    """Seconds of a fresh process with the original twice."""
    original: SeenTimes
    judging_s: float = 0.0
    """Seconds in which the original and one form answer the samples that judge."""
    slower: float = 1.0
    """Times what was expected that fresh processes took in an earlier run."""
    forms: Mapping[str, SeenTimes] = field(default_factory=dict)
    """Forms that keep their accuracy so far, by name."""

    def with_form(self, name: str, seen: SeenTimes) -> ProofTime:
        """Return the same with one form more."""
        return replace(self, forms={**self.forms, name: seen})

    def seen_of(self, name: str) -> SeenTimes:
        """Return what was seen of a form; of an unknown one what was seen of the original."""
        return self.forms.get(name, self.original)

    def slower_by(self, ratio: float) -> float:
        """Return how much slower processes were than what was seen, where they took so many times what was expected."""
        return self.bounded(self.slower * ratio)

    @staticmethod
    def bounded(slower: float) -> float:
        """Return how much slower processes are, as far as it is believed: one to four times."""
        return min(max(slower, 1.0), _MOST_SLOWER)

    def each_s(self, names: Sequence[str]) -> float:
        """Return about how many seconds a fresh process takes with the original and these forms."""
        forms = [self.seen_of(name) for name in names]
        start_s = max(self.process_s - 2 * self.original.in_process_s, 0.0)
        engines = len({form.engine for form in forms} - {""})
        own_s = self.process_s + _OTHER_ENGINE * engines * start_s
        return self.slower * (own_s + sum(form.in_process_s for form in forms))

    def processes_s(self, names: Sequence[str]) -> float:
        """Return about how many seconds the fewest processes take that prove these forms, with some to spare."""
        count = max(processes_that_decide(_SEEN * self.gain_of(name)) for name in names)
        return SPARE * count * self.each_s(names)

    def gain_of(self, name: str) -> float:
        """Return how many times as fast a form looks as the original."""
        return self.original.frame_s / max(self.seen_of(name).frame_s, 1e-9)

    def turns_s(self, names: Sequence[str]) -> float:
        """Return about how many seconds the original, its copy and these forms take turns at the least."""
        return SPARE * (2 * self.original.turns_s + sum(self.seen_of(name).turns_s for name in names))

    def fastest(self, names: Sequence[str]) -> list[str]:
        """Return names, the form that looks fastest first."""
        return sorted(names, key=lambda name: -self.gain_of(name))

    def best_s(self, names: Sequence[str]) -> float:
        """Return about how many seconds the fewest processes take that prove whichever of these forms is fastest."""
        ordered = self.fastest(names)[:_LISTED]
        near = [name for name in ordered if self.gain_of(name) >= _NEAR * self.gain_of(ordered[0])]
        return max((self.processes_s([name]) for name in near), default=0.0)

    def needed_s(self, names: Sequence[str]) -> float:
        """Return the least seconds for the turns of these forms, and to prove and judge the fastest."""
        return self.turns_s(names) + self.best_s(names) + self.judging_s

    @property
    def kept_s(self) -> float:
        """The seconds that a search leaves: for the forms that look fastest, and for one more that it may find."""
        coming = ""  # nothing is known of it
        names = [*self.fastest([*self.forms])[:_LISTED], coming]
        return self.needed_s(names)
