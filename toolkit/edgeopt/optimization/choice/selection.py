"""Which candidate is chosen: the fastest that is KEPT, else the safest that is open, else the original. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.options import Prefer
from edgeopt.recipes.recipe import LEAST_AGREEMENT
from edgeopt.system.text import format_bytes

_MOST_LIGHTER = 2
USABLE = 0.8
"""Share of the original's metric that a model keeps to which an app may degrade."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The name of the chosen candidate, and why in one paragraph."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wish:
    """The accuracy that a candidate must keep, and the preference among those that do."""

    max_drop: float
    """Greatest drop in the metric's unit."""
    least_agreement: float = LEAST_AGREEMENT
    """Least agreement with the original's answers to the samples of the search: a candidate below it is not proven and
    not chosen."""
    least_of_smaller: float | None = None
    """The same of models for smaller pictures; None: as much as of others."""
    prefer: Prefer = Prefer.SPEED
    must_be_timed: frozenset[str] = frozenset()
    """Names of the steps whose models are not chosen where no speed was measured."""

    def asked_of(self, candidate: Candidate) -> float:
        """Return the agreement that a candidate must reach before labels are opened."""
        if candidate.input_size and self.least_of_smaller is not None:
            return self.least_of_smaller
        return self.least_agreement

    def keeps(self, candidate: Candidate) -> bool:
        """Whether a candidate runs on its device and may still be chosen for what is known of its accuracy.

        Until it is judged that is its agreement: a search reads no labels.
        """
        if candidate.unfit:
            return False
        if judged := candidate.judgement:
            return judged.is_proven or judged.is_open
        return candidate.agreement is None or candidate.agreement >= self.asked_of(candidate)


_NOT_MEASURED = "not measured: there was time for other forms alone"
IsFaster = Callable[[str, str], bool]
"""Whether the first of two candidates is proven faster than the second."""


def why_refused(candidate: Candidate, wish: Wish) -> str:
    """Return why a candidate must not be chosen; empty when it may be."""
    if candidate.name == BASELINE:
        return ""
    if not wish.keeps(candidate):
        return candidate.unfit or _loss_words(candidate, wish)
    if candidate.speed is None and candidate.predicted and (candidate.is_lossy or candidate.profile):
        speed = candidate.predicted.speed
        return "" if speed.is_faster else f"not surely faster: predicted {speed}"
    if candidate.speed is None and (steps := wish.must_be_timed & {*candidate.steps}):
        return f"{' and '.join(sorted(steps))} must pay in measured time, and none is measured here"
    if candidate.speed is not None and candidate.speed.verdict is Change.SLOWER:
        return f"slower than the original: {candidate.speed}"
    return ""


def _why_unpredicted(candidate: Candidate) -> str:
    """Return why a candidate must not be chosen where others have predicted times; empty if it may be chosen."""
    is_unknown = candidate.speed is None and candidate.predicted is None and candidate.is_lossy
    return "no time of such a form is predicted or measured" if is_unknown else ""


def _loss_words(candidate: Candidate, wish: Wish) -> str:
    """Return what a candidate loses that may not be chosen for it."""
    if judged := candidate.judgement:
        return f"{judged.word}: {judged}"
    agrees = f"agrees with the original in {candidate.agreement or 0:.3f} only"
    return f"{agrees}, {wish.asked_of(candidate):g} asked before labels are opened"


def mark(candidates: Sequence[Candidate], wish: Wish) -> tuple[Candidate, ...]:
    """Return the candidates with refusals and the front marked.

    Args:
        candidates: The baseline first. Candidates without a speed ratio were not measured on the target.
        wish: What they must keep.
    """
    judged = [replace(candidate, refused=why_refused(candidate, wish)) for candidate in candidates]
    if any(candidate.predicted for candidate in candidates):
        judged = [replace(candidate, refused=candidate.refused or _why_unpredicted(candidate)) for candidate in judged]
    elif any(candidate.speed for candidate in candidates):  # a time limit left no time for the turns of all
        judged = [
            one if one.name == BASELINE or one.speed else replace(one, refused=one.refused or _NOT_MEASURED)
            for one in judged
        ]
    return tuple(replace(candidate, on_front=_on_front(candidate, judged)) for candidate in judged)


def shortlist(marked: Sequence[Candidate], wish: Wish, asked: Collection[str], most: int) -> tuple[str, ...]:
    """Return the candidates that are worth a proof, the most promising first; none where nothing is left.

    To the fastest belongs the fastest of those that lose less than all of them: what loses more must beat it. So does
    the fastest that computes what the original does: labels, which are opened later, may be too few to judge others.

    Args:
        marked: From `mark`, with the speeds of one run.
        wish: What is wanted.
        asked: Names that were on a list before.
        most: How many, beside these two.
    """
    open_to = [
        candidate
        for candidate in marked[1:]
        if not candidate.refused and candidate.name not in asked and candidate.speed is not None
    ]
    if wish.prefer is Prefer.SIZE:
        smaller = [candidate for candidate in open_to if candidate.size_bytes < marked[0].size_bytes]
        return tuple(one.name for one in sorted(smaller, key=lambda one: (one.size_bytes, loss(one)))[:most])
    promising = sorted((one for one in open_to if one.speed and one.speed.high > 1), key=lambda one: -_speed(one))
    listed = promising[:most]
    kinder = [candidate for candidate in promising[most:] if loss(candidate) < min(map(loss, listed))]
    listed += kinder[:1]
    if not any(candidate.is_rewrite for candidate in listed):
        listed += [candidate for candidate in promising if candidate.is_rewrite][:1]
    return tuple(candidate.name for candidate in listed)


def choose(marked: Sequence[Candidate], wish: Wish, is_faster: IsFaster) -> Chosen:
    """Return the choice: the fastest KEPT, else the safest that is open, else the original; each proven faster.

    Of open candidates that may lose equally much at most the fastest is the safest. Of two that are not proven to
    differ in speed the safer is the fastest. Ties fall to the smaller, then to what lost less: proofs of accuracy hold
    together, and so the choice among them; those of speed hold each alone.
    For size: the smallest that is not proven slower. Without labels, AGREES stands for KEPT.

    Args:
        marked: From `mark`, with the speeds that were proven and the judgements.
        wish: What is wanted.
        is_faster: Of two candidates that are both proven faster than the original.
    """
    allowed = [candidate for candidate in marked[1:] if not candidate.refused and candidate.judgement]
    kept = [candidate for candidate in allowed if candidate.judgement and candidate.judgement.is_proven]
    still_open = sorted((one for one in allowed if one not in kept), key=lambda one: (_risk(one), one.size_bytes))
    if not any(candidate.speed for candidate in allowed):
        if not allowed:
            return Chosen(BASELINE, _only_baseline(marked))
        on_device = {one.name for one in allowed if one.profile} or {one.name for one in allowed}
        fitting = [candidate for candidate in kept if candidate.name in on_device]
        fitting = fitting or [candidate for candidate in still_open if candidate.name in on_device][:1]
        best = next(candidate for candidate in fitting if candidate.steps == fitting[-1].steps)
        if any(candidate.predicted for candidate in fitting):
            best = max(reversed(fitting), key=lambda other: other.predicted.speed.ratio if other.predicted else 0.0)
        return Chosen(best.name, _reason_unmeasured(best, marked))
    if wish.prefer is Prefer.SIZE:
        small = [candidate for candidate in kept if _is_small(candidate, marked[0])]
        small = small or [candidate for candidate in still_open if _is_small(candidate, marked[0])][:1]
        if not small:
            return Chosen(BASELINE, f"the original stays: no candidate is smaller and accurate enough{_tried(marked)}")
        best = min(small, key=lambda candidate: (candidate.size_bytes, _risk(candidate)))
        return Chosen(best.name, _reason(best, marked, wish))

    def by_safety(candidate: Candidate) -> tuple[float, float, float]:
        share = round(candidate.size_bytes / marked[0].size_bytes, 2)  # less than a hundredth is no smaller model
        return _risk(candidate), share, _drop(candidate)

    proven = [candidate for candidate in kept if is_proven(candidate)]
    proven_open = [candidate for candidate in still_open if is_proven(candidate)]
    if not proven and not proven_open:
        return Chosen(BASELINE, _only_baseline(marked))
    # with few samples many bounds are one: what may lose as much as another is chosen for its speed
    equals = proven or [candidate for candidate in proven_open if _risk(candidate) == _risk(proven_open[0])]
    equals = sorted(equals, key=by_safety)
    unbeaten = [candidate for candidate in equals if not any(is_faster(other.name, candidate.name) for other in equals)]
    best = next(iter(unbeaten), max(equals, key=_speed))
    return Chosen(best.name, _reason(best, marked, wish))


def _risk(candidate: Candidate) -> float:
    return candidate.judgement.risk if candidate.judgement else 1.0


def _drop(candidate: Candidate) -> float:
    """Return what is lost on the samples that judge it."""
    judged = candidate.judgement
    return loss(candidate) if judged is None or judged.drop is None else judged.drop


def lighter_than(
    chosen: Candidate, marked: Sequence[Candidate], least_agreement: float = LEAST_AGREEMENT
) -> tuple[Candidate, ...]:
    """Return what an app may degrade to: measured faster than the choice, less accurate, and still a model.

    The fastest, and before it the one that loses least; the fastest first.

    Args:
        chosen: The choice.
        marked: All candidates, the original first.
        least_agreement: What the recipe asks where no labels judge.
    """
    mine = chosen.speed.high if chosen.speed else 1.0
    fit = [
        candidate
        for candidate in marked
        if not candidate.unfit
        and candidate.speed
        and candidate.speed.low > mine
        and loss(candidate) > loss(chosen)
        and _is_usable(candidate, marked[0], least_agreement)
    ]
    by_speed = sorted(fit, key=lambda candidate: -_speed(candidate))
    kinder = sorted(by_speed[1:], key=loss)[: _MOST_LIGHTER - 1]
    return (*by_speed[:1], *kinder)


def _is_usable(candidate: Candidate, baseline: Candidate, least_agreement: float) -> bool:
    """Whether a candidate keeps most of the original's metric, or without labels as much as the recipe asks."""
    if candidate.score and baseline.score:
        return candidate.score.value >= USABLE * baseline.score.value
    judged = candidate.judgement.agreement if candidate.judgement else None
    agreement = candidate.agreement if judged is None else judged
    return (agreement or 0.0) >= least_agreement


def is_answered(marked: Sequence[Candidate], wish: Wish) -> bool:
    """Return whether one of the candidates may be chosen."""
    allowed = [candidate for candidate in marked[1:] if not candidate.refused]
    if wish.prefer is Prefer.SIZE:
        return any(_is_small(candidate, marked[0]) for candidate in allowed)
    return any(map(is_proven, allowed))


def is_proven(candidate: Candidate) -> bool:
    """Return whether a candidate is proven faster than the original."""
    return candidate.speed is not None and candidate.speed.verdict is Change.FASTER


def _is_small(candidate: Candidate, baseline: Candidate) -> bool:
    """Whether it is smaller, and known not to be slower."""
    known = candidate.speed is not None and candidate.speed.verdict in (
        Change.FASTER,
        Change.EQUIVALENT,
        Change.INCONCLUSIVE,
    )
    return known and candidate.size_bytes < baseline.size_bytes


def loss(candidate: Candidate) -> float:
    """Return what a candidate loses of the agreement with the original's answers: the labels steer no search."""
    return 0.0 if candidate.agreement is None else 1 - candidate.agreement


def _speed(candidate: Candidate) -> float:
    return candidate.speed.speedup if candidate.speed else 1.0


def _on_front(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Whether no other candidate is at least as fast and as accurate, and better in one."""
    if one.speed is None and one.name != BASELINE:
        return False

    def place(candidate: Candidate) -> tuple[float, float]:
        return _speed(candidate), -loss(candidate)

    mine = place(one)
    rivals = [place(other) for other in others if other is not one and (other.speed or other.name == BASELINE)]
    return not any(speed >= mine[0] and kept >= mine[1] and (speed, kept) != mine for speed, kept in rivals)


def _only_baseline(candidates: Sequence[Candidate]) -> str:
    return f"the original stays: no candidate is proven faster and accurate enough{_tried(candidates)}"


def _tried(candidates: Sequence[Candidate]) -> str:
    """Return what is known of each candidate, in brackets; empty where there is none."""
    known = [f"{candidate.name} {candidate.refused or _speed_words(candidate)}" for candidate in candidates[1:]]
    return f" ({'; '.join(known)})" if known else ""


def _speed_words(candidate: Candidate) -> str:
    return f"{candidate.speed} {candidate.speed.verdict}" if candidate.speed else "not measured"


def _reason_unmeasured(best: Candidate, candidates: Sequence[Candidate]) -> str:
    text = f"{best.name}: the {'fastest' if best.predicted else 'last'} candidate that may be chosen"
    if best.simulated:
        text = f"{best.name}: the first form that is accurate with the device's numbers"
    text += _accuracy_words(best)
    if best.placement:
        text += f"; {best.placement}"
    if best.predicted:
        text += f"; predicted {best.predicted.speed} the original's speed, not measured"
        return text + _passed(candidates)
    return f"{text}; speed not measured{_passed(candidates)}"


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
    return text + _accuracy_words(best) + _passed(candidates)


def _accuracy_words(best: Candidate) -> str:
    """Return the word of its accuracy, and what that rests on."""
    judged = best.judgement
    if judged is None:
        return ""
    remedy = f"; {judged.remedy}" if judged.word is Word.NOT_DECIDED else ""
    return f", {judged.word}: {judged}{remedy}"


def _passed(candidates: Sequence[Candidate]) -> str:
    """Return which candidates were not chosen, and why."""
    passed = [f"{candidate.name} {candidate.refused}" for candidate in candidates if candidate.refused]
    return f"; not chosen: {'; '.join(passed)}" if passed else ""
