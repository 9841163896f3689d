from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import HERE, Net, frames, largest_pair, mobile, sqnr_db

from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.calibration.watching import Watcher
from edgeopt.steps.quantize.grids.weights import QuantizedWeight, quantize_weight
from edgeopt.steps.quantize.patterns import key, name_of
from edgeopt.steps.quantize.repairs._weights import repair_weights
from edgeopt.steps.quantize.repairs.bias_correction import mean_shift
from edgeopt.steps.quantize.repairs.gptq import _damped_inverse, is_better, round_with_inputs, rounded
from edgeopt.steps.quantize.search.choose import choose_scheme
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import Variant, first_variant


def correlated(seed: int, samples: int = 300, columns: int = 24) -> np.ndarray:
    chance = np.random.default_rng(seed)
    return (chance.normal(size=(samples, 4)) @ chance.normal(size=(4, columns))).astype(np.float32)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_rounding_with_correlated_inputs_loses_less_than_the_nearest(seed: int) -> None:
    inputs, weight = correlated(seed), np.random.default_rng(seed + 1).normal(size=(8, 24)).astype(np.float32)
    nearest = quantize_weight("w", weight, 0)
    steps = round_with_inputs(weight, inputs, nearest.scale)
    assert np.abs(steps.astype(int)).max() <= 127
    assert is_better(weight, inputs, steps * nearest.scale[:, None], nearest.real)


@given(st.integers(0, 10_000), st.integers(20, 25))
@settings(max_examples=20, deadline=None)
def test_rounding_with_inputs_lets_no_two_neighbours_saturate(seed: int, columns: int) -> None:
    inputs = correlated(seed, columns=columns)
    weight = np.random.default_rng(seed + 1).normal(size=(8, columns)).astype(np.float32)
    nearest = quantize_weight("w", weight, 0, reduce_range=True)
    steps = round_with_inputs(weight, inputs, nearest.scale, reduce_range=True)
    assert largest_pair(steps) <= 128
    assert is_better(weight, inputs, steps * nearest.scale[:, None], nearest.real)


def test_rounding_with_independent_inputs_is_the_nearest() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    nearest = quantize_weight("w", weight, 0)
    np.testing.assert_array_equal(round_with_inputs(weight, np.eye(6, dtype=np.float32), nearest.scale), nearest.values)


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    inputs = correlated(0)
    inputs[:, 3] = 0
    weight = np.random.default_rng(1).normal(size=(4, 24)).astype(np.float32)
    nearest = quantize_weight("w", weight, 0)
    steps = round_with_inputs(weight, inputs, nearest.scale)
    np.testing.assert_array_equal(steps[:, 3], nearest.values[:, 3])


def test_a_silent_layer_keeps_its_nearest_integers() -> None:
    weight = np.random.default_rng(1).normal(size=(4, 24)).astype(np.float32)
    nearest = quantize_weight("w", weight, 0)
    assert rounded(nearest, weight, np.zeros((10, 24), np.float32), reduce_range=False) is nearest


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_along_either_axis_are_rounded_alike(axis: int) -> None:
    inputs, weight = correlated(2), np.random.default_rng(3).normal(size=(8, 24)).astype(np.float32)
    turned = weight if axis == 0 else weight.T
    made = rounded(quantize_weight("w", turned, axis), turned, inputs, reduce_range=False)
    values = made.values if axis == 0 else made.values.T
    np.testing.assert_array_equal(
        values, rounded(quantize_weight("w", weight, 0), weight, inputs, reduce_range=False).values
    )
    assert isinstance(made, QuantizedWeight)


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 4]))
@settings(max_examples=20, deadline=None)
def test_the_corrected_bias_restores_the_mean_of_every_output(seed: int, groups: int) -> None:
    chance = np.random.default_rng(seed)
    weight = chance.normal(size=(8, 8 // groups))
    quantized = weight + chance.normal(0, 0.1, weight.shape)
    x, quantized_x = chance.normal(1, 1, (500, 8)), chance.normal(1.1, 1, (500, 8))

    def out(w: np.ndarray, v: np.ndarray) -> np.ndarray:
        split = v.reshape(500, groups, -1)
        return np.einsum("ngi,goi->ngo", split, w.reshape(groups, 8 // groups, -1)).reshape(500, 8)

    shift = mean_shift(weight, quantized, x.mean(axis=0), quantized_x.mean(axis=0), groups)
    np.testing.assert_allclose(
        (out(quantized, quantized_x) + shift).mean(axis=0), out(weight, x).mean(axis=0), atol=1e-5
    )


def test_repairs_touch_what_they_name_and_nothing_else() -> None:
    model = mobile()
    graph = open_graph(model)
    findings = study(model, graph, frames(model), HERE)
    scheme = choose_scheme(graph, findings, HERE, Variant())
    plain = repair_weights(graph, scheme, findings.calibration, {})
    assert (plain.weights, plain.biases) == ({}, {})
    both = repair_weights(graph, scheme, findings.calibration, ALL)
    pointwise = {node.outputs[0].name for node in graph.nodes("Conv") if node.inputs[1].shape.dims[2:] == (1, 1)}
    assert both.weights.keys() == pointwise
    assert len(both.biases) == len(graph.nodes("Conv"))
    assert both.integer == scheme.integer


CHANNELS = 32
ALL = {"gptq": True, "bias_correction": False}


def mixed(places: int) -> tuple[Net, str, str, str]:
    """A net, a tensor of (1, 32, places), a matrix over places and a 1-tap kernel over channels."""
    net = Net(size=16 if places == 16 else 32, channels=1 if places == 32 else 2, seed=2)
    x = net.op("Reshape", "x", net.constant("shape", np.array([1, CHANNELS, places])))
    matrix = net.constant("matrix", net.chance.normal(0.02, 0.2, (places, places)).astype(np.float32))
    kernel = net.constant("kernel", net.chance.normal(0.02, 0.2, (CHANNELS, CHANNELS, 1)).astype(np.float32))
    return net, x, matrix, kernel


@pytest.mark.parametrize("places", [16, 32, 64])
def test_layers_that_sum_over_unlike_axes_are_repaired_each_over_its_own(places: int) -> None:
    net, x, matrix, kernel = mixed(places)
    for _ in range(2):
        x = net.op("Relu", net.op("MatMul", x, matrix))
        x = net.op("Relu", net.op("Conv", x, kernel))
    model = net.model(net.op("Conv", x, kernel))
    graph = open_graph(model)
    findings = study(model, graph, frames(model), HERE)
    scheme = choose_scheme(graph, findings, HERE, Variant(least_db=-200))
    repaired = repair_weights(graph, scheme, findings.calibration, ALL)
    assert len(repaired.weights) == 5
    assert len(repaired.biases) == 3
    watched = Watcher(model, {}, [[name_of(one.inputs[0]) for one in graph.nodes("Conv", "MatMul")]], threads=1, seed=0)
    whole = [watched._session.run(frame) for frame in frames(model)]
    for node in graph.nodes("Conv", "MatMul"):
        name, others = name_of(node.inputs[0]), (0, 2) if node.op_type == "Conv" else (0, 1)
        values = np.concatenate([one[name] for one in whole])
        np.testing.assert_array_equal(findings.calibration.observations[name].low, values.min(axis=others))
    for form in (Form.QDQ, Form.NHWC, Form.INPUTS, Form.DYNAMIC):
        variant = replace(first_variant(form), least_db=-200).repaired(gptq=True)
        assert sqnr_db(make_variant(model, findings, HERE, variant)[0].model, model) > 25, form


@pytest.mark.parametrize("first", ["Conv", "MatMul"])
@pytest.mark.parametrize("places", [16, 32])
def test_a_layer_that_sums_over_another_axis_than_was_watched_is_left_as_it_is(first: str, places: int) -> None:
    net, x, matrix, kernel = mixed(places)
    x = net.op("Relu", net.op("Conv", x, kernel))
    read = {"Conv": lambda: net.op("Conv", x, kernel), "MatMul": lambda: net.op("MatMul", x, matrix)}
    made = {op: net.op("Relu", read[op]()) for op in sorted(read, key=lambda op: op != first)}
    last = net.op("Conv", net.op("Add", made["Conv"], made["MatMul"]), kernel)
    model = net.model(last)
    graph = open_graph(model)
    findings = study(model, graph, frames(model), HERE)
    scheme = choose_scheme(graph, findings, HERE, Variant(least_db=-200))
    repaired = repair_weights(graph, scheme, findings.calibration, ALL)
    readers = {node.op_type: key(node) for node in graph.consumers(graph.value(x))}
    other = next(op for op in readers if op != first)
    assert readers[first] in repaired.weights
    assert readers[other] not in repaired.weights
    assert (readers["Conv"] in repaired.biases) == (first == "Conv")
    for form in (Form.QDQ, Form.NHWC, Form.INPUTS):
        variant = replace(first_variant(form), least_db=-200).repaired(gptq=True)
        assert sqnr_db(make_variant(model, findings, HERE, variant)[0].model, model) > 25, form


def test_fewer_samples_than_columns_give_what_the_full_inverse_gives() -> None:
    random = np.random.default_rng(5)
    inputs = random.normal(0, 1, (20, 48)) @ random.normal(0, 1, (48, 48))
    whole = np.linalg.inv(inputs.T @ inputs + 0.5 * np.eye(48))
    np.testing.assert_allclose(_damped_inverse(inputs, 0.5), whole, atol=1e-9)


def test_layers_after_the_time_are_rounded_to_nearest() -> None:
    model = mobile()
    graph = open_graph(model)
    findings = study(model, graph, frames(model), HERE)
    scheme = choose_scheme(graph, findings, HERE, Variant())
    late = repair_weights(graph, scheme, findings.calibration, ALL, ends_at_s=0.0)
    plain = repair_weights(graph, scheme, findings.calibration, {"bias_correction": False})
    whole = repair_weights(graph, scheme, findings.calibration, ALL)
    assert not late.weights
    assert whole.weights
    assert late.biases.keys() == plain.biases.keys()
    for name, shift in plain.biases.items():
        np.testing.assert_array_equal(late.biases[name], shift)
