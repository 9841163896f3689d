"""INT8 models while a search lasts, the order between them, and what the search ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes
from edgeopt.steps.quantize.search.decisions import Decisions

_TIE = 0.02
"""Share by which an attempt must be faster than float: a minute of measuring on a shared machine is no finer."""
_LEVEL = 0.04
"""Speeds of two attempts closer than this are equal: each has the error of its own comparison with float."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A quantized model, how well it agrees with the float model, and how much faster it is."""

    name: str
    outcome: Outcome
    agreement: float
    """Agreement with the float model, without labels: 1 is identical."""
    speed_ratio: float | None = None
    """Time of the float model over its own; None where no time is measured."""
    reason: str = ""
    """Why it is what it is, in one paragraph: of the few that labels may judge."""
    decisions: Decisions | None = None
    """Decisions from which the same model can be made again; None of a search that keeps none."""
    precision: str = "w8a8"
    """Its scheme: which element types weights and most activations have."""

    def is_valid(self, least_agreement: float) -> bool:
        """Whether it is faster than its parent, by more than measuring can tell, and agrees with it well enough.

        Where no time is measured it need only agree.
        """
        is_faster = self.speed_ratio is None or self.speed_ratio > 1 + _TIE
        return is_faster and self.agreement >= least_agreement

    @property
    def pace(self) -> float:
        """The speed by which attempts are ranked; all that are not timed are alike."""
        return 1.0 if self.speed_ratio is None else self.speed_ratio


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a variant is no attempt."""

    problem: str
    is_float: bool = False
    """Whether nothing of it runs on integers: it is the float model again."""
    is_known: bool = False
    """Whether an attempt is the same model."""


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """One tensor that stays in float."""

    name: str
    score_db: float
    cost_ms: float | None
    """Cost of its layers in float against integers, below zero where float is faster; None where none was timed."""
    saved_agreement: float | None
    """Loss of agreement when it is quantized after all; None: that was not tried."""
    scales: str = "one scale"
    """The words for the scales that it would have."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences on why it stays in float, the cost of that, and the saving; without their full stops."""
        said = [f"The tensor {self.name!r} stays in float: {self.scales} holds it with {self.score_db:.1f} dB only"]
        if self.cost_ms is not None:
            more = "more" if self.cost_ms > 0 else "less"
            said.append(f"In float its layers take {abs(self.cost_ms):.2f} ms {more} than on integers")
        if self.saved_agreement is not None:
            lower = "lower" if self.saved_agreement >= 0 else "higher"
            said.append(f"On integers the agreement would be {abs(self.saved_agreement):.3f} {lower}")
        return tuple(said)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All attempts, best first, why the first is the best, and what is known of each tensor."""

    attempts: tuple[Attempt, ...]
    reason: str
    notes: tuple[Note, ...] = ()
    scores_db: Mapping[str, float] = field(default_factory=dict)
    """Per-channel-normalised SQNR of each tensor on its grid."""
    plain_db: Mapping[str, float] = field(default_factory=dict)
    """Plain SQNR of each tensor on its grid."""
    sensitivities_db: Mapping[str, float] = field(default_factory=dict)
    """SQNR of the answer with one tensor quantized, for the worst only."""
    kept: tuple[KeptTensor, ...] = ()
    """Tensors of the first attempt that stay in float, with what that costs and saves."""
    rounded: frozenset[str] = frozenset()
    """Tensors that the first attempt rounds to integers."""
    calibration: Calibration | None = None
    """Ranges that calibration saw in the model as it came, for a search for another engine."""
    times: LayerTimes | None = None
    """Times of layers, where they were measured."""

    @property
    def why_none(self) -> tuple[Note, ...]:
        """The notes of a run without any INT8 model; empty where there is one."""
        return () if self.attempts else (*self.notes, Note(NoteKind.WARNING, self.reason))


def ranked(attempts: Iterable[Attempt], least_agreement: float) -> tuple[Attempt, ...]:
    """Return the attempts best first: valid ones by speed, equal speeds by agreement, then the others by agreement.

    Of attempts that measuring cannot tell apart and that agree alike, the first that was tried leads: a rule, where
    noise would choose another one each time.
    """
    known = list(attempts)
    valid = [attempt for attempt in known if attempt.is_valid(least_agreement)]
    others = [attempt for attempt in known if not attempt.is_valid(least_agreement)]
    ordered: list[Attempt] = []
    while valid:
        level = max(attempt.pace for attempt in valid) * (1 - _LEVEL)
        ordered += sorted((attempt for attempt in valid if attempt.pace >= level), key=lambda other: -other.agreement)
        valid = [attempt for attempt in valid if attempt.pace < level]
    return (*ordered, *sorted(others, key=lambda other: -other.agreement))


def for_labels(attempts: Sequence[Attempt], most: int) -> tuple[Attempt, ...]:
    """Return what labels judge: the first `most`; the last of them is replaced by the most accurate if that is another.

    Labels may refuse all that is near the fastest; what agrees best is then still there to be chosen.

    Args:
        attempts: Best first.
        most: How many; each costs an evaluation.
    """
    best = attempts[:most]
    surest = max((one for one in attempts if one.is_valid(0.0)), key=lambda one: one.agreement, default=None)
    if most < 2 or surest is None or surest.agreement <= max(attempt.agreement for attempt in best):
        return tuple(best)
    return (*best[: most - 1], surest)
