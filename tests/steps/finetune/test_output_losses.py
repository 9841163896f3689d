from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.steps.finetune.losses import output_loss

PICTURES, PLACES = 2, 6
BOXES, SCORES = Columns("boxes", 2), Columns("scores", 2)


def numbers(*shape: int, seed: int = 0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 0.8 + 0.1


def outputs(classes: int = 3, sides: int = 4, seed: int = 0):
    return {"boxes": numbers(PICTURES, PLACES, sides, seed=seed), "scores": numbers(PICTURES, PLACES, classes, seed=9)}


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("boxes", [None, BOXES])
def test_equal_outputs_lose_nothing_and_others_do(scale: Scale, boxes: Columns | None) -> None:
    loss, same = output_loss([LearnedHead(SCORES, scale, boxes=boxes)], ["boxes", "scores"]), outputs()
    assert loss(same, same).shape == (PICTURES,)
    torch.testing.assert_close(loss(same, same), torch.zeros(PICTURES), atol=1e-6, rtol=0)
    other = {**same, "scores": same["scores"].flip(2)}
    assert (loss(other, same) > 1e-3).all()


def test_boxes_count_where_something_is_seen() -> None:
    loss, same = output_loss([LearnedHead(SCORES, Scale.EACH, boxes=BOXES, unit=0.5)], []), outputs()
    same["scores"][:] = 0.0
    same["scores"][:, 2, 1] = 0.8
    there, elsewhere = (same["boxes"].clone() for _ in range(2))
    there[:, 2, 0] += 1
    elsewhere[:, 3, 0] += 1
    expected = 0.5 * 0.8 / (1 + 0.8)
    torch.testing.assert_close(loss({**same, "boxes": there}, same), torch.full((2,), expected), atol=1e-4, rtol=0)
    assert (loss({**same, "boxes": elsewhere}, same) < 1e-4).all()


def test_a_background_is_nothing_that_is_seen() -> None:
    same = outputs(classes=3)
    same["scores"][:] = torch.tensor([0.98, 0.01, 0.01])
    there = {**same, "boxes": same["boxes"] + 1}
    first, none = (output_loss([LearnedHead(SCORES, Scale.SHARES, where, boxes=BOXES)], []) for where in (0, None))
    assert (first(there, same) < 0.1 * none(there, same)).all()
    swapped = {**same, "scores": same["scores"].flip(2)}
    last = output_loss([LearnedHead(SCORES, Scale.SHARES, -1, boxes=BOXES)], [])
    torch.testing.assert_close(last({**swapped, "boxes": there["boxes"]}, swapped), first(there, same))


def test_a_distribution_counts_by_its_mean() -> None:
    head = LearnedHead(SCORES, Scale.EACH, boxes=Columns("boxes", 2), bins=8)
    loss, same = output_loss([head], []), outputs(sides=32)
    shifted = {**same, "boxes": same["boxes"] + 3.0}  # a softmax does not see it
    torch.testing.assert_close(loss(shifted, same), torch.zeros(PICTURES), atol=1e-5, rtol=0)
    assert (loss({**same, "boxes": same["boxes"].flip(2)}, same) > 1e-3).all()


def test_objectness_multiplies_scores() -> None:
    columns = [Columns("rows", 2, *span) for span in ((0, 4), (4, 5), (5, None))]
    head = LearnedHead(columns[2], Scale.SIGMOID, objectness=columns[1], boxes=columns[0])
    loss, same = output_loss([head], []), {"rows": torch.zeros(PICTURES, PLACES, 8)}
    same["rows"][..., 4] = -9.0
    same["rows"][:, 0, 4] = 9.0
    found = []
    for place in (0, 1):
        other = {"rows": same["rows"].clone()}
        other["rows"][:, place, 5:] += 2.0
        found.append(loss(other, same))
    assert (found[1] < 0.01 * found[0]).all()


def test_places_of_any_layout_are_the_same() -> None:
    rows = numbers(1, 4 * 6, 2, 3)
    apart = rows.reshape(1, 4, 6, 2, 3).permute(0, 1, 3, 4, 2).reshape(1, -1, 6)
    found = []
    for columns in (
        [Columns("a", 1, *span, 4) for span in ((0, 4), (4, None))],
        [Columns("b", 2, *span) for span in ((0, 4), (4, None))],
    ):
        loss = output_loss([LearnedHead(columns[1], Scale.EACH, boxes=columns[0])], [])
        theirs = {"a": rows, "b": apart}
        found.append(loss({key: value.square() for key, value in theirs.items()}, theirs))
    torch.testing.assert_close(*found)


def test_every_number_of_a_head_is_learned() -> None:
    theirs = outputs()
    mine = {name: value.flip(1).clone().requires_grad_() for name, value in theirs.items()}
    output_loss([LearnedHead(SCORES, Scale.EACH, boxes=BOXES)], [])(mine, theirs).sum().backward()
    assert all(one.grad.ne(0).all() for one in mine.values())


def test_classes_of_one_place_are_their_divergence_in_any_shape() -> None:
    theirs, mine = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    p = 1 / (1 + math.exp(-2))
    expected = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    for shape, axis in (((1, 2), 1), ((1, 2, 1, 1), 1), ((2,), -1)):
        loss = output_loss([LearnedHead(Columns("y", axis), Scale.SOFTMAX)], ["y"])
        found = loss({"y": mine.reshape(shape)}, {"y": theirs.reshape(shape)})
        torch.testing.assert_close(found, torch.tensor([expected]))


def test_outputs_that_nothing_is_said_of_count_by_their_power() -> None:
    theirs = {"y": torch.full((PICTURES, 4), 2.0)}
    found = output_loss([], ["y"])({"y": torch.full((PICTURES, 4), 3.0)}, theirs)
    torch.testing.assert_close(found, torch.full((PICTURES,), 0.2))
