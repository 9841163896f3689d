"""How far a student's outputs are from its teacher's, one number a picture, in torch: 0 where they are equal.

Classes: the Kullback-Leibler divergence. Detectors: that of the scores, and the distance of the boxes where one of the
two sees something. Else: the power of the error over that of the signal. A picture in which nothing is seen counts
little, as in the score of a detector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from edgeopt.recipes.output_shapes import CLASSIFIERS
from edgeopt.recipes.recipe import Boxes, Recipe, Scores
from edgeopt.steps.finetune.features import Feature

if TYPE_CHECKING:
    from torch import Tensor

    Outputs = Mapping[str, Tensor]
    OutputLoss = Callable[[Outputs, Outputs], Tensor]
    """(the student's, the teacher's) -> (pictures,)"""

_LEAST = 1e-6
"""A smaller probability counts as this one."""
_BOXES = 1.0
"""What boxes weigh beside scores."""
_SEEN = 1.0
"""Added to the sum of a picture's scores."""
_ROWS = ("yolox", "yolov5")


def output_loss(recipe: Recipe, names: Sequence[str]) -> OutputLoss:
    """Return the loss that suits what a recipe's decoder reads.

    Args:
        recipe: Bound to the model.
        names: Of the model's outputs, in its order.
    """
    decoder, numbers = recipe.postprocess.decoder, recipe.postprocess
    is_logit = numbers.scores is Scores.LOGITS
    if decoder in CLASSIFIERS:
        return lambda mine, theirs: _divergence(mine[names[0]], theirs[names[0]], is_logit=decoder == "logits")
    if decoder in _ROWS or decoder == "yolov8":
        unit = 0.1 if numbers.boxes in (Boxes.PIXELS,) or (decoder != "yolox" and numbers.boxes is Boxes.USUAL) else 1.0
        has_objectness = decoder in _ROWS

        def of_rows(mine: Outputs, theirs: Outputs) -> Tensor:
            a, b = mine[names[0]], theirs[names[0]]
            if not has_objectness:
                a, b = a.transpose(1, 2), b.transpose(1, 2)
            return _detections(a, b, is_logit=is_logit, has_objectness=has_objectness, unit=unit)

        return of_rows
    return lambda mine, theirs: _relative(mine, theirs, names)


def feature_loss(features: Sequence[Feature]) -> OutputLoss:
    """Return the mean over tensors of the power of a student's error over the spread of its teacher's values.

    Args:
        features: The tensors; none: nothing is compared.
    """
    from torch import from_numpy, zeros

    def constant(array: NDArray[Any] | None) -> Tensor | None:
        return None if array is None else from_numpy(array)

    places = [
        (one, from_numpy(one.mine), from_numpy(one.theirs), constant(one.gain), constant(one.offset))
        for one in features
    ]

    def loss(mine: Outputs, theirs: Outputs) -> Tensor:
        total = None
        for one, left, right, gain, offset in places:
            a, b = mine[one.name], theirs[one.name]
            if one.axis >= 0:
                b = b.index_select(one.axis, right.to(b.device))
                a = a if len(left) == a.shape[one.axis] else a.index_select(one.axis, left.to(a.device))
            if gain is not None and offset is not None:
                a = a * gain.to(a.device) + offset.to(a.device)
            error = (a.float() - b.float()).square().flatten(1).mean(1)
            found = error / b.float().var().clamp_min(1e-12)
            total = found if total is None else total + found
        return zeros(1) if total is None else total / len(places)

    return loss


def _divergence(mine: Tensor, theirs: Tensor, *, is_logit: bool) -> Tensor:
    """Return (pictures,) the Kullback-Leibler divergence of class probabilities, in nats."""
    a, b = (one.float().flatten(1) for one in (mine, theirs))
    p, q = (b.softmax(1), a.softmax(1)) if is_logit else (b, a)
    p, q = p.clamp_min(_LEAST), q.clamp_min(_LEAST)
    return (p * (p.log() - q.log())).sum(1)


def _detections(mine: Tensor, theirs: Tensor, *, is_logit: bool, has_objectness: bool, unit: float) -> Tensor:
    """Return (pictures,) the loss of rows: four numbers of a box, then scores."""
    a, b = mine.float(), theirs.float()
    q, p = (a[..., 4:].sigmoid(), b[..., 4:].sigmoid()) if is_logit else (a[..., 4:], b[..., 4:])
    q, p = q.clamp(_LEAST, 1 - _LEAST), p.clamp(_LEAST, 1 - _LEAST)
    apart = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    if has_objectness:
        said, seen = p[..., 0] * p[..., 1:].amax(-1), (q[..., 0] * q[..., 1:].amax(-1)).detach()
        either = said.maximum(seen)
        classes = (apart[..., 1:].sum(-1) * p[..., 0].maximum(q[..., 0].detach())).sum(1)
        scores = apart[..., 0].sum(1) + classes
    else:
        said, either = p.amax(-1), p.amax(-1).maximum(q.amax(-1).detach())
        scores = apart.flatten(1).sum(1)
    far = ((a[..., :4] - b[..., :4]) * unit).abs()
    boxes = (far.sum(-1) * either).sum(1)
    found: Any = (scores + _BOXES * boxes) / (said.sum(1) + _SEEN)
    return found


def _relative(mine: Outputs, theirs: Outputs, names: Sequence[str]) -> Tensor:
    """Return (pictures,) the mean over outputs of the power of the error over the power of the signal."""
    from torch import stack

    found = []
    for name in names:
        a, b = mine[name].float().flatten(1), theirs[name].float().flatten(1)
        power = b.square().mean(1)
        found.append((a - b).square().mean(1) / (power + 0.25 * power.mean()).clamp_min(1e-12))
    return stack(found).mean(0)
