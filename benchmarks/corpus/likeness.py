"""How answers of a model are compared with the original's, by what its user would notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from case import Likeness, Sample
from signals import Array


def decided(
    threshold: float = 0.5, share: float = 0.98, told: Callable[[Array], Array] = lambda values: values
) -> Likeness:
    """Compare on which side of a threshold the first output falls, or what is `told` of it."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        mine, theirs = (np.concatenate([told(_first(one)).ravel() for one in answers]) for answers in (found, expected))
        same = float(np.mean((mine > threshold) == (theirs > threshold)))
        return same >= share, f"{same:.1%} of {mine.size} decisions"

    return agrees


TIE = 0.1
"""Where the original's two choices lie closer in probability, either is as good (docs/recipes-tensors.md)."""


def classed(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
    """Compare the most likely class of the first output; what the original is undecided on is a tie."""
    same, tied = 0, 0
    for a, b in zip(found, expected, strict=True):
        mine, chances = int(_first(a).argmax()), _chances(_first(b).ravel())
        same += mine == chances.argmax()
        tied += mine != chances.argmax() and chances.max() - chances[mine] <= TIE
    return _told(same, tied, len(expected), "classes")


def spelled(blank: int = 0) -> Likeness:
    """Compare what a recogniser reads: repeated letters are one, blanks are none (CTC)."""

    def text(letters: Array) -> tuple[int, ...]:
        return tuple(b for a, b in pairwise([-1, *letters.tolist()]) if b not in (a, blank))

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        same, tied = 0, 0
        for a, b in zip(found, expected, strict=True):
            mine, chances = _first(a).argmax(-1).ravel(), _chances(_first(b))
            rows = chances.reshape(-1, chances.shape[-1])
            theirs, at = rows.argmax(1), np.arange(len(rows))
            sure = rows[at, theirs] - rows[at, mine] > TIE
            same += text(mine) == text(theirs)
            tied += text(mine) != text(theirs) and text(np.where(sure, mine, theirs)) == text(theirs)
        return _told(same, tied, len(expected), "strings")

    return agrees


def _chances(values: Array) -> Array:
    """Return probabilities along the last axis: the values themselves where they are some."""
    if values.min() >= 0 and np.abs(values.sum(-1) - 1).max() < 0.01:
        return values
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _told(same: int, tied: int, of: int, what: str) -> tuple[bool, str]:
    return bool(same + tied >= 0.95 * of), f"{same} of {of} {what}{f', {tied} tied' if tied else ''}"


def tagged(name: str, share: float = 0.95) -> Likeness:
    """Compare the most likely class of each step of an output, (..., classes); what is undecided is a tie."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        same = tied = of = 0
        for a, b in zip(found, expected, strict=True):
            chances = _chances(np.asarray(b[name], np.float64))
            mine, best = np.asarray(a[name]).argmax(-1), chances.argmax(-1)
            theirs = np.take_along_axis(chances, mine[..., None], -1)[..., 0]
            same += int((mine == best).sum())
            tied += int(((mine != best) & (chances.max(-1) - theirs <= TIE)).sum())
            of += mine.size
        return same + tied >= share * of, f"{same} of {of} tags{f', {tied} tied' if tied else ''}"

    return agrees


def headed(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
    """Compare the most likely class of each output; what the original is undecided on is a tie."""
    told = [
        classed([{name: a[name]} for a in found], [{name: b[name]} for b in expected])[1].split()
        for name in expected[0]
    ]
    same, tied = sum(int(one[0]) for one in told), sum(int(one[4]) for one in told if len(one) > 4)
    return _told(same, tied, len(expected) * len(told), "classes")


def overlap(threshold: float, least: float = 0.9) -> Likeness:
    """Compare which pixels of the first output lie above a threshold: those of both over those of either."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        pairs = [(_first(a) > threshold, _first(b) > threshold) for a, b in zip(found, expected, strict=True)]
        both, either = (sum(int(f(*pair).sum()) for pair in pairs) for f in (np.logical_and, np.logical_or))
        same = both / either if either else 1.0
        return same >= least and either > 0, f"overlap {same:.3f} of {either} pixels"

    return agrees


def turned(least: float = 0.98) -> Likeness:
    """Compare the direction of the first output, a vector, or a vector each step whose mean counts: the cosine."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        cosines = []
        for a, b in zip(found, expected, strict=True):
            x, y = (np.asarray(_first(one), np.float64) for one in (a, b))
            x, y = (one.reshape(-1, one.shape[-1]).mean(0) for one in (x, y))
            cosines.append(float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y))))
        return float(np.mean(cosines)) >= least, f"cosine {np.mean(cosines):.4f}, at least {min(cosines):.4f}"

    return agrees


def near(furthest: float = 0.05) -> Likeness:
    """Compare the first output's numbers one by one."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        apart = max(float(np.abs(_first(a) - _first(b)).max()) for a, b in zip(found, expected, strict=True))
        return apart <= furthest, f"{apart:.4f} apart at most"

    return agrees


def cells(scores: Callable[[Array], Array], least: float = 0.85) -> Likeness:
    """Compare which cells of a detector hold an object, by F1; a cell near the threshold may fall on either side."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        hits = total = 0.0
        for a, b in zip(found, expected, strict=True):
            mine, theirs = scores(_first(a)), scores(_first(b))
            hits += 2 * float(np.sum((mine > 0.3) & (theirs > 0.2)) + np.sum((theirs > 0.3) & (mine > 0.2))) / 2
            total += float(np.sum(mine > 0.3) + np.sum(theirs > 0.3))
        same = hits / total if total else 1.0
        return same >= least and total > 0, f"F1 {same:.3f} of {total / 2:.0f} cells"

    return agrees


def close(least_db: float = 20.0) -> Likeness:
    """Compare all outputs by their signal-to-noise ratio over all samples together."""

    def ratio(found: Sequence[Sample], expected: Sequence[Sample], name: str) -> float:
        x = np.concatenate([np.asarray(one[name], np.float64).ravel() for one in expected])
        y = np.concatenate([np.asarray(one[name], np.float64).ravel() for one in found])
        if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return 0.0
        x, y = x[np.isfinite(x)], y[np.isfinite(y)]
        noise = float(np.sum((x - y) ** 2))
        return 200.0 if noise == 0 else float(10 * np.log10(max(float(np.sum(x**2)), 1e-300) / noise))

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        least = min(ratio(found, expected, name) for name in expected[0])
        return least >= least_db, "equal" if least == 200 else f"{least:.1f} dB"

    return agrees


def _first(answer: Sample) -> Array:
    return np.asarray(next(iter(answer.values())))
