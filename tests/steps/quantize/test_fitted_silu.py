from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Net, frames, sqnr_db

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.activations import hard_swish, silu
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.repairs.fitted_silu import SiluFit, fit_silus, keep_worst, note_of, place_fits
from edgeopt.steps.quantize.search.attempt import SearchResult
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.system.declared.target import Int8Rules, find_target

RULES = Int8Rules()
FITTING = replace(RULES, fitted_silu=True, forms=("inputs",))


def swishing() -> Model:
    """A network with three SiLUs behind convolutions, one of them depthwise and one without a bias."""
    net = Net()
    x = net.silu(net.conv("x", 3, 16, 3))
    x = net.silu(net.conv(x, 16, 16, 3, depthwise=True))
    bare = net.conv(x, 16, 24)
    del net.nodes[-1].input[2]
    return net.model(net.conv(net.silu(bare), 24, 8), name="swishing")


def observed(model: Model) -> dict[str, Observation]:
    return dict(study(model, open_graph(model), frames(model, 8), RULES).calibration.observations)


def fitted(model: Model) -> tuple[Model, tuple[SiluFit, ...]]:
    graph = open_graph(model)
    fits = fit_silus(graph, observed(model))
    assert place_fits(graph, fits) == len(fits)
    return graph.to_model(), fits


def fit_of(x: np.ndarray) -> SiluFit:
    """Return the fit of a SiLU that reads these numbers, shape (channels, samples)."""
    net = Net(channels=len(x))
    made = net.silu(net.conv("x", len(x), len(x)))
    model = net.model(net.conv(made, len(x), 1))
    name = model.proto.graph.node[0].output[0]
    seen = Observation(x.min(1), x.max(1), None, x.T.astype(np.float32))  # type: ignore[arg-type]
    (one,) = fit_silus(open_graph(model), {name: seen})
    return one


def error_of(fit: SiluFit, x: np.ndarray) -> np.ndarray:
    made = hard_swish(fit.slope[:, None] * x + fit.shift[:, None]) * fit.gain[:, None] + fit.offset[:, None]
    return made - silu(x)


def test_no_exponential_is_left_and_the_answers_stay_close() -> None:
    model = swishing()
    made, fits = fitted(model)
    onnx.checker.check_model(made.proto)
    assert len(fits) == 3
    assert made.op_counts["HardSwish"] == 3
    assert "Sigmoid" not in made.op_counts
    assert sqnr_db(made, model) > 20
    names = {node.op_type: 0 for node in made.proto.graph.node}
    assert names.keys() == {"Conv", "HardSwish", "Mul", "Add"}


def test_a_fit_for_each_channel_beats_the_plain_hard_swish() -> None:
    model = swishing()
    graph = open_graph(model)
    one = {"slope": 1.0, "shift": 0.0, "gain": 1.0, "offset": 0.0}
    plain = [
        replace(fit, **{name: np.full_like(fit.slope, value) for name, value in one.items()})
        for fit in fit_silus(graph, observed(model))
    ]
    place_fits(graph, plain)
    assert sqnr_db(fitted(model)[0], model) > sqnr_db(graph.to_model(), model) + 3


@given(st.floats(-6, 6), st.floats(0.05, 1.0))
@settings(max_examples=30, deadline=None)
def test_a_channel_that_uses_a_part_of_the_curve_only_is_met_to_10_db(middle, half_width) -> None:
    # 13.3 dB is the worst of 8,000 places, about the flat bottom at -1.28, where a channel hardly changes.
    x = np.linspace(middle - half_width, middle + half_width, 200)[None]
    error = error_of(fit_of(x), x)
    assert np.square(error).mean() < 0.1 * silu(x).var()
    assert np.abs(error).max() < 0.02 * 2 * half_width


def test_wide_channels_are_met_and_go_on_straight_beyond_what_was_seen() -> None:
    x = np.random.default_rng(0).normal(0, 4, (8, 1000))
    fit = fit_of(x)
    assert np.abs(error_of(fit, x)).max() < 0.2
    beyond = np.full((8, 1), 3 * x.max())
    assert np.abs(error_of(fit, beyond) / beyond).max() < 0.1


def test_a_channel_that_never_changes_stays_what_it_is() -> None:
    x = np.stack([np.full(50, -3.0), np.full(50, 0.0), np.linspace(-2, 2, 50)])
    fit = fit_of(x)
    assert all(np.isfinite(one).all() for one in (fit.slope, fit.shift, fit.gain, fit.offset))
    assert np.isfinite(fit.noise)
    np.testing.assert_allclose(error_of(fit, x)[:2], 0, atol=1e-6)


def test_a_quiet_channel_is_met_as_well_beside_a_loud_one() -> None:
    quiet = np.random.default_rng(0).normal(-1, 0.3, 500)
    alone = fit_of(quiet[None])
    beside = fit_of(np.stack([quiet, quiet * 3000]))
    np.testing.assert_allclose(error_of(beside, np.stack([quiet, quiet * 3000]))[0], error_of(alone, quiet[None])[0])


def test_what_no_convolution_makes_for_its_silu_alone_is_left() -> None:
    net = Net()
    shared = net.conv("x", 3, 8)
    first = net.op("Add", net.silu(shared), shared)  # the sum reads what the SiLU reads
    pooled = net.silu(net.op("MaxPool", first, kernel_shape=[2, 2]))
    last = net.silu(net.conv(pooled, 8, 8))
    model = net.model(last)  # a SiLU that is an answer
    assert fit_silus(open_graph(model), observed(model)) == ()
    old = swishing()
    old.proto.opset_import[0].version = 13
    assert fit_silus(open_graph(old), observed(old)) == ()  # HardSwish is of opset 14
    assert fit_silus(open_graph(swishing()), {}) == ()


def test_the_worst_for_what_they_save_keep_their_silu_up_to_a_share_of_the_numbers() -> None:
    none = np.zeros(1, np.float32)
    given = [("a", 0.9, 50), ("b", 0.1, 10), ("c", 0.5, 30), ("d", 0.2, 10)]
    fits = [SiluFit(name, none, none, none, none, noise, elements) for name, noise, elements in given]
    names = {share: [one.name for one in keep_worst(fits, share)] for share in (0.0, 0.09, 0.1, 0.6, 1.0)}
    assert not set(names[0.6]) - set(names[0.1])
    assert names == {0.0: list("abcd"), 0.09: list("abcd"), 0.1: list("abc"), 0.6: list("bc"), 1.0: []}


def by_fits(one: Model) -> float:
    """Return an agreement that every fit lowers."""
    return 1.0 - 0.1 * one.op_counts.get("HardSwish", 0)


def searched(model: Model, agreement: Callable[[Model], float], bar: float) -> SearchResult:
    return search_int8(
        model,
        frames(model),
        FITTING,
        agreement=agreement,
        speed=lambda one: 1.2 + one.op_counts.get("HardSwish", 0),
        forms=(Form.INPUTS,),
        least_agreement=bar,
    )


@pytest.mark.parametrize(("bar", "expected"), [(0.0, 3), (0.75, 2), (0.9999, 0)])
def test_the_search_fits_as_many_as_the_answers_allow(bar: float, expected: int) -> None:
    found = searched(swishing(), by_fits, bar)
    best = found.attempts[0]
    assert best.outcome.model.op_counts.get("HardSwish", 0) == expected
    assert ("SiLU as fitted HardSwish" in best.name) == bool(expected)
    assert any("fitted to each channel" in one.detail for one in best.outcome.notes) == bool(expected)
    assert any("SiLU as fitted HardSwish" in one.name for one in found.attempts)


def test_what_is_known_of_tensors_is_known_of_those_that_the_answer_has() -> None:
    found = searched(swishing(), by_fits, 0.0)
    assert found.rounded
    assert found.rounded <= found.scores_db.keys() == found.plain_db.keys()
    assert any("fitted" in name for name in found.rounded)


def test_no_fit_is_tried_while_answers_are_spoiled_but_once_they_are_mended() -> None:
    spoiled = searched(swishing(), lambda _: 0.5, 0.8)
    assert not any("fitted" in one.name for one in spoiled.attempts)
    judged: list[Model] = []

    def mended_by_rounding(one: Model) -> float:
        judged.append(one)
        return 0.9 if len(judged) > 2 else 0.5  # the first two are the form and its depthwise layers in float

    mended = searched(swishing(), mended_by_rounding, 0.8)
    assert any("fitted" in one.name and "rounded with inputs" in one.name for one in mended.attempts)


def test_the_note_names_the_coarsest_and_its_error() -> None:
    none = np.zeros(1, np.float32)
    fits = [SiluFit(name, none, none, none, none, noise, 1) for name, noise in (("a", 1e-3), ("b", 1e-2), ("c", 0.0))]
    note = note_of(fits)
    assert note.detail.startswith("3 SiLU computed as HardSwish")
    assert note.hint == "coarsest: 'b' 20.0 dB, 'a' 30.0 dB, 'c' 120.0 dB"


def test_only_targets_that_say_so_are_offered_fits() -> None:
    model = swishing()
    found = search_int8(
        model, frames(model), replace(FITTING, fitted_silu=False), agreement=lambda _: 1.0, speed=lambda _: 1.2
    )
    assert not any("fitted" in one.name for one in found.attempts)
    assert find_target("openvino-cpu").int8.fitted_silu
    assert not find_target("cpu-x86-vnni").int8.fitted_silu
