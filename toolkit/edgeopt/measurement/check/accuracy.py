"""The part of the regression gate that asks for answers: against labels, else against the baseline's own answers.

Labels that the baseline itself does not fit prove nothing, and what could not be judged is INCONCLUSIVE.
"""

from __future__ import annotations

from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between, require_telling
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, answers, why_no_proof
from edgeopt.measurement.check.result import CheckResult, CheckVerdict, judge_accuracy, judge_agreement
from edgeopt.measurement.side_by_side import Side, rest, score_side
from edgeopt.recipes.frames import Frames
from edgeopt.tasks import Task, make_task

_PICTURES = 16
"""As many as `optimize` asks for agreement."""


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
    found = score_side(now, labelled, tell)
    known = score_side(then, labelled, tell) if then else stored
    if known is None:
        return judge_accuracy(None, found, allowed, f"{why_gone}, and it was written without labels")
    if known.accuracy.metric != found.accuracy.metric:
        told = f"{why_gone}, and it was scored in {known.accuracy.metric}, this one in {found.accuracy.metric}"
        return judge_accuracy(None, found, allowed, told)
    if why := known.why_not_telling:
        return judge_accuracy(None, found, allowed, f"the baseline {why}")
    drop = drop_between(known, found)
    why_none = f"{why_gone}, and it was scored on other labelled pictures ({known.labels})"
    return judge_accuracy(drop, found, allowed, why_none if drop is None else "")


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


def _by_agreement(now: Side, then: Side | None, stored: Scored | None, frames: Frames, why_gone: str) -> CheckResult:
    """Judge by the answers of the baseline's model where no labels are given."""
    least = now.subject.recipe.least_agreement
    if stored is not None:
        held = f"the baseline holds {stored.accuracy} on {stored.labels}, and no labels were given: pass --eval"
        return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, None, held, "")
    if then is None:
        told = f"no labels (pass --eval), and {why_gone}"
        return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, None, told, "")
    pictures, task = frames.judged(_PICTURES), _task(then)
    reference = answers(then.subject.session, task, pictures)
    rest([then])
    if why := why_no_proof(task, reference, least, pictures.kind):
        told = f"no labels (pass --eval), and agreement is no proof: {why}"
        return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, None, told, "")
    found = answers(now.subject.session, _task(now), pictures)
    rest([now])
    agreement = task.agreement(found, reference)
    return judge_agreement(agreement, least, len(pictures), proves=not now.subject.recipe.reads_labels)


def _task(side: Side) -> Task:
    subject = side.subject
    return make_task(subject.recipe, subject.inputs, subject.outputs, evaluating=True)
