"""One INT8 candidate with its two figures, and the order between several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.search.decisions import Decisions

_TIE = 0.02
"""By so much a form must be faster than float: a minute of measuring on a shared machine is no finer."""
_LEVEL = 0.04
"""Speeds of two forms closer than this are equal: each has the error of its own comparison with float."""


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
    """Return the attempts best first: valid ones by speed, equal speeds by agreement, then the others by agreement.

    Of what measuring cannot tell apart, and agrees alike, the first that was tried leads: a rule, where noise would
    choose another one each time.
    """
    known = list(attempts)
    valid = [one for one in known if one.is_valid(least_agreement)]
    others = [one for one in known if not one.is_valid(least_agreement)]
    found: list[Attempt] = []
    while valid:
        level = max(one.speed_ratio for one in valid) * (1 - _LEVEL)
        found += sorted((one for one in valid if one.speed_ratio >= level), key=lambda one: -one.agreement)
        valid = [one for one in valid if one.speed_ratio < level]
    return (*found, *sorted(others, key=lambda one: -one.agreement))


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
