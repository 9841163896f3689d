"""The one rule by which a model keeps its accuracy: a bound that is proven on samples that chose nothing.

KEPT          the bound of what is lost lies within what is allowed
LOST          what is lost at least lies above what is allowed
NOT DECIDED   neither is shown: more labelled samples would decide
AGREES        without labels: the answers are the original's, by the bound of the agreement
DIFFERS       without labels: they are not

Each bound is one-sided and wrong in at most `level` of all cases. Several candidates are tested one after the other in
an order that was fixed before the labels were opened, each at the full level, until the first that is not proven
(Angelopoulos et al. 2021, Learn then Test, section 4): see `in_order`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.accuracy.bootstrap import Scored, drop_bounds
from edgeopt.measurement.accuracy.paired_shares import least_samples, lower_bound, most_unseen, upper_bound
from edgeopt.measurement.statistics.distributions import student_quantile
from edgeopt.system.text import format_drop, plural

LEVEL = 0.05
"""Probability that a word is wrong, at any of the looks at labels."""
LEVELS_OF_LOOKS = (0.04, 0.005, 0.005)
"""Levels of a first look at a whole labelled set, and of two more where labels are added: most sets are looked at
once."""
LEVELS_IN_STAGES = (LEVEL / 3,) * 3
"""Levels in stages of looks at labels that a person adds to from the beginning."""
_POWER = 0.8
"""Probability with which the number of samples that is told decides."""
_UNTESTED = "a safer candidate is not proven, so this one was not tested"
_ROUNDING = 1e-9
"""Four of 400 samples are 0.01, whatever floating point makes of it."""


class NoProof(StrEnum):
    """Why labels prove nothing."""

    STEERED = "these labels steered the search"
    OVERUSED = "these labels were looked at too often"


NO_TIME = "no time to judge it"
"""Why nothing is known of a candidate that a time limit left."""
_INSTEAD: Mapping[str, str] = {
    NoProof.STEERED: "labels of other samples would decide",
    NoProof.OVERUSED: "labels of other samples would decide, in another folder (-o)",
    _UNTESTED: "what decides the safer candidate lets this one be tested",
}
"""Reason without a decision -> remedy that would decide, where the bound lies within the allowed drop."""


class Word(StrEnum):
    """The word for a model's proven accuracy."""

    KEPT = "KEPT"
    AGREES = "AGREES"
    NOT_DECIDED = "NOT DECIDED"
    DIFFERS = "DIFFERS"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The proof of one model's accuracy, and the samples it rests on."""

    word: Word
    samples: int
    """Number of samples on which the word rests."""
    allowed: float
    """Metric that may be lost; without labels, the least agreement."""
    level: float = LEVEL
    """Probability that the word is wrong."""
    drop: float | None = None
    """Metric that is lost on these samples; None without labels."""
    drop_least: float | None = None
    drop_most: float | None = None
    """One-sided bounds of the drop, each wrong in `level` of all cases."""
    agreement: float | None = None
    """Agreement with the original's answers to these samples, 0 to 1; None where labels judge."""
    agreement_least: float | None = None
    """One-sided bound of it."""
    changed: int | None = None
    """Answers that are not the original's; None where an answer is no single choice."""
    labels: int | None = None
    """Labels that were read: those of changed answers suffice; None: all."""
    wanted: int = 0
    """Samples that would decide, in four of five cases; 0: none would, or nothing is open."""
    why: str = ""
    """Further ground for the word, or the reason why nothing is known."""
    instead: str = ""
    """Remedy that would decide, where neither samples nor labels would."""

    @property
    def is_proven(self) -> bool:
        """Whether the model may stand for the original."""
        return self.word in (Word.KEPT, Word.AGREES)

    @property
    def is_open(self) -> bool:
        """Whether it is not decided, and what is seen lies within what is allowed."""
        if self.word is not Word.NOT_DECIDED:
            return False
        if self.drop is not None:
            return is_within(self.drop, self.allowed)
        return self.agreement is None or self.agreement >= self.allowed

    @property
    def risk(self) -> float:
        """The largest loss that is not excluded: of the metric, or of the agreement without labels.

        In the digits that are shown: what reads the same is the same risk.
        """
        if self.drop_most is not None:
            return round(self.drop_most, 4)
        return 0.0 if self.agreement_least is None else round(1.0 - self.agreement_least, 3)

    @property
    def wanted_labels(self) -> int:
        """How many of the wanted samples need a label: the changed answers, where an answer is a single choice."""
        if self.changed is None or not self.samples:
            return self.wanted
        return math.ceil(self.wanted * max(self.changed, 1) / self.samples)

    @property
    def proof(self) -> dict[str, Any]:
        """The word, its bound and what it rests on, as a bundle's manifest holds it."""
        bounds = {"drop_most": self.drop_most, "agreement_least": self.agreement_least}
        known = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"word": str(self.word), "samples": self.samples, "allowed": self.allowed, **known}

    def __str__(self) -> str:
        """Say what is lost, and at most, and on what that rests."""
        if self.drop is None:
            return self._agreement_words
        if not self.samples:
            return self.why
        bound = "" if self.drop_most is None else f", at most {format_drop(self.drop_most)}"
        changed = "" if self.changed is None else f", {self.changed} answers changed"
        labels = "" if self.labels is None else f", {plural(self.labels, 'label')}"
        rests = f"{plural(self.samples, 'sample')}{changed}{labels}"
        why = f"; {self.why}" if self.why else ""
        return f"drop {format_drop(self.drop)}{bound} ({self.allowed:g} allowed; {rests}){why}"

    @property
    def confidence_words(self) -> str:
        """Say how sure the bound in the text is, to follow it; empty where there is no bound."""
        has_bound = self.drop_most is not None or self.agreement_least is not None
        return f"; confidence {100 * (1 - self.level):.3g}%" if has_bound and self.samples else ""

    @property
    def _agreement_words(self) -> str:
        if self.agreement is None or self.agreement_least is None:
            return self.why
        changed = "" if self.changed is None else f", {self.changed} answers changed"
        bound = f"at least {self.agreement_least:.3f}"
        return f"agreement {self.agreement:.3f}, {bound} ({plural(self.samples, 'sample')}{changed})"

    @property
    def remedy(self) -> str:
        """The labels or limit that would decide; empty where it is decided."""
        if self.word is not Word.NOT_DECIDED:
            return ""
        if instead := self.instead or _INSTEAD.get(self.why, ""):
            return instead
        if self.drop is None:
            more = f"about {self.wanted:,} samples" if self.wanted else "more samples"
            return f"{more} would decide"
        if not self.wanted:
            return "no number of labels would: what is lost is not clearly less than what is allowed"
        labels = self.wanted_labels
        of_them = f", {labels:,} labels of changed answers" if self.changed is not None else ""
        return f"about {self.wanted:,} labelled samples would decide{of_them}"


def is_within(drop: float, allowed: float) -> bool:
    """Return whether a drop is allowed."""
    return drop <= allowed + _ROUNDING


def judge_numbers(decibels: float, allowed: float) -> Judgement:
    """Return that a model is kept whose outputs are the original's within float rounding: no label is needed.

    Args:
        decibels: Signal to noise of its outputs against the unoptimized original's.
        allowed: Metric that may be lost.
    """
    why = (
        "outputs are the original's" if math.isinf(decibels) else f"outputs within {decibels:.0f} dB of the original's"
    )
    return Judgement(Word.KEPT, 0, allowed, drop=0.0, drop_least=0.0, drop_most=0.0, why=why)


def judge_scores(
    before: Scored, after: Scored, allowed: float, *, level: float = LEVEL, later: float | None = None
) -> Judgement | None:
    """Return what is proven of a drop on labelled samples; None if the two were not scored on the same ones.

    Args:
        before: Of the original.
        after: Of the model.
        allowed: Metric that may be lost, in its unit.
        level: Probability that the word may be wrong.
        later: That of a look at more labels; None: the same.
    """
    if before.pictures_sha256 != after.pictures_sha256 or before.accuracy.metric != after.accuracy.metric:
        return None
    if before.right and len(before.right) == len(after.right):
        pairs = [*zip(before.right, after.right, strict=True)]
        worse, better = pairs.count(("1", "0")), pairs.count(("0", "1"))
        return judge_pairs(worse, better, len(pairs), allowed, level=level, later=later)
    samples = after.drawn or after.accuracy.n
    bounds = drop_bounds(before, after, level)
    if bounds is None:
        drop = before.accuracy.value - after.accuracy.value
        return Judgement(Word.NOT_DECIDED, samples, allowed, level, drop, why="a single sample has no interval")
    # A rare sample that is lost whole stays unseen, however alike the samples are that were seen.
    most = max(bounds.high, most_unseen(samples, level))
    judged = Judgement(Word.NOT_DECIDED, samples, allowed, level, bounds.value, bounds.low, most)
    spread = (bounds.high - bounds.low) / 2 / max(student_quantile(1 - level, max(samples - 1, 1)), 1e-9)
    return _decided(judged, spread * math.sqrt(samples), later)


def judge_pairs(
    worse: int,
    better: int,
    samples: int,
    allowed: float,
    *,
    level: float = LEVEL,
    later: float | None = None,
    changed: int | None = None,
    labels: int | None = None,
) -> Judgement:
    """Return what is proven of a drop of a share of right answers.

    Only changed answers need labels: an answer that is the original's is right or wrong as that one is.

    Args:
        worse: Answers that were right and are wrong now.
        better: Answers that were wrong and are right now.
        samples: All answers, drawn before any was looked at; the same ones too.
        allowed: Share that may be lost.
        level: Probability that the word may be wrong.
        later: That of a look at more labels; None: the same.
        changed: Answers that differ from the original's; None: not counted.
        labels: Labels that were read; None: all.
    """
    drop = (worse - better) / samples if samples else 0.0
    least, most = lower_bound(worse, better, samples, level), upper_bound(worse, better, samples, level)
    judged = Judgement(Word.NOT_DECIDED, samples, allowed, level, drop, least, most, changed=changed, labels=labels)
    share = (worse + better) / samples if samples else 0.0
    return _decided(judged, math.sqrt(max(share - drop * drop, 0.0)), later)


def judge_agreement(
    agreement: float,
    each: Sequence[float] | NDArray[np.float64],
    least: float,
    *,
    level: float = LEVEL,
    changed: int | None = None,
) -> Judgement:
    """Return what is proven of the agreement with the original's answers, where no labels judge.

    Args:
        agreement: Of all answers together, 0 to 1.
        each: (samples,) of each answer alone: what it varies by.
        least: What it must be.
        level: Probability that the word may be wrong.
        changed: Answers that differ from the original's; None: an answer is no single choice.
    """
    samples = len(each)
    spread = float(np.std(each, ddof=1)) if samples > 1 else 0.0
    reach = student_quantile(1 - level, samples - 1) * spread / math.sqrt(samples) if samples > 1 else 1.0
    bound = max(min(agreement - reach, 1 - most_unseen(samples, level)), 0.0)
    below = Word.NOT_DECIDED if agreement >= least else Word.DIFFERS
    word = Word.AGREES if bound >= least else below
    wanted = 0
    if word is Word.NOT_DECIDED and agreement > least:
        wanted = max(_samples_that_agree(agreement, spread, least, level), samples + 1)
    return Judgement(
        word, samples, least, level, agreement=agreement, agreement_least=bound, changed=changed, wanted=wanted
    )


def samples_that_agree(agreement: float, least: float) -> int:
    """Return how many samples at most prove an agreement that was seen on a few; 0: it is too low.

    Args:
        agreement: Of the few.
        least: What it must be.
    """
    most_spread = math.sqrt(max(agreement * (1 - agreement), 0.0))  # each answer agrees wholly or not at all
    return _samples_that_agree(agreement, most_spread, least, LEVEL) if agreement > least else 0


def _samples_that_agree(agreement: float, spread: float, least: float, level: float) -> int:
    reaching = (NormalDist().inv_cdf(1 - level) * spread / (agreement - least)) ** 2
    return max(least_samples(1 - least, level), math.ceil(reaching))


def _decided(judged: Judgement, deviation: float, later: float | None) -> Judgement:
    """Return a judgement with its word, and how many samples would decide what is open.

    Args:
        judged: With its bounds.
        deviation: Standard deviation of what one sample loses.
        later: Level of a look at more samples; None: that of this one.
    """
    assert judged.drop is not None
    if judged.drop_most is not None and is_within(judged.drop_most, judged.allowed):
        return replace(judged, word=Word.KEPT)
    if judged.drop_least is not None and judged.drop_least > judged.allowed + _ROUNDING:
        return replace(judged, word=Word.LOST)
    return replace(judged, wanted=_samples_for(judged, deviation, later or judged.level))


def _samples_for(judged: Judgement, deviation: float, level: float) -> int:
    """Return how many samples prove the drop that is seen in four of five cases at a level; 0: no number does."""
    drop = max(judged.drop or 0.0, 0.0)  # what seems gained is chance
    room = judged.allowed - drop
    if room <= 0:
        return 0
    z = NormalDist()
    reach = z.inv_cdf(1 - level) + z.inv_cdf(_POWER)
    wanted = math.ceil((reach * deviation / room) ** 2)
    return max(wanted, least_samples(judged.allowed, level), judged.samples + 1)


def unproven(judged: Judgement, why: NoProof) -> Judgement:
    """Return a judgement by labels that prove nothing: what they would prove is not decided."""
    return replace(judged, word=Word.NOT_DECIDED, why=why.value) if judged.is_proven else judged


def in_order(judged: Sequence[Judgement]) -> list[Judgement]:
    """Return judgements of candidates that were tested one after the other: behind the first unproven none is proven.

    Args:
        judged: In the order that was fixed before the labels were opened, the safest first.
    """
    ended, kept = False, list[Judgement]()
    for judgement in judged:
        if ended and judgement.is_proven:
            judgement = replace(judgement, word=Word.NOT_DECIDED, why=_UNTESTED)
        ended = ended or not judgement.is_proven
        kept.append(judgement)
    return kept
