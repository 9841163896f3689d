"""A mask of attention that is an input: minus infinity where nothing may be looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_models import model, numbers
from small_nets import HERE
from unoptimized import answers_here, error_ratio

from edgeopt.errors import InvalidFileError
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.steps.simplify import simplify

TOKENS, WIDTH = 12, 32


def attention() -> Model:
    """One head over 12 tokens whose mask is added to the scores."""
    weights = {name: numbers(WIDTH, WIDTH, seed=i) / np.float32(6) for i, name in enumerate("qkvo")}
    return model(
        f"attention (float[1,{TOKENS},{WIDTH}] x, float[1,{TOKENS},{TOKENS}] mask) => (float[1,{TOKENS},{WIDTH}] y) "
        "{ a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v) t = Transpose <perm = [0,2,1]> (b) s = MatMul(a, t) "
        "m = Add(s, mask) p = Softmax <axis = -1> (m) h = MatMul(p, c) y = MatMul(h, o) }",
        **weights,
    )


def samples(count: int = 6) -> dict[str, np.ndarray]:
    """Tokens, and masks that hide what is behind each token and the last few of a shorter text."""
    mask = np.where(np.tri(TOKENS, dtype=bool), 0, -np.inf).astype(np.float32)
    masks = np.repeat(mask[None], count, axis=0)
    for i in range(count):
        masks[i, :, TOKENS - i :] = -np.inf if i < TOKENS else 0
        masks[i, :, 0] = 0
    return {"x": numbers(count, TOKENS, WIDTH), "mask": masks}


@pytest.mark.parametrize("form", Form)
def test_minus_infinity_in_a_mask_spoils_neither_ranges_nor_answers(form: Form, tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", **samples())
    frames = open_frames(tmp_path / "calib.npz")
    assert frames.tensors is not None
    inputs: list[Tensors] = [frames.tensors(i) for i in range(len(frames))]
    assert np.isneginf(inputs[0]["mask"]).any()
    whole = simplify(attention(), {}, inputs[:2]).model
    made = quantize(whole, inputs, HERE, form=form)
    assert "INT8 covers 4 of 4" in str(made.notes)
    assert error_ratio(answers_here(attention().data, inputs), answers_here(made.model.data, inputs)) < 0.05


def test_a_mask_in_float64_is_fed_in_the_models_type(tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", **{name: array.astype(np.float64) for name, array in samples().items()})
    frames, inputs = open_frames(tmp_path / "calib.npz"), attention().inputs
    recipe = choose_recipe("tensors", None, inputs, attention().outputs, {}, frames.shapes).recipe
    mask = fed(frames, recipe, inputs).read(0)["mask"]
    assert mask.dtype == np.float32
    assert np.isneginf(mask).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_mask_is_refused(bad: float, tmp_path: Path) -> None:
    given = samples()
    given["x"][0, 0, 0] = bad
    np.savez(tmp_path / "calib.npz", **given)
    with pytest.raises(InvalidFileError, match="x holds NaN or infinity"):
        open_frames(tmp_path / "calib.npz")
