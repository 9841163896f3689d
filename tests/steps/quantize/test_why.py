from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from small_nets import Net, frames

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime, LayerTimes
from edgeopt.steps.quantize.patterns import WEIGHTED, key
from edgeopt.steps.quantize.search.attempt import Attempt, KeptTensor
from edgeopt.steps.quantize.search.explain import kept_tensors, reason
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant, first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules()


def wild() -> Model:
    """A network with one tensor whose channels differ by three orders of magnitude, behind SiLU."""
    net = Net()
    first = net.conv("x", 3, 16, 3)
    spread = np.geomspace(0.3, 300, 16, dtype=np.float32).reshape(-1, 1, 1, 1)
    net.weights["w0"] = net.weights["w0"] * spread
    second = net.conv(net.silu(first), 16, 16, 3, depthwise=True)
    net.weights["w3"] = net.weights["w3"] / spread
    x = net.silu(net.conv(net.silu(second), 16, 32))
    return net.model(net.conv(net.silu(net.conv(x, 32, 32, 3)), 32, 8), name="wild")


@pytest.fixture(scope="module")
def sources() -> Sources:
    model = wild()
    seen = list(frames(model))
    return Sources(model, study(model, open_graph(model), seen, RULES), RULES, seen)


def explained(
    sources: Sources, variant: Variant, times: LayerTimes | None = None, **limits: float
) -> tuple[KeptTensor, ...]:
    asked: list[Variant] = []

    def lost(forced: Variant) -> float:
        asked.append(forced)
        return 0.3

    found = kept_tensors(sources, variant, times, lost, **limits)
    assert [one.name for one in found] == [name for forced in asked for name in forced.forced]
    return found


def test_the_tensor_that_stays_real_is_named_with_what_quantizing_it_would_lose(sources: Sources) -> None:
    found = explained(sources, first_variant(Form.QDQ))
    assert found
    assert {one.name for one in found} <= {name for name, score in sources.findings.scores_db.items() if score < 10}
    assert all(one.saved_agreement == pytest.approx(0.3) for one in found)
    assert all(one.cost_ms is None for one in found)


def test_a_tensor_that_is_never_rounded_is_not_said_to_stay_real(sources: Sources) -> None:
    """A Relu behind a convolution takes its grid over: the sum between them has a score and no grid."""
    net = Net()
    x = net.conv("x", 3, 16, 3)
    model = net.model(net.conv(net.op("Relu", x), 16, 8), name="absorbed")
    seen = list(frames(model))
    findings = study(model, open_graph(model), seen, RULES)
    scored = {name: -5.0 if name == x else 40.0 for name in findings.scores_db}
    assert explained(Sources(model, replace(findings, scores_db=scored), RULES, seen), first_variant(Form.QDQ)) == ()


def test_a_bad_tensor_inside_layers_that_are_float_for_speed_is_explained_too(sources: Sources) -> None:
    layers = {key(node) for node in open_graph(sources.model).nodes(*WEIGHTED)[:2]}
    times = LayerTimes({name: LayerTime(1_000_000, 3_000_000) for name in layers}, BorderTime(0.0, 0.0))
    plain = explained(sources, first_variant(Form.QDQ))
    found = explained(sources, replace(first_variant(Form.QDQ), front=frozenset(layers)), times)
    assert [one.name for one in found] == [one.name for one in plain]
    assert any(one.cost_ms is not None and one.cost_ms < 0 for one in found)
    assert "ms less than on integers" in " ".join(said for one in found for said in one.sentences)


def test_without_time_nothing_is_explained(sources: Sources) -> None:
    assert explained(sources, first_variant(Form.QDQ), ends_at_s=0.0) == ()


def test_without_trying_only_what_it_saves_is_unknown(sources: Sources) -> None:
    variant = first_variant(Form.QDQ)
    plain = kept_tensors(sources, variant, None)
    assert [one.name for one in plain] == [one.name for one in explained(sources, variant)]
    assert all(one.saved_agreement is None for one in plain)
    assert not any("agreement" in said for one in plain for said in one.sentences)


def test_what_a_rounded_form_saves_is_told_against_its_plain_form(sources: Sources) -> None:
    """Rounding takes minutes on a large model; with and without the tensor both forms are plain."""
    told, asked = list[Attempt](), list[float]()

    def agreement(made: Model) -> float:
        explaining = len(asked) > len(told)  # the first time for the plain form, then for one tensor after the other
        asked.append(0.85 if explaining else 0.97 if len(told) == 2 else 0.9)
        return asked[-1]

    model = sources.model
    found = search_int8(
        model, frames(model), RULES, agreement=agreement, speed=lambda _: 1.2, forms=(Form.QDQ,), on_attempt=told.append
    )
    assert found.attempts[0].name == "int8 qdq, rounded with inputs"
    assert found.kept
    assert [one.saved_agreement for one in found.kept] == pytest.approx([0.05] * len(found.kept))


def test_the_reason_tells_the_choice_its_costs_and_the_others() -> None:
    empty = Model(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), "empty")
    notes = (Note(NoteKind.CHOICE, "two layers stay in float"), Note(NoteKind.INFO, "unsaid"))
    best, other = Attempt("a", Outcome(empty, {}, notes), 0.95, 1.4), Attempt("b", Outcome(empty, {}), 0.9, 1.3)
    times = LayerTimes({"c": LayerTime(1_000_000, 1_500_000)}, BorderTime(0.0, 0.0))
    variant = replace(first_variant(Form.NHWC), front=frozenset({"c"}))
    kept = KeptTensor("t", 4.2, 0.25, 0.1)
    told = reason(variant, best, [other], 0.85, times, (kept,))
    assert told == (
        "a: about 1.40 times as fast as the float model. Its agreement is 0.950. "
        "Float saves 0.50 ms in 1 layer. What conversions at the borders cost is not counted. "
        "The tensor 't' stays in float: one scale holds it with 4.2 dB only. "
        "In float its layers take 0.25 ms more than on integers. On integers the agreement would be 0.100 lower. "
        "Two layers stay in float. "
        "Other forms: b (1.30 times as fast, agreement 0.900)."
    )
    assert "not good enough" in reason(variant, replace(best, agreement=0.5), [other], 0.85, None, ())
