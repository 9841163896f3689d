"""Where quantization-aware training begins: all on integers, the form that loses least."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import numpy_helper
from taught_nets import PICTURES, dense, pruned

from edgeopt.graph.facts.integers import read_integers
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.steps.finetune.starts import best_start, integer_forms, written_plainly
from edgeopt.system.declared.target import Int8Rules, find_target


def inputs(count: int = 8) -> list[dict[str, np.ndarray]]:
    frames = open_frames(PICTURES).spread(count)
    small = [frames.picture(i)[:24, :24] for i in range(count)]
    return [{"x": one.transpose(2, 0, 1)[None].astype(np.float32) / 127.5 - 1} for one in small]


@pytest.fixture(scope="module")
def forms() -> dict[str, Model]:
    return integer_forms(written_plainly(dense(), inputs()), find_target("amd-ryzen-ai").int8, inputs())


def test_forms_differ_and_have_every_layer_on_integers(forms: dict[str, Model]) -> None:
    assert next(iter(forms)) == "rounded to nearest"
    assert len({one.fingerprint for one in forms.values()}) == len(forms) > 1
    assert {str(read_integers(one)).partition(", ")[2] for one in forms.values()} == {
        "4 of 4 weighted layers in integers"
    }


def test_grids_follow_the_rules(forms: dict[str, Model]) -> None:
    for one in forms.values():
        stored = {value.name: numpy_helper.to_array(value) for value in one.proto.graph.initializer}
        pairs = [node for node in one.proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
        assert all((np.frexp(stored[node.input[1]])[0] == 0.5).all() for node in pairs)


def test_forms_that_are_alike_are_kept_once() -> None:
    found, again = (integer_forms(written_plainly(pruned(dense()), inputs()), Int8Rules(), inputs()) for _ in range(2))
    assert len({one.fingerprint for one in found.values()}) == len(found)
    assert [one.data for one in found.values()] == [one.data for one in again.values()]


def test_the_form_that_loses_least_is_taken_and_all_losses_are_told(forms: dict[str, Model]) -> None:
    wanted = [*forms][-1]
    start = best_start(forms, lambda one: 0.25 if one is forms[wanted] else math.nan)
    assert start.model is forms[wanted]
    assert f"training goes on from what is {wanted}; held-out loss before it: rounded to nearest inf" in str(start.note)
    assert f"{wanted} 0.2500" in str(start.note)
