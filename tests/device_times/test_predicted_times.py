"""Times of layers on a device that is not here: what is told of them, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from encoders import encoder
from lawful_times import by_work, changed, device_by, shapes_of, times_by

from edgeopt.errors import InvalidFileError, UnavailableError
from edgeopt.graph.groups import trace
from edgeopt.optimization.candidates.engines import open_engines
from edgeopt.optimization.elsewhere import why_not_made_here
from edgeopt.optimization.options import Options
from edgeopt.runtime.devices.availability import find_device, find_device_elsewhere
from edgeopt.steps._checked import probe
from edgeopt.steps._device_times.device import form_times_of, predictor_of
from edgeopt.steps._device_times.features import LayerFeatures, features_of
from edgeopt.steps._device_times.forms import borders_by_name, is_predictable, layers_of_form
from edgeopt.steps._device_times.prediction import Predictor, form_layers_ms, model_shapes, speed_between
from edgeopt.steps.prune.costs import Costs
from edgeopt.steps.prune.latency_table import LatencyTable, predicted_stopwatch
from edgeopt.steps.prune.network.channel_step import predicted_step
from edgeopt.steps.prune.network.layer_shapes import Layers
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.system.declared.device_times import POOL_SIZES, read_device_times, write_device_times
from edgeopt.system.declared.target import Target, TargetByTimes, find_target
from edgeopt.system.machine.processor import Processor, this_processor
from edgeopt.verbs.device_profile.networks import CHECKED, FAMILIES, LEARNED, NetworkShape

TARGET = find_target("cpu").name
UNSEEN = tuple(NetworkShape(family, 12, 64) for family in FAMILIES)


def ten_times_faster(features: LayerFeatures) -> float:
    return by_work(features) / 10


def written(path, in_float=None, on_integers=None, **changes):
    times = device_by(in_float or times_by(by_work), on_integers or times_by(ten_times_faster), TARGET)
    write_device_times(replace(times, **changes), path)
    return path


@pytest.fixture(scope="module")
def predictor():
    return Predictor(times_by(by_work))


@pytest.mark.parametrize("shape", UNSEEN, ids=lambda shape: shape.name)
def test_a_law_of_the_work_is_found_again_for_networks_that_were_never_measured(predictor, shape):
    for layer in shapes_of([shape]):
        assert predictor.layer_ms(layer) == pytest.approx(by_work(features_of(layer)), rel=1e-6), layer.key


def test_a_speed_that_changes_with_the_size_is_read_between_the_sizes():
    """Times of which the logarithm is a plane in the logarithms of sizes: small layers are slow for their work."""

    def slow_if_small(features: LayerFeatures) -> float:
        return by_work(features) * 2 ** (-0.3 * features.sizes[0])

    predictor = Predictor(times_by(slow_if_small))
    for layer in shapes_of([NetworkShape("plain", 12, 32)]):
        features = features_of(layer)
        if features.pool == "Conv full" and features.sizes[0] > 2:
            assert predictor.ms(features) == pytest.approx(slow_if_small(features), rel=0.15)


def test_channels_count_in_whole_steps():
    predictor = Predictor(times_by(by_work, step=16))

    def convolution(read: int, made: int) -> LayerFeatures:
        sizes = tuple(map(math.log2, (read, made, 256, 9, 1)))
        return LayerFeatures("Conv full", "Conv full 3x3 /1 d1", sizes, read * made * 256 * 9)

    assert predictor.ms(convolution(33, 48)) > predictor.ms(convolution(32, 48)) * 1.4
    assert predictor.ms(convolution(34, 48)) == pytest.approx(predictor.ms(convolution(46, 48)), rel=1e-6)


def test_an_op_that_was_never_measured_is_compared_with_all_others(predictor):
    unknown = LayerFeatures("other", "Einsum", (12.0,), 4096.0)
    assert predictor.ms(unknown) == pytest.approx(by_work(unknown))
    assert predictor.ms(replace(unknown, pool="Conv of another world", sizes=(1.0, 2.0))) > 0


@pytest.mark.parametrize(
    ("errors", "low", "high"),
    [((1.0, 1.0), 1.0, 1.0), ((2.0,) * 20, 2.0, 2.0), ((*(1.0,) * 18, 1.5, 1 / 1.5), 1 / 1.5, 1.5)],
)
def test_the_interval_is_how_far_other_predictions_were_off(errors, low, high):
    """18 of 20 networks were as predicted, so the interval of 95 % reaches to the worst."""
    time = Predictor(times_by(by_work, errors)).model_time([1.0])
    assert (time.low_ms, time.high_ms) == pytest.approx((low, high))


def test_a_speed_between_precisions_keeps_what_is_off_in_both_alike():
    both = [Predictor(times_by(law, [1.5, 1.0, 0.7])) for law in (by_work, ten_times_faster)]
    speed = speed_between(*both, 10.0)
    assert (speed.low, speed.ratio, speed.high) == pytest.approx((10, 10, 10))


def test_precisions_that_no_network_checked_together_claim_no_more_than_both_allow():
    first = Predictor(times_by(by_work, [1.5, 1.0]))
    second = Predictor(times_by(ten_times_faster, [1.0, 1.0]))
    second.errors = {f"another {name}": error for name, error in second.errors.items()}
    speed = speed_between(first, second, 10.0)
    assert speed.low < speed.ratio < speed.high


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
@pytest.mark.parametrize("family", ["plain", "excited", "squeezed"])
def test_the_layers_of_a_form_are_those_of_its_float_model(family, form):
    model = NetworkShape(family, 8, 32).make()
    shapes = model_shapes(model)
    rules = replace(find_target("cpu-x86-vnni").int8, forms=("qdq", "nhwc"))
    made = quantize(model, iter([probe(model.inputs)]), rules, form=form).model
    parts = layers_of_form(shapes, made)
    assert len(parts.integer) + len(parts.in_float) == len(shapes)
    in_float = {shapes[place].layer.nodes[0].output[0] for place in parts.float_places}
    if form is Form.NHWC:
        assert in_float == {
            (node.name or node.output[0]).removesuffix(f"_{node.op_type}")
            for node in made.proto.graph.node
            if node.op_type in ("Conv", "MatMul", "Gemm")
        }
        passes = [node for node in made.proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
        counted = [features for features in parts.borders if features.kind != "Transpose"]
        assert len(counted) == len(passes)


def test_pairs_between_ops_on_integers_are_no_passes():
    model = NetworkShape("plain", 8, 32).make()
    made = quantize(model, iter([probe(model.inputs)]), find_target("cpu-x86-vnni").int8, form=Form.QDQ).model
    names = [name for name, _ in borders_by_name(model_shapes(model), made)]
    everything = [node for node in made.proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert names[0] == "x_quantize"
    assert 2 <= len(names) < len(everything) / 4


def test_a_search_hears_what_a_form_gains_by_the_devices_times(tmp_path):
    target = find_target(str(written(tmp_path / "x.times.json")))
    model = NetworkShape("plain", 8, 32).make()
    form = quantize(model, iter([probe(model.inputs)]), target.int8, form=Form.NHWC).model
    times = form_times_of(model, target, "w8a8")
    parts = layers_of_form(model_shapes(model), form)
    whole_ms = sum(by_work(features_of(shape)) for shape in model_shapes(model))
    form_ms = sum(by_work(each) for each in parts.in_float)
    form_ms += sum(ten_times_faster(each) for each in (*parts.integer, *parts.borders))
    assert times.speed(form) == pytest.approx(whole_ms / form_ms, rel=1e-4)
    layers = times.layer_times(form)
    assert layers.layers
    for name, layer in layers.layers.items():
        shape = next(each for each in model_shapes(model) if each.layer.nodes[0].output[0] == name)
        assert layer.float_ns == pytest.approx(1e6 * by_work(features_of(shape)), rel=1e-3, abs=2)
        assert layer.integer_ns >= layer.float_ns / 10 - 2
    assert layers.border.element_ns == pytest.approx(0.1, rel=0.05)


def test_pruning_costs_what_the_device_needs(tmp_path):
    target = find_target(str(written(tmp_path / "x.times.json", times_by(by_work, step=8))))
    predictor = predictor_of(target, "fp32")
    assert predictor_of(target, "fp32") is predictor
    assert predicted_step(predictor, target).channels == 8
    model = NetworkShape("plain", 16, 32).make()
    groups = trace(model)
    costs = Costs(Layers(model, groups), LatencyTable(predicted_stopwatch(predictor)))
    group = groups.free[1]
    dense, half = costs.dense, costs.of({group.name: group.channels // 2})
    assert dense == pytest.approx(sum(by_work(features_of(shape)) for shape in model_shapes(model)), rel=1e-4)
    assert half < dense


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = written(tmp_path / "board.times.json")
    times = read_device_times(path)
    write_device_times(times, tmp_path / "again.times.json")
    assert (tmp_path / "again.times.json").read_bytes() == path.read_bytes()
    target = find_device(str(path))
    assert isinstance(target, TargetByTimes)
    assert target.times == times
    assert (target.name, target.machine, target.threads) == (TARGET, "Board X", 1)
    assert "Board X is not here" in str(target.why_untimed())
    assert type(target.profile) is Target


def test_on_the_very_device_it_is_its_plain_profile(tmp_path, monkeypatch):
    path = written(tmp_path / "board.times.json")
    monkeypatch.setattr("edgeopt.system.declared.target.cpu_name", lambda: "Board X")
    assert type(find_device(str(path))) is Target


def test_a_device_that_is_reached_keeps_its_times(tmp_path):
    path = written(tmp_path / "board.times.json")
    target = find_device_elsewhere(str(path), "ssh://pi@board", this_processor())
    assert predictor_of(target, "fp32") is not None
    assert target.why_untimed() is None
    assert why_not_made_here(target, Options(prune="1.5x")) == ""
    plain = find_device_elsewhere("cpu", "ssh://pi@board", this_processor())
    assert predictor_of(plain, "fp32") is None
    assert "own times" in why_not_made_here(plain, Options(prune="1.5x"))


def test_times_of_another_processor_are_refused(tmp_path):
    path = written(tmp_path / "board.times.json")
    with pytest.raises(UnavailableError, match="not of the processor of ssh://pi@board"):
        find_device_elsewhere(str(path), "ssh://pi@board", Processor("arm64", {"asimd"}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schema": 99}, "schema 99"),
        ({"engines": []}, "engines are one or more"),
        ({"flags": 7}, "flags"),
        ({"threads": -1}, "threads"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_a_line(tmp_path, values, words):
    path = changed(written(tmp_path / "board.times.json"), **values)
    with pytest.raises(InvalidFileError, match=words):
        find_target(str(path))


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("other: Relu", [1.0]),
        ("other: Relu", [3.0, 64.0, -1.0]),
        ("other: Relu", [3.0, 4.0, 64.0, 1.0]),
        ("other: Relu", [1e6, 64.0, 1.0]),
        ("other: Relu", [-1e6, 64.0, 1.0]),
        ("other: Relu", [3.0, 1e308, 1.0]),
        ("other: Relu", [3.0, 64.0, 1e-308]),
        ("Conv full: Conv", [1.0, 64.0, 1.0]),
        ("Pool of mine: Conv", [1.0, 64.0, 1.0]),
        ("Conv", [1.0, 64.0, 1.0]),
    ],
)
def test_a_row_that_is_none_is_refused(tmp_path, kind, row):
    path = written(tmp_path / "board.times.json")
    values = json.loads(path.read_text("utf-8"))
    values["engines"][0]["precisions"]["fp32"]["layers"][kind] = [row]
    path.write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidFileError, match="no row of sizes"):
        find_target(str(path))


def test_every_layer_has_the_sizes_of_its_pool():
    assert all(len(features_of(shape).sizes) == POOL_SIZES[features_of(shape).pool] for shape in shapes_of())


@pytest.mark.parametrize("target", ["nope", "../other.toml", "board.times.json"])
def test_a_further_engine_is_a_shipped_target_and_no_path(tmp_path, monkeypatch, target):
    first = device_by(*[times_by(by_work)] * 2, TARGET)
    more = replace(first, engines=(*first.engines, replace(first.engines[0], target=target)))
    monkeypatch.chdir(tmp_path)
    write_device_times(more, tmp_path / "board.times.json")
    with pytest.raises(InvalidFileError, match="which there is not"):
        find_target("board.times.json")


def test_a_check_that_is_off_without_end_is_refused(tmp_path):
    checks = (replace(times_by(by_work).checks[0], predicted_ms=1e-320),)
    with pytest.raises(InvalidFileError, match="predicted_ms"):
        find_target(str(written(tmp_path / "board.times.json", replace(times_by(by_work), checks=checks))))


def test_times_that_nothing_checks_are_refused(tmp_path):
    unchecked = replace(times_by(by_work), checks=())
    with pytest.raises(InvalidFileError, match="no network checks its predictions"):
        find_target(str(written(tmp_path / "board.times.json", unchecked)))


def test_times_of_a_target_that_there_is_not_are_refused(tmp_path):
    path = written(tmp_path / "board.times.json", engines=device_by(*[times_by(by_work)] * 2, "cpu-z80").engines)
    with pytest.raises(InvalidFileError, match="'cpu-z80', which there is not"):
        find_target(str(path))


def test_no_time_is_predicted_of_grids_that_are_found_as_the_model_runs(tmp_path):
    target = find_target(str(written(tmp_path / "x.times.json")))
    model = encoder(depth=1)
    inputs = [probe(model.inputs)]
    times = form_times_of(model, target, "w8a8")
    forms = [quantize(model, iter(inputs), target.int8, form=form).model for form in (Form.QDQ, Form.DYNAMIC)]
    assert [is_predictable(form) for form in forms] == [True, False]
    assert times.speed(forms[0]) > 0
    assert times.speed(forms[1]) is None


def test_networks_that_check_are_none_of_those_that_are_measured():
    assert not {shape.name for shape in CHECKED} & {shape.name for shape in LEARNED}
    assert len(CHECKED) >= 19, "fewer give no interval of 95 %"


def test_the_ms_of_a_form_are_those_of_its_parts(predictor):
    model = NetworkShape("excited", 8, 32).make()
    form = quantize(model, iter([probe(model.inputs)]), find_target("cpu-x86-vnni").int8, form=Form.NHWC).model
    parts = layers_of_form(model_shapes(model), form)
    integers = Predictor(times_by(ten_times_faster))
    with_floats, without = form_layers_ms(parts, integers, predictor), form_layers_ms(parts, integers, None)
    assert sum(with_floats) - sum(without) == pytest.approx(0.9 * sum(map(by_work, parts.in_float)), rel=1e-4)


def test_an_engine_whose_times_are_known_there_is_planned_beside_the_targets_own(tmp_path):
    other = "cpu-x86-avx2" if TARGET == "cpu-x86-vnni" else TARGET
    if find_target(other).why_unfit() or other == TARGET:
        pytest.skip("needs a processor that two shipped profiles fit")
    times = device_by(times_by(by_work), times_by(ten_times_faster), TARGET)
    times = replace(times, engines=(*times.engines, replace(times.engines[0], target=other)))
    write_device_times(times, tmp_path / "board.times.json")
    target = find_device(str(tmp_path / "board.times.json"))
    engines = open_engines(target, 1, str(tmp_path))
    assert [engine.target.name for engine in engines.others] == [other]
    assert predictor_of(engines.others[0].target, "w8a8") is not None
    assert "Board X is not here" in engines.untimed
    unknown = open_engines(replace(target, alternatives=(other,), times=None), 1, str(tmp_path))
    assert not unknown.others, "unmeasured, one engine is no better than another"
