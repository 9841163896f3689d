from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_nets import answers, detector, frames, residual, vision_transformer

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules

RULES, PLAIN = Int8Rules(), first_variant(Form.QDQ)


def sources_of(model: Model) -> Sources:
    seen = list(frames(model, 2))
    return Sources(model, study(model, open_graph(model), seen, RULES), RULES, seen)


def test_a_plain_variant_is_made_of_the_model_and_what_is_known_of_it() -> None:
    sources = sources_of(residual())
    assert sources.of(PLAIN) == (sources.model, sources.findings)


def test_another_range_method_takes_the_same_images_and_is_computed_once() -> None:
    sources = sources_of(residual())
    variant = replace(PLAIN, method=Method.MINMAX)
    model, findings = sources.of(variant)
    assert model is sources.model
    assert findings.calibration is sources.findings.calibration
    assert findings.affines != sources.findings.affines
    assert sources.of(variant)[1] is findings
    assert sources.of(variant.repaired(gptq=True))[1] is findings


def test_the_equalized_model_gives_the_same_answer_and_is_calibrated_itself() -> None:
    sources = sources_of(residual())
    model, findings = sources.of(PLAIN.repaired(equalization=True))
    assert model is not sources.model
    assert findings.calibration is not sources.findings.calibration
    np.testing.assert_allclose(answers(model, sources.model), answers(sources.model, sources.model), atol=1e-3)
    assert sources.of(PLAIN.repaired(equalization=True, gptq=True))[0] is model


def test_where_no_pair_of_layers_allows_it_nothing_is_equalized() -> None:
    sources = sources_of(detector())
    assert sources.of(PLAIN.repaired(equalization=True))[0] is sources.model


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_a_smoothed_transformer_gives_the_same_answer_for_each_strength(alpha: float) -> None:
    sources = sources_of(vision_transformer())
    model, findings = sources.of(PLAIN.repaired(smoothquant=alpha))
    assert model is not sources.model
    assert findings is not sources.findings
    np.testing.assert_allclose(answers(model, sources.model), answers(sources.model, sources.model), atol=1e-3)
    assert sources.of(PLAIN)[0] is sources.model
