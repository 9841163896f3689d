"""SmoothQuant: scale moves from normalised activations into the matrices that read them."""

from __future__ import annotations

import numpy as np
import pytest
from encoders import encoder
from first_outputs import answers, signal_db
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import ALL, Net, frames

from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.calibrate import calibrate
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.patterns import name_of
from edgeopt.steps.quantize.repairs.smoothquant import ALPHAS, smooth, smoothable, smoothing
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant, first_variant
from edgeopt.system.declared.target import Int8Rules


def smoothed(model, alpha):
    graph = open_graph(model)
    axes = {name_of(node.outputs[0]): -1 for node in smoothable(graph)}
    seen = calibrate(model, frames(model), axes).observations
    count = smooth(graph, seen, alpha)
    return graph.to_model(), count


@settings(deadline=None, max_examples=8)
@given(st.floats(0, 1), st.integers(0, 100))
def test_float_answers_stay_the_same_whatever_alpha_is(alpha, seed):
    model = encoder(width=32, depth=1, side=4, seed=seed)
    made, count = smoothed(model, alpha)
    seen = list(frames(model, seed=seed))
    assert count == 2
    assert signal_db(answers(made, seen), answers(model, seen)) > 90


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=8), st.floats(0, 1))
def test_scales_are_above_zero_and_silent_channels_keep_one(pairs, alpha):
    largest, reading = np.array(pairs).T
    scale = smoothing(largest, reading, alpha)
    assert (scale > 0).all()
    assert (scale[(largest == 0) | (reading == 0)] == 1).all()


def test_at_one_half_activation_and_weight_get_the_same_range_in_every_channel():
    largest, reading = np.array([1.0, 100.0, 10.0]), np.array([2.0, 0.5, 1.0])
    scale = smoothing(largest, reading, 0.5)
    ratio = (largest / scale) / (reading * scale)
    np.testing.assert_allclose(ratio, ratio[0])


def test_a_normalisation_that_an_addition_reads_too_is_left_alone():
    model = encoder(width=32, depth=1, side=4)
    assert len(smoothable(open_graph(model))) == 2  # the last one feeds a mean


def test_a_normalisation_in_parts_is_smoothed_by_its_gain_and_its_shift():
    net = Net(size=8, channels=1)
    spread = net.op("Sub", "x", net.op("ReduceMean", "x", axes=[-1]))
    gained = net.op("Mul", spread, net.constant("gain", np.linspace(1, 9, 8).astype(np.float32)))
    shifted = net.op("Add", net.constant("shift", np.linspace(-1, 1, 8).astype(np.float32)), gained)
    weight = net.constant("w", net.chance.normal(0, 1, (8, 4)).astype(np.float32))
    lone = net.op("Add", net.op("MatMul", shifted, weight), net.constant("bias", np.ones(4, np.float32)))
    model = net.model(net.op("MatMul", lone, net.constant("v", np.ones((4, 2), np.float32))))
    made, count = smoothed(model, 0.5)
    seen = list(frames(model))
    assert count == 1  # behind the first product a shift alone cannot be scaled
    assert signal_db(answers(made, seen), answers(model, seen)) > 100


def test_a_gain_of_its_own_is_smoothed_and_a_single_number_is_not():
    net = Net(size=8, channels=1)
    gained = net.op("Mul", "x", net.constant("gain", np.linspace(1, 9, 8).astype(np.float32)))
    weight = net.constant("w", net.chance.normal(0, 1, (8, 4)).astype(np.float32))
    scaled = net.op("Mul", net.op("MatMul", gained, weight), net.constant("half", np.float32(0.5)))
    model = net.model(net.op("MatMul", scaled, net.constant("v", np.ones((4, 2), np.float32))))
    made, count = smoothed(model, 0.5)
    seen = list(frames(model))
    assert count == 1
    assert signal_db(answers(made, seen), answers(model, seen)) > 100


@pytest.mark.parametrize("form", [Form.NHWC, Form.DYNAMIC])
def test_integers_lose_less_behind_a_smoothed_normalisation(form):
    model, rules = encoder(), Int8Rules()
    given_frames, unseen = list(frames(model, 8)), list(frames(model, 4, seed=9))
    findings = study(model, open_graph(model), given_frames, rules)
    sources = Sources(model, findings, rules, given_frames)
    wanted, kept = answers(model, unseen), []
    for alpha in (0.0, 0.5):
        variant = Variant(form, first_variant(form).options, least_db=-100.0).repaired(smoothquant=alpha)
        made = make_variant(*sources.of(variant), rules, variant)[0].model
        kept.append(signal_db(answers(made, unseen), wanted))
    assert kept[1] > kept[0] + 2


def test_the_search_smooths_where_that_agrees_better_and_tries_dynamic_grids_too():
    model = encoder(width=32, depth=1)
    seen = list(frames(model, 2, seed=5))
    wanted = answers(model, seen)

    def agreement(made):
        return float(np.clip(signal_db(answers(made, seen), wanted) / 40, 0, 1))

    found = search_int8(
        model,
        frames(model, 8),
        Int8Rules(),
        agreement=agreement,
        speed=lambda made: 1.5 if "MatMulIntegerToFloat" in made.op_counts else 1.0,
        forms=(Form.NHWC, Form.DYNAMIC),
        least_agreement=0.2,
    )
    names = [one.name for one in found.attempts]
    assert any("dynamic" in name for name in names)
    assert sum("smoothed" in name for name in names) >= len(ALPHAS)
    plain = [one for one in found.attempts if "smoothed" not in one.name and one.speed_ratio > 1]
    assert "smoothed" in found.attempts[0].name
    assert found.attempts[0].agreement > max(one.agreement for one in plain)


def test_a_convolutional_network_is_searched_as_before():
    assert not smoothable(open_graph(ALL["residual"]()))
