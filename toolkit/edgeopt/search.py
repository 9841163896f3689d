"""Which candidate is chosen: the fastest that keeps its accuracy and is never slower than its parent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeopt.candidate import BASELINE, Candidate
from edgeopt.recipe import LEAST_AGREEMENT

_TIE = 0.02
"""Speeds this close are equal: a shared machine measures no finer."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The name of the chosen candidate, and why in one paragraph."""

    name: str
    reason: str


def is_within(drop: float, max_drop: float) -> bool:
    """Return whether a drop is allowed; four of 400 pictures are 0.01, whatever floating point makes of it."""
    return drop <= max_drop + 1e-9


def why_refused(candidate: Candidate, max_drop: float, least_agreement: float = LEAST_AGREEMENT) -> str:
    """Return why a candidate must not be chosen; empty when it may be."""
    if candidate.name == BASELINE:
        return ""
    if candidate.unfit:
        return candidate.unfit
    if candidate.score and candidate.drop is not None:
        if not is_within(candidate.drop, max_drop):
            lost = f"drops {candidate.drop:.4f} {candidate.score.metric} {candidate.drop_interval}".rstrip()
            return f"{lost}, {max_drop:g} allowed"
    elif candidate.agreement is not None and candidate.agreement < least_agreement:
        return f"agrees with the original in {candidate.agreement:.3f} only, {least_agreement:g} asked without labels"
    for ratio in (candidate.speed_to_parent, candidate.speed):
        if ratio is not None and ratio.verdict == "SLOWER":
            return f"slower than {ratio.against}: {ratio.speedup:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]"
    return ""


def choose(
    candidates: Sequence[Candidate], max_drop: float, least_agreement: float = LEAST_AGREEMENT
) -> tuple[tuple[Candidate, ...], Chosen]:
    """Return the candidates with refusals and the front marked, and the choice.

    Args:
        candidates: The baseline first. Candidates without a speed ratio were not measured on the target.
        max_drop: In the metric's unit.
        least_agreement: With the original, where no labels judge.
    """
    judged = [replace(one, refused=why_refused(one, max_drop, least_agreement)) for one in candidates]
    marked = tuple(replace(one, on_front=_on_front(one, judged)) for one in judged)
    allowed = [one for one in marked if not one.refused]
    measured = [one for one in allowed if one.speed is not None]
    if len(allowed) == 1:
        return marked, Chosen(BASELINE, _only_baseline(marked))
    if not measured:
        best = next(one for one in allowed[1:] if one.steps == allowed[-1].steps)
        return marked, Chosen(best.name, _reason_unmeasured(best, marked, max_drop))
    best = _most_accurate_of_the_fastest(measured)
    if best.speed is None or best.speed.speedup <= 1 or best.speed.verdict == "SLOWER":
        return marked, Chosen(BASELINE, _only_baseline(marked))
    return marked, Chosen(best.name, _reason(best, marked, max_drop))


def _most_accurate_of_the_fastest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the fastest; of those that are as fast but for a measuring error, the one that loses least."""
    fastest = max(map(_speed, candidates))
    level = [one for one in candidates if _speed(one) >= fastest * (1 - _TIE)]
    return min(level, key=lambda one: (one.drop or 0.0, -_speed(one)))


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
    refused = "; ".join(f"{one.name} {one.refused}" for one in candidates if one.refused)
    return f"the original stays: no candidate is faster and accurate enough{f' ({refused})' if refused else ''}"


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


def _reason(best: Candidate, candidates: Sequence[Candidate], max_drop: float) -> str:
    assert best.speed is not None
    ratio = best.speed
    text = f"{best.name}: {ratio.speedup:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] the original's speed"
    if best.drop is not None and best.score:
        change = "loses" if best.drop > 0 else "gains"
        interval = f"drop in {best.drop_interval}, " if best.drop_interval else ""
        text += f", {change} {abs(best.drop):.4f} {best.score.metric} ({interval}{max_drop:g} allowed)"
    elif best.agreement is not None:
        text += f", agrees with the float model in {best.agreement:.3f} (no labels given)"
    passed = [f"{one.name} {one.refused}" for one in candidates if one.refused]
    return text + (f"; not chosen: {'; '.join(passed)}" if passed else "")
