"""How far a student's outputs are from its teacher's, one number a picture, in torch: 0 where they are equal.

What the outputs hold the task says (`heads`). Scores that exclude one another: the Kullback-Leibler divergence. Others:
that of each. Boxes: their distance where one of the two sees something. Outputs of which the task says nothing: the
power of the error over that of the signal. A picture in which nothing is seen counts little, as in the score of a
detector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.steps.finetune.features import Feature

if TYPE_CHECKING:
    from torch import Tensor

    Outputs = Mapping[str, Tensor]
    OutputLoss = Callable[[Outputs, Outputs], Tensor]
    """(the student's, the teacher's) -> (pictures,)"""

_LEAST = 1e-6
"""A smaller probability counts as this one."""
_BOXES = 1.0
"""Weight of boxes beside scores."""
_SEEN = 1.0
"""Added to the sum of a picture's scores."""


def output_loss(heads: Sequence[LearnedHead], names: Sequence[str]) -> OutputLoss:
    """Return the loss that suits what a task reads.

    Args:
        heads: Of the task; none: all numbers of all outputs count alike.
        names: Of the model's outputs, in its order.
    """
    if not heads:
        return lambda mine, theirs: _relative(mine, theirs, names)

    has_boxes = any(head.boxes is not None for head in heads)

    def loss(mine: Outputs, theirs: Outputs) -> Tensor:
        from torch import cat

        parts = [_apart(head, mine, theirs) for head in heads]
        wrong, said = (cat([part[i] for part in parts], 1) for i in (0, 1))
        return wrong.sum(1) / (said.sum(1) + _SEEN) if has_boxes else wrong.mean(1)

    return loss


def feature_loss(features: Sequence[Feature]) -> OutputLoss:
    """Return the mean over tensors of the power of a student's error over the spread of its teacher's values.

    Args:
        features: The tensors; none: nothing is compared.
    """
    from torch import from_numpy, zeros

    def constant(array: NDArray[Any] | None) -> Tensor | None:
        return None if array is None else from_numpy(array)

    places = [
        (
            feature,
            from_numpy(feature.mine),
            from_numpy(feature.theirs),
            constant(feature.gain),
            constant(feature.offset),
        )
        for feature in features
    ]

    def loss(mine: Outputs, theirs: Outputs) -> Tensor:
        total = None
        for feature, left, right, gain, offset in places:
            a, b = mine[feature.name], theirs[feature.name]
            if feature.axis >= 0:
                b = b.index_select(feature.axis, right.to(b.device))
                a = a if len(left) == a.shape[feature.axis] else a.index_select(feature.axis, left.to(a.device))
            if gain is not None and offset is not None:
                a = a * gain.to(a.device) + offset.to(a.device)
            error = (a.float() - b.float()).square().flatten(1).mean(1)
            found = error / b.float().var().clamp_min(1e-12)
            total = found if total is None else total + found
        return zeros(1) if total is None else total / len(places)

    return loss


def _apart(head: LearnedHead, mine: Outputs, theirs: Outputs) -> tuple[Tensor, Tensor]:
    """Return (pictures, places) how far a head's numbers are apart, and how sure the teacher is of something there."""
    p, q = (_probabilities(_columns(one, head.scores), head.scale) for one in (theirs, mine))
    apart = p * (p / q).log()
    if head.scale in (Scale.SIGMOID, Scale.EACH):
        apart = apart + (1 - p) * ((1 - p) / (1 - q)).log()
    wrong, said, seen = apart.sum(-1), _best(p, head), _best(q, head).detach()
    if head.objectness is not None:
        b, a = (_probabilities(_columns(one, head.objectness), head.scale)[..., 0] for one in (theirs, mine))
        wrong = wrong * b.maximum(a.detach()) + b * (b / a).log() + (1 - b) * ((1 - b) / (1 - a)).log()
        said, seen = said * b, seen * a.detach()
    if head.boxes is not None:
        left, right = (_numbers(_columns(one, head.boxes), head.bins) for one in (mine, theirs))
        wrong = wrong + _BOXES * ((left - right) * head.unit).abs().sum(-1) * said.maximum(seen)
    return wrong, said


def _columns(outputs: Outputs, columns: Columns) -> Tensor:
    """Return (pictures, places, columns)."""
    x = outputs[columns.output].float()
    x = x[None] if x.ndim == 1 else x
    axis = columns.axis % x.ndim
    if columns.blocks > 1:
        x, axis = x.unflatten(axis, (columns.blocks, -1)), axis + 1
    x = x.movedim(axis, -1)[..., columns.first : columns.end]
    return x.reshape(len(x), -1, x.shape[-1])


def _probabilities(values: Tensor, scale: Scale) -> Tensor:
    if scale is Scale.SOFTMAX:
        values = values.softmax(-1)
    elif scale is Scale.SIGMOID:
        values = values.sigmoid()
    return values.clamp(_LEAST, 1 - _LEAST)


def _best(scores: Tensor, head: LearnedHead) -> Tensor:
    """Return (pictures, places) the largest score, but that of the background."""
    if head.background is None:
        return scores.amax(-1)
    kept = [i for i in range(scores.shape[-1]) if i != head.background % scores.shape[-1]]
    return scores[..., kept].amax(-1)


def _numbers(values: Tensor, bins: int) -> Tensor:
    if bins == 1:
        return values
    from torch import arange

    shares = values.unflatten(-1, (-1, bins)).softmax(-1)
    return shares @ arange(bins, dtype=shares.dtype, device=shares.device)


def _relative(mine: Outputs, theirs: Outputs, names: Sequence[str]) -> Tensor:
    """Return (pictures,) the mean over outputs of the power of the error over the power of the signal."""
    from torch import stack

    result = []
    for name in names:
        a, b = mine[name].float().flatten(1), theirs[name].float().flatten(1)
        power = b.square().mean(1)
        result.append((a - b).square().mean(1) / (power + 0.25 * power.mean()).clamp_min(1e-12))
    return stack(result).mean(0)
