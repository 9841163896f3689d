"""Which candidate is chosen: what is proven faster and keeps its accuracy, else the original. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from edgeopt.measurement.accuracy.acceptance import keeps_accuracy
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.pipeline.candidate import BASELINE, Candidate
from edgeopt.recipes.recipe import LEAST_AGREEMENT
from edgeopt.system.text import format_bytes

_MOST_LIGHTER = 2
_USABLE = 0.8
"""Share of the original's metric, or agreement with it, that a model keeps to which an app may degrade."""


class Prefer(StrEnum):
    """What is wanted of the chosen candidate."""

    SPEED = "speed"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The name of the chosen candidate, and why in one paragraph."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What a candidate must keep, and what is wanted of it."""

    max_drop: float
    """In the metric's unit."""
    least_agreement: float = LEAST_AGREEMENT
    """With the original, where no labels judge."""
    prefer: Prefer = Prefer.SPEED
    must_be_timed: frozenset[str] = frozenset()
    """Names of the steps whose models are not chosen where no speed was measured."""

    def keeps(self, candidate: Candidate) -> bool:
        """Whether a candidate runs on its device and keeps its accuracy."""
        kept = keeps_accuracy(candidate.drop, candidate.agreement, self.max_drop, self.least_agreement)
        return kept and not candidate.unfit


IsFaster = Callable[[str, str], bool]
"""Whether the first of two candidates is proven faster than the second."""


def why_refused(candidate: Candidate, wish: Wish) -> str:
    """Return why a candidate must not be chosen; empty when it may be."""
    if candidate.name == BASELINE:
        return ""
    if not wish.keeps(candidate):
        return candidate.unfit or _loss_words(candidate, wish)
    if candidate.speed is None and (steps := wish.must_be_timed & {*candidate.steps}):
        return f"{' and '.join(sorted(steps))} must pay in measured time, and none is measured here"
    if candidate.speed is not None and candidate.speed.verdict is Change.SLOWER:
        return f"slower than the original: {candidate.speed}"
    return ""


def _loss_words(candidate: Candidate, wish: Wish) -> str:
    """Return what a candidate loses that does not keep its accuracy."""
    if candidate.drop is not None:
        metric = f" {candidate.score.metric}" if candidate.score else ""
        lost = f"drops {candidate.drop:.4f}{metric} {candidate.drop_interval}".rstrip()
        return f"{lost}, {wish.max_drop:g} allowed"
    agrees = f"agrees with the original in {candidate.agreement or 0:.3f} only"
    return f"{agrees}, {wish.least_agreement:g} asked without labels"


def mark(candidates: Sequence[Candidate], wish: Wish) -> tuple[Candidate, ...]:
    """Return the candidates with refusals and the front marked.

    Args:
        candidates: The baseline first. Candidates without a speed ratio were not measured on the target.
        wish: What they must keep.
    """
    judged = [replace(one, refused=why_refused(one, wish)) for one in candidates]
    return tuple(replace(one, on_front=_on_front(one, judged)) for one in judged)


def shortlist(marked: Sequence[Candidate], wish: Wish, asked: Collection[str], most: int) -> tuple[str, ...]:
    """Return the candidates that are worth a proof, the most promising first; none where nothing is left.

    To the fastest belongs the fastest of those that lose less than all of them: what loses more must beat it.

    Args:
        marked: From `mark`, with the speeds of one run.
        wish: What is wanted.
        asked: Names that were on a list before.
        most: How many, beside the one that loses less.
    """
    open_to = [one for one in marked[1:] if not one.refused and one.name not in asked and one.speed is not None]
    if wish.prefer is Prefer.SIZE:
        smaller = [one for one in open_to if one.size_bytes < marked[0].size_bytes]
        return tuple(one.name for one in sorted(smaller, key=lambda one: (one.size_bytes, loss(one)))[:most])
    promising = sorted((one for one in open_to if one.speed and one.speed.high > 1), key=lambda one: -_speed(one))
    listed = promising[:most]
    kinder = [one for one in promising[most:] if loss(one) < min(map(loss, listed))]
    return tuple(one.name for one in (*listed, *kinder[:1]))


def choose(marked: Sequence[Candidate], wish: Wish, is_faster: IsFaster) -> Chosen:
    """Return the choice.

    For speed: of those that are proven faster than the original, the one that loses least, unless another is proven
    faster than it. For size: the smallest that is not proven slower. Ties fall to the smaller, then to the earlier one.

    Args:
        marked: From `mark`, with the speeds that were proven.
        wish: What is wanted.
        is_faster: Of two candidates that are both proven faster than the original.
    """
    allowed = [one for one in marked if not one.refused]
    if len(allowed) == 1:
        return Chosen(BASELINE, _only_baseline(marked))
    if not any(one.speed for one in allowed):
        best = next(one for one in allowed[1:] if one.steps == allowed[-1].steps)
        return Chosen(best.name, _reason_unmeasured(best, marked, wish.max_drop))
    if wish.prefer is Prefer.SIZE:
        small = [one for one in allowed[1:] if _is_small(one, marked[0])]
        if not small:
            return Chosen(BASELINE, f"the original stays: no candidate is smaller and accurate enough{_tried(marked)}")
        best = min(small, key=lambda one: (one.size_bytes, loss(one)))
        return Chosen(best.name, _reason(best, marked, wish))
    proven = sorted((one for one in allowed if is_proven(one)), key=lambda one: (loss(one), one.size_bytes))
    unbeaten = [one for one in proven if not any(is_faster(other.name, one.name) for other in proven)]
    if not proven:
        return Chosen(BASELINE, _only_baseline(marked))
    best = next(iter(unbeaten), max(proven, key=_speed))
    return Chosen(best.name, _reason(best, marked, wish))


def lighter_than(chosen: Candidate, marked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return what an app may degrade to: measured faster than the choice, less accurate, and still a model.

    The fastest, and before it the one that loses least; the fastest first.
    """
    mine = chosen.speed.high if chosen.speed else 1.0
    fit = [
        one
        for one in marked
        if not one.unfit
        and one.speed
        and one.speed.low > mine
        and loss(one) > loss(chosen)
        and _is_usable(one, marked[0])
    ]
    by_speed = sorted(fit, key=lambda one: -_speed(one))
    kinder = sorted(by_speed[1:], key=loss)[: _MOST_LIGHTER - 1]
    return (*by_speed[:1], *kinder)


def _is_usable(one: Candidate, baseline: Candidate) -> bool:
    """Whether a candidate keeps most of what the original answers."""
    if one.score and baseline.score:
        return one.score.value >= _USABLE * baseline.score.value
    return (one.agreement or 0.0) >= _USABLE


def is_answered(marked: Sequence[Candidate], wish: Wish) -> bool:
    """Return whether one of the candidates may be chosen."""
    allowed = [one for one in marked[1:] if not one.refused]
    if wish.prefer is Prefer.SIZE:
        return any(_is_small(one, marked[0]) for one in allowed)
    return any(map(is_proven, allowed))


def is_proven(candidate: Candidate) -> bool:
    """Return whether a candidate is proven faster than the original."""
    return candidate.speed is not None and candidate.speed.verdict is Change.FASTER


def _is_small(one: Candidate, baseline: Candidate) -> bool:
    """Whether it is smaller, and known not to be slower."""
    known = one.speed is not None and one.speed.verdict in (Change.FASTER, Change.EQUIVALENT, Change.INCONCLUSIVE)
    return known and one.size_bytes < baseline.size_bytes


def loss(candidate: Candidate) -> float:
    """Return what a candidate loses: of the metric, or of the agreement where there are no labels."""
    if candidate.drop is not None:
        return candidate.drop
    return 0.0 if candidate.agreement is None else 1 - candidate.agreement


def _speed(candidate: Candidate) -> float:
    return candidate.speed.speedup if candidate.speed else 1.0


def _on_front(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Whether no other candidate is at least as fast and as accurate, and better in one."""
    if one.speed is None and one.name != BASELINE:
        return False

    def place(candidate: Candidate) -> tuple[float, float]:
        return _speed(candidate), -(candidate.drop or 0.0)

    mine = place(one)
    rivals = [place(other) for other in others if other is not one and (other.speed or other.name == BASELINE)]
    return not any(speed >= mine[0] and kept >= mine[1] and (speed, kept) != mine for speed, kept in rivals)


def _only_baseline(candidates: Sequence[Candidate]) -> str:
    return f"the original stays: no candidate is proven faster and accurate enough{_tried(candidates)}"


def _tried(candidates: Sequence[Candidate]) -> str:
    """Return what is known of each candidate, in brackets; empty where there is none."""
    known = [f"{one.name} {one.refused or _speed_words(one)}" for one in candidates[1:]]
    return f" ({'; '.join(known)})" if known else ""


def _speed_words(one: Candidate) -> str:
    return f"{one.speed} {one.speed.verdict}" if one.speed else "not measured"


def _reason_unmeasured(best: Candidate, candidates: Sequence[Candidate], max_drop: float) -> str:
    text = f"{best.name}: the last candidate inside the allowed drop"
    if best.simulated and best.drop is not None:
        change = "loses" if best.drop > 0 else "gains"
        lost = f"{change} {abs(best.drop):.4f} {best.simulated.metric} on {best.simulated.n} pictures"
        text = f"{best.name}: the first form that is accurate with the device's numbers: {lost} ({max_drop:g} allowed)"
    if best.placement:
        text += f"; {best.placement}"
    passed = [f"{one.name} {one.refused}" for one in candidates if one.refused]
    return f"{text}; speed not measured" + (f"; not chosen: {'; '.join(passed)}" if passed else "")


def _reason(best: Candidate, candidates: Sequence[Candidate], wish: Wish) -> str:
    assert best.speed is not None
    text = f"{best.name}: "
    if wish.prefer is Prefer.SIZE:
        sizes = f"{format_bytes(best.size_bytes)}, the original {format_bytes(candidates[0].size_bytes)}"
        text += f"the smallest that is not proven slower ({sizes}), "
    text += f"{best.speed} the original's speed over whole frames"
    if best.speed.processes > 1:
        text += f" in {best.speed.processes} fresh processes"
    text += "" if is_proven(best) else f" ({best.speed.verdict})"
    text += f", execution alone {best.execute}" if best.execute else ""
    if best.drop is not None and best.score:
        change = "loses" if best.drop > 0 else "gains"
        interval = f"drop in {best.drop_interval}, " if best.drop_interval else ""
        text += f", {change} {abs(best.drop):.4f} {best.score.metric} ({interval}{wish.max_drop:g} allowed)"
    elif best.agreement is not None:
        text += f", agrees with the float model in {best.agreement:.3f} (no labels given)"
    passed = [f"{one.name} {one.refused}" for one in candidates if one.refused]
    return text + (f"; not chosen: {'; '.join(passed)}" if passed else "")
