"""PicoDet's eight raw maps: recognised, and decoded as its authors do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from detector_decoders import DECODERS
from detector_heads import Head, answers

from edgeopt.graph.model import Model
from edgeopt.graph.tensors import ints
from edgeopt.recipes.drafting.drafted import Facts
from edgeopt.recipes.drafting.drafting import draft_recipe
from edgeopt.recipes.drafting.questions import nobody
from edgeopt.recipes.recognise import choose_recipe

SIZE, STRIDES, CLASSES, BINS = (96, 80), (8, 16, 32, 64), 10, 8


def picodet() -> Model:
    """Return scores of all strides, then sides: one convolution a stride, split, as Paddle2ONNX writes it.

    Source: PaddleDetection, `PicoHead.forward_eval` with `export_post_process` off.
    """
    head, scores, sides = Head(SIZE, picture="image"), {}, {}
    nodes = head.nodes
    for i, stride in enumerate(STRIDES):
        cells = -(-SIZE[0] // stride) * -(-SIZE[1] // stride)
        split = ints(CLASSES, 4 * BINS)
        score, side = nodes.several("Split", head.conv(stride, CLASSES + 4 * BINS, 2.0), split, count=2, axis=1)
        for kept, name, part, width in ((scores, "a", nodes("Sigmoid", score), CLASSES), (sides, "b", side, 4 * BINS)):
            rows = nodes("Transpose", nodes("Reshape", part, ints(1, width, cells)), perm=[0, 2, 1])
            kept[f"{name}{i}"] = rows, [1, cells, width]
    return head.model({**scores, **sides})


def test_candidates_are_those_of_the_authors_own_code():
    """As `PPPostProcess` of rapid-layout, which is PaddleDetection's: centres in the middle, sides in strides.

    It cuts boxes at the edges behind suppression, NanoDet and we before it.
    """
    model = picodet()
    recipe = choose_recipe(None, None, model.inputs, model.outputs, {}).recipe
    assert recipe.name == "picodet"
    found, wanted = answers(model), []
    for i, stride in enumerate(STRIDES):
        shares = np.exp(found[f"b{i}"].reshape(-1, 4, BINS).astype(np.float64))
        far = (shares / shares.sum(2, keepdims=True) @ np.arange(BINS)) * stride
        columns = -(-SIZE[1] // stride)
        for row, score in enumerate(found[f"a{i}"][0]):
            if score.max() > 0.9:
                x, y = (row % columns + 0.5) * stride, (row // columns + 0.5) * stride
                left, top, right, bottom = far[row]
                corners = np.clip([x - left, y - top, x + right, y + bottom], 0, [SIZE[1], SIZE[0]] * 2)
                wanted.append([*corners, score.max(), score.argmax()])
    given = [found[one.name] for one in model.outputs]
    boxes, scores, classes = DECODERS[recipe.postprocess.decoder](given, recipe.postprocess, SIZE, 0.9)
    assert len(wanted) > 4
    np.testing.assert_allclose(np.column_stack([boxes, scores, classes]), wanted, rtol=1e-4, atol=1e-3)


def test_what_is_drafted_says_why_it_knows_the_strides():
    model = picodet()
    of = Facts("net", Path("net.onnx"), 17, model.inputs, model.outputs, {})
    found = draft_recipe(of, None, nobody)
    assert (found.recipe.task, found.recipe.postprocess.strides) == ("detection", STRIDES)
    assert not {"task", "postprocess.strides"} & {*found.not_known}
