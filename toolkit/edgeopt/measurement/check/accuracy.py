"""The part of the regression gate that asks for answers: against labels, else against the baseline's own answers.

Labels that the baseline itself does not fit prove nothing, nor do made-up samples, and what could not be judged is
INCONCLUSIVE. Answers that have little in common with the baseline's are a failure on any samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between, require_telling
from edgeopt.measurement.accuracy.evaluate import (
    LabelledFrames,
    Progress,
    agreement_of_others,
    answers,
    why_no_proof,
)
from edgeopt.measurement.check.result import CheckResult, CheckVerdict, judge_accuracy, judge_agreement
from edgeopt.measurement.turns.side_by_side import Side, rest, score_side
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.tasks import Task, make_task
from edgeopt.tasks.detection.boxes import overlaps

_MOST_SAMPLES = 128
"""Samples whose answers are compared where there are no labels."""
_UNLIKE = 0.5
"""Answers that agree less are mostly other ones: no labels are needed to see that."""
_MOST_TOLD = 3
"""Classes that have become others, in one line."""
_WHY_MADE_UP = "made-up samples prove no accuracy: pass --source with real ones, or --eval, or --skip accuracy"


def check_accuracy(
    now: Side,
    then: Side | None,
    stored: Scored | None,
    labelled: LabelledFrames | None,
    frames: Frames,
    allowed: float,
    *,
    why_gone: str,
    tell: Progress | None = None,
) -> CheckResult:
    """Judge the answers of one model against the baseline's.

    Args:
        now: What is checked.
        then: The baseline's model; None: it is not there any more.
        stored: What the baseline's file knows of its accuracy; None: it was written without labels.
        labelled: Pictures and labels; None: there are none.
        frames: Pictures or tensors on which answers are compared where there are no labels.
        allowed: Metric that may be lost.
        why_gone: Why `then` is None.
        tell: Hears progress.
    """
    if labelled is None:
        return _by_agreement(now, then, stored, frames, why_gone)
    scored = score_side(now, labelled, tell)
    known = score_side(then, labelled, tell) if then else stored
    if known is None:
        return judge_accuracy(None, scored.accuracy, allowed, f"{why_gone}, and it was written without labels")
    if known.accuracy.metric != scored.accuracy.metric:
        text = f"{why_gone}, and it was scored in {known.accuracy.metric}, this one in {scored.accuracy.metric}"
        return judge_accuracy(None, scored.accuracy, allowed, text)
    if why := known.why_not_telling:
        return judge_accuracy(None, scored.accuracy, allowed, f"the baseline {why}")
    drop = drop_between(known, scored)
    why_none = f"{why_gone}, and it was scored on other labelled pictures ({known.labels})"
    return judge_accuracy(drop, scored.accuracy, allowed, why_none if drop is None else "")


def score_baseline(side: Side, labelled: LabelledFrames | None, tell: Progress | None = None) -> Scored | None:
    """Return the accuracy that a baseline will hold; None without labels.

    Raises:
        InvalidFileError: If it is no better than chance: nothing could be checked against it.
    """
    if labelled is None:
        return None
    scored = score_side(side, labelled, tell)
    require_telling(scored, "--skip accuracy writes the baseline without it")
    return scored


@dataclass(frozen=True, slots=True)
class _Likeness:
    """How far the answers of two models agree."""

    agreement: float
    samples: int
    why_unlike: str
    """Why the answers are other ones; empty: they are not."""


def note_on_baseline(frames: Frames) -> tuple[Note, ...]:
    """Return what a baseline without labels cannot guard.

    Args:
        frames: With which it is written.
    """
    unseen = "so check sees no loss of accuracy that leaves most answers as they are"
    if is_made_up(frames):
        unseen = "and its samples are made up: check cannot pass accuracy against it"
    return (Note(NoteKind.WARNING, f"the baseline holds no labels, {unseen}", "pass --eval to guard accuracy"),)


def is_made_up(frames: Frames) -> bool:
    """Return whether no file holds these samples."""
    return not frames.paths


def _by_agreement(now: Side, then: Side | None, stored: Scored | None, frames: Frames, why_gone: str) -> CheckResult:
    """Judge by the answers of the baseline's model where no labels are given."""
    held = ""
    if stored is not None:
        held = f"the baseline holds {stored.accuracy} on {stored.labels}, and no labels were given: pass --eval"
    if then is None:
        return _undecided(held or f"no labels (pass --eval), and {why_gone}")
    least, samples, task = now.subject.recipe.least_agreement, frames.judged(_MOST_SAMPLES), _task(then)
    reference = answers(then.subject.session, task, samples)
    rest([then])
    why_nothing = why_no_proof(task, reference, least, samples.kind)
    found = answers(now.subject.session, _task(now), samples)
    rest([now])
    likeness = _compare(task, found, reference, is_made_up(frames))
    shown = f"no labels; answers agree in {likeness.agreement:.3f} with the baseline's on {likeness.samples} samples"
    if likeness.why_unlike:
        return CheckResult(
            "accuracy",
            CheckVerdict.FAIL,
            1 - likeness.agreement,
            1 - least,
            f"{shown}: {likeness.why_unlike}",
            "agreement",
        )
    if held:
        return _undecided(held)
    if is_made_up(frames):
        return _undecided(f"{shown}, but {_WHY_MADE_UP}")
    if why_nothing:
        return _undecided(f"no labels (pass --eval), and agreement is no proof: {why_nothing}")
    return judge_agreement(likeness.agreement, least, likeness.samples, proves=not now.subject.recipe.reads_labels)


def _undecided(why: str) -> CheckResult:
    return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, None, why, "")


def _compare(task: Task, found: Sequence[Any], reference: Sequence[Any], made_up: bool) -> _Likeness:
    """Compare answers, and say whether they are other ones, whatever labels would say.

    A baseline is a model that was good. Answers that become its own when classes are exchanged are wrong, and so are
    those of which less than half agree. On made-up samples a good model may be unsure, and its INT8 form then answers
    otherwise: there, answers must agree no better than those to other samples do.

    Args:
        task: Of the baseline's model.
        found: What is checked.
        reference: The baseline's, sample by sample.
        made_up: Whether the samples are.
    """
    agreement = task.agreement(found, reference)
    if len(reference) < 2:
        return _Likeness(agreement, len(reference), "")
    if exchanged := exchanged_classes(task, found, reference):
        pairs = [f"{before} is now {after}" for before, after in sorted(exchanged.items())]
        shown = ", ".join(pairs[:_MOST_TOLD]) + (", ..." if len(pairs) > _MOST_TOLD else "")
        return _Likeness(agreement, len(reference), f"classes are exchanged: {shown}")
    telling = sum(map(bool, map(task.count, reference)))
    is_unlike = agreement < _UNLIKE and 2 * telling >= len(reference)
    if is_unlike and (not made_up or agreement <= agreement_of_others(task, reference)):
        return _Likeness(agreement, len(reference), "most are other answers, as of permuted classes or a broken model")
    return _Likeness(agreement, len(reference), "")


def _task(side: Side) -> Task:
    subject = side.subject
    return make_task(subject.recipe, subject.inputs, subject.outputs, evaluating=True)


# Whether a model answers as another one does, but with its classes exchanged: no labels are needed to see that.

_SAME_PLACE, _SAME_SCORE = 0.8, 0.05
"""Overlap and distance of scores within which two things are the same one, whatever their classes."""
_CLEARLY = 3.0
"""Times as much as a class is itself, it has become another."""
_FEWEST = 3
"""Things of a class, or samples with it, that have become another: one or two are an error like others."""
_EXPLAINED = 0.5
"""Share of the disagreement that an exchange of classes explains at least."""
_MOST_CLASSES = 65_536


def exchanged_classes(task: Task, found: Sequence[Any], reference: Sequence[Any]) -> dict[int, int]:
    """Return which class has become which other one; nothing where classes are not the reason why answers differ.

    Args:
        task: Of both models.
        found: Answers of one model.
        reference: Those of the other to the same samples.
    """
    weights: dict[tuple[int, int], float] = defaultdict(float)
    counts = Counter[tuple[int, int]]()
    for mine, theirs in zip(found, reference, strict=True):
        for before, after, weight in _pairs(mine, theirs):
            weights[before, after] += weight
            counts[before, after] += 1
    moved, taken = dict[int, int](), set[int]()
    for (before, after), weight in sorted([*weights.items()], key=lambda item: -item[1]):
        if before in moved or after in taken:
            continue
        is_clear = weight >= _CLEARLY * weights[before, before] and counts[before, after] >= _FEWEST
        moved[before] = after if is_clear else before
        taken.add(moved[before])
    exchanged = {before: after for before, after in moved.items() if before != after}
    if not exchanged:
        return {}
    agreement = task.agreement(found, reference)
    renamed = task.agreement(found, [_renamed(value, exchanged) for value in reference])
    return exchanged if renamed - agreement > _EXPLAINED * (1 - agreement) else {}


def _pairs(mine: Any, theirs: Any) -> Iterator[tuple[int, int, float]]:
    """Yield the class of the reference, that of the other model, and how much there is of both at one place."""
    if hasattr(theirs, "indices") and hasattr(mine, "indices"):
        if len(theirs.indices) and len(mine.indices):
            yield int(theirs.indices[0]), int(mine.indices[0]), 1.0
        return
    before, after = (np.asarray(getattr(value, "classes", ())) for value in (theirs, mine))
    if before.ndim == 2 and before.shape == after.shape:
        both, pixels = np.unique(before.astype(np.int64) * _MOST_CLASSES + after, return_counts=True)
        for code, count in zip(both.tolist(), pixels.tolist(), strict=True):
            yield code // _MOST_CLASSES, code % _MOST_CLASSES, count / before.size
    elif before.ndim == after.ndim == 1 and len(before) and len(after) and hasattr(theirs, "boxes"):
        distance = np.abs(theirs.scores[:, None] - mine.scores[None])
        distance[overlaps(theirs.boxes, mine.boxes) < _SAME_PLACE] = np.inf
        for row, column in enumerate(distance.argmin(axis=1)):
            if distance[row, column] <= _SAME_SCORE:
                yield int(before[row]), int(after[column]), float(theirs.scores[row])


def _renamed(answer: Any, exchanged: dict[int, int]) -> Any:
    """Return an answer with other classes."""
    name = "indices" if hasattr(answer, "indices") else "classes"
    classes: NDArray[Any] = getattr(answer, name)
    renamed = classes.copy()
    for before, after in exchanged.items():
        renamed[classes == before] = after
    return replace(answer, **{name: renamed})
