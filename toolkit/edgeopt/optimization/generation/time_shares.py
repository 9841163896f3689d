"""The time limit of one `optimize` of a language model: a share for each part of the work, that of proving is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.fresh_process.proof_time import SPARE
from edgeopt.steps._context import Listener
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited
from edgeopt.system.text import typed_duration


class TimeShare(Enum):
    """When a part of the work ends, as a share of the limit."""

    JUDGED = 0.1
    """The original has predicted the text, or answered what it hears or reads."""
    FEWER = 0.25
    """The same, where the few windows that judge at least are so long that they take more: fewer judge then."""
    MADE = 0.4
    """Forms are made, where another machine judges and times them in what is left."""
    FORMS = 0.55
    """Forms are made, judged and timed for a moment."""
    ROUNDS = 0.65
    """The fastest of them are timed longer: what is left is for fresh processes."""
    WORDS = 0.75
    """The words in the answers of a model that hears are compared with transcripts by then."""
    PROVEN = 0.97
    BUDGET = 1.05
    """The budget is decided. A run may take a tenth more than the limit, and the rest of that is for the bundle."""


_LEAST_PROOFS = 0.16
"""Share of a limit that fresh processes get, however quick they are expected to be."""


@dataclass
class TimeShares:
    """The rest of a time limit, and why work was left out; Ctrl-C ends the part that it meets and all after it."""

    limit_s: float | None
    listener: Listener
    began_s: float = field(default_factory=monotonic)
    notes: list[Note] = field(default_factory=list)
    was_cut: bool = False
    """Whether Ctrl-C ended it."""
    is_late: bool = False
    """Whether a part was not finished in its share."""
    enough_s: float = 0.0
    """Time limit, in seconds, that would have left enough for all fresh processes; 0: it was not too short for them."""
    _kept_s: dict[TimeShare, float] = field(default_factory=dict)
    """Seconds that what follows a part takes, where they are known."""

    def end_s(self, share: TimeShare) -> float:
        """Return when a part ends, on the monotonic clock: later than its share, where what follows takes less."""
        if self.limit_s is None:
            return math.inf
        last_s = TimeShare.PROVEN.value * self.limit_s - self._kept_s.get(share, math.inf)
        return self.began_s + max(share.value * self.limit_s, last_s)

    def keep(self, rounds_s: float, proofs_s: float) -> None:
        """Leave the making of forms what timing and proving them do not take, where that is more than its share.

        Args:
            rounds_s: Seconds for which the fastest are timed and judged by the whole text; at least the share between
                the two parts is kept.
            proofs_s: Seconds that fresh processes take at most, and what follows them.
        """
        proofs_s = max(proofs_s, _LEAST_PROOFS * (self.limit_s or 0.0))
        least_s = (TimeShare.ROUNDS.value - TimeShare.FORMS.value) * (self.limit_s or 0.0)
        self._kept_s = {TimeShare.FORMS: max(rounds_s, least_s) + proofs_s, TimeShare.ROUNDS: proofs_s}

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self.began_s

    def seconds(self, wanted_s: float, share: TimeShare) -> float:
        """Return how many of some seconds are left until a part ends."""
        return min(wanted_s, max(self.end_s(share) - monotonic(), 0.0))

    def say(self) -> None:
        """Tell of the limit before work begins."""
        if self.limit_s is not None:
            whole, forms = (typed_duration(1000 * share * self.limit_s) for share in (1.0, TimeShare.FORMS.value))
            self.listener.say(f"time limit {whole}: forms are made for {forms}, or longer if proofs leave time")

    def say_here(self, address: str) -> None:
        """Tell before work begins that forms are made here for another machine, and of the limit."""
        self.listener.say(f"making forms here for {address}, which judges and measures them")
        if self.limit_s is not None:
            whole, made = (typed_duration(1000 * share * self.limit_s) for share in (1.0, TimeShare.MADE.value))
            self.listener.say(f"time limit {whole}: forms are made for {made} at most, the device has what is left")

    def lack(self, processes_s: float, left_s: float) -> None:
        """Keep which time limit would have been enough for the fresh processes of a proof.

        Args:
            processes_s: Seconds that all of them take.
            left_s: Seconds that were left for them when the first began.
        """
        if self.limit_s is None:
            return
        # of a longer limit they get so much
        share = _LEAST_PROOFS if self._kept_s else TimeShare.PROVEN.value - TimeShare.ROUNDS.value
        needed_s = SPARE * processes_s
        self.enough_s = max(needed_s / share, self.limit_s + (needed_s - max(left_s, 0.0)) / share)

    @contextmanager
    def part(self, share: TimeShare, text: str = "") -> Iterator[None]:
        """Do a part of the work until its share is over; what it found so far stays.

        Args:
            share: When it ends.
            text: What is warned of where it was not finished; empty: the caller tells more than that.
        """
        try:
            with limited(self.end_s(share)):
                yield
        except OutOfTime:
            self.is_late = True
            if text:
                self.warn(text)
        except KeyboardInterrupt:
            self.was_cut = True

    def warn(self, text: str) -> None:
        """Tell what was left out for lack of time."""
        note = Note(NoteKind.WARNING, f"time limit reached: {text}", LONGER)
        self.notes.append(note)
        self.listener.say(f"warning: {note}")
