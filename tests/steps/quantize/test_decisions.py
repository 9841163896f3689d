"""The decisions of an INT8 model make the same bytes again, through JSON, without a calibration or a clock."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from encoders import encoder
from small_nets import ALL, frames

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.search.decisions import decisions_of, make_again
from edgeopt.steps.quantize.search.decisions_file import from_plain, to_plain
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant, first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules(fitted_silu=True)


def made_and_made_again(model: Model, variant: Variant) -> tuple[Model, Model]:
    seen = list(frames(model))
    sources = Sources(model, study(model, open_graph(model), seen, RULES), RULES, seen)
    if variant.setting("fitted_silu"):
        variant = variant.repaired(fitted_silu=frozenset(one.name for one in sources.prepared("fitted_silu")))
    source, findings = sources.of(variant)
    outcome, scheme = make_variant(source, findings, RULES, variant)
    text = json.dumps(to_plain(decisions_of(sources, variant, scheme)), allow_nan=False)
    return outcome.model, make_again(model, from_plain(json.loads(text))).model


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", ALL)
def test_every_form_of_every_family_is_made_again_to_the_last_byte(name: str, form: Form) -> None:
    first, again = made_and_made_again(ALL[name](), first_variant(form).repaired(gptq=True))
    assert again.data == first.data


@pytest.mark.parametrize(
    "variant",
    [
        first_variant(Form.INPUTS).repaired(equalization=True),
        first_variant(Form.INPUTS).repaired(fitted_silu=frozenset({"all"})),
        replace(first_variant(Form.INPUTS), least_db=25.0),
    ],
    ids=str,
)
def test_what_changes_the_float_model_first_is_made_again(variant: Variant) -> None:
    for name in ("residual", "detector"):
        first, again = made_and_made_again(ALL[name](), variant)
        assert again.data == first.data


@pytest.mark.parametrize("form", [Form.NHWC, Form.DYNAMIC])
def test_a_smoothed_encoder_is_made_again(form: Form) -> None:
    first, again = made_and_made_again(encoder(), first_variant(form).repaired(smoothquant=0.5, gptq=True))
    assert again.data == first.data


@pytest.mark.parametrize(
    "foreign",
    [
        {"type": "Popen", "args": ["true"]},
        {"type": "array", "dtype": "|O", "shape": [1], "data": ""},
        {"type": "array", "dtype": "<f4", "shape": [10**6, 10**6, 10**6], "data": ""},
        {"type": "array", "dtype": "<f4", "shape": [4], "data": "eJwDAAAAAAE="},
        {"type": "Affine", "scale": 0.0, "zero_point": 0},
        {"type": "Variant", "unknown": 1},
        {"no": "type"},
    ],
)
def test_what_is_no_decision_is_refused(foreign: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        from_plain(foreign)


def test_arrays_come_back_as_they_were() -> None:
    for array in (np.arange(6, dtype=np.int8).reshape(2, 3), np.zeros((0, 3), np.float32), np.float32([np.pi])):
        back = from_plain(json.loads(json.dumps(to_plain(array))))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
