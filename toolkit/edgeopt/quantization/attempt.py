"""One INT8 candidate with its two figures, and the order between several. It makes none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgeopt.outcome import Outcome
from edgeopt.quantization.decisions import Decisions

_TIE = 0.02
"""Speeds closer than this are equal: a minute of measuring on a shared machine is no finer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A quantized model, how well it agrees with the float one, and how much faster it is."""

    name: str
    outcome: Outcome
    agreement: float
    """With the float model, without labels: 1 is identical."""
    speed_ratio: float
    """Time of the float model over its own."""
    reason: str = ""
    """Why it is what it is, in one paragraph: of the few that labels may judge."""
    decisions: Decisions | None = None
    """From which the same model can be made again; None of a search that does not tell."""

    def is_valid(self, least_agreement: float) -> bool:
        """Whether it is faster than its parent, by more than measuring can tell, and agrees with it well enough."""
        return self.speed_ratio > 1 + _TIE and self.agreement >= least_agreement


def ranked(attempts: Iterable[Attempt], least_agreement: float) -> tuple[Attempt, ...]:
    """Return the attempts best first: valid ones by speed, equal speeds by agreement, then the others by agreement."""

    def rank(one: Attempt) -> tuple[bool, float, float]:
        valid = one.is_valid(least_agreement)
        return (not valid, -_step(one.speed_ratio) if valid else 0.0, -one.agreement)

    return tuple(sorted(attempts, key=rank))


def has_integers(outcome: Outcome) -> bool:
    """Whether anything is left of INT8: where every layer is faster in float, the form is the float model again."""
    return any("Linear" in op or "Integer" in op or "NBits" in op for op in outcome.model.op_counts)


def for_labels(attempts: Sequence[Attempt], most: int) -> tuple[Attempt, ...]:
    """Return what labels judge: the first ones, the last of which gives way to the faster one that agrees best.

    Labels may refuse all that is near the fastest; what agrees best is then still there to be chosen.

    Args:
        attempts: Best first.
        most: How many; each costs an evaluation.
    """
    best = attempts[:most]
    surest = max((one for one in attempts if one.is_valid(0.0)), key=lambda one: one.agreement, default=None)
    if most < 2 or surest is None or surest.agreement <= max(one.agreement for one in best):
        return tuple(best)
    return (*best[: most - 1], surest)


def _step(ratio: float) -> int:
    """Return the speed in steps of _TIE."""
    return round(ratio / _TIE)
