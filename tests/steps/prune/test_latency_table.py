"""The table measures each shape once; what is fast and slow is told apart; what an engine refuses costs nothing."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from channel_nets import NETS, residual

from edgeopt.errors import EdgeoptError
from edgeopt.graph.facts.multiply_adds import count_multiply_adds
from edgeopt.graph.groups import trace
from edgeopt.graph.model import Model
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.steps._context import Engine
from edgeopt.steps.prune.costs import Costs, Cut
from edgeopt.steps.prune.integer_layers import integer_layers
from edgeopt.steps.prune.latency_table import LatencyTable, can_time, multiply_adds, stopwatch_of
from edgeopt.steps.prune.network.channel_step import convolution
from edgeopt.steps.prune.network.layer_shapes import Layers, model_of
from edgeopt.system.declared.target import find_target

HAS_OPENVINO = importlib.util.find_spec("openvino") is not None


def engine_of(name):
    target = find_target(name)
    return Engine(target, load_executor(target.executor), 1)


class Watch:
    def __init__(self):
        self.asked = []

    def __call__(self, shapes):
        self.asked.append([one.key for one in shapes])
        return [float(one.multiply_adds) for one in shapes]


def test_each_shape_is_measured_once_and_all_that_are_new_together():
    watch = Watch()
    table = LatencyTable(watch, {convolution(3, 8, 8).key: 7.0})
    table.prepare([convolution(3, 8, 8), convolution(3, 16, 8), convolution(1, 8, 8), convolution(3, 16, 8)])
    assert watch.asked == [[convolution(3, 16, 8).key, convolution(1, 8, 8).key]]
    assert table.ms(convolution(3, 8, 8)) == 7.0
    assert table.ms(convolution(3, 16, 8)) == 26 * 26 * 16 * 8 * 9
    assert len(watch.asked) == 1


def test_products_are_counted():
    assert multiply_adds([convolution(3, 16, 32)]) == [26 * 26 * 16 * 32 * 9 / 1e6]


@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_products_of_all_layers_are_the_models(make):
    model = make()
    layers = Layers(model, trace(model))
    counted = 1e6 * sum(multiply_adds([layers.shape(place, {}) for place in range(len(layers.all))]))
    assert counted == pytest.approx(count_multiply_adds(model))


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
@pytest.mark.parametrize(
    "name",
    [
        "cpu-x86-vnni",
        pytest.param("openvino-cpu", marks=pytest.mark.skipif(not HAS_OPENVINO, reason="openvino is not installed")),
    ],
)
def test_on_the_engine_a_layer_of_a_hundred_times_the_work_takes_longer(name, precision):
    small, large = stopwatch_of(engine_of(name), precision)([convolution(3, 8, 8), convolution(3, 96, 96)])
    assert 0 < small < large


def test_a_layer_that_the_engine_refuses_counts_nothing_and_the_others_count():
    good = convolution(3, 16, 16)
    bad = replace(good, key="bad", sizes={**good.sizes, "x": (1, 5, 26, 26)})
    times = stopwatch_of(engine_of("cpu-x86-vnni"), "fp32")([good, bad])
    assert times[1] == 0
    assert times[0] > 0


def test_integer_layers_run_on_integers_even_where_they_end_the_model():
    model = model_of([convolution(3, 16, 16).branch("L0/"), convolution(1, 16, 16).branch("L1/")], 17)
    lowered = integer_layers(model, find_target("cpu-x86-vnni"))
    assert lowered.op_counts.get("Conv", 0) == 0


def test_integer_layers_of_an_old_opset_are_an_error():
    model = model_of([convolution(3, 16, 16).branch("L0/")], 12)
    with pytest.raises(EdgeoptError):
        integer_layers(model, find_target("cpu-x86-vnni"))


def test_only_processors_tell_the_times_of_layers():
    assert can_time(engine_of("cpu-x86-vnni"))
    assert not can_time(Engine(find_target("nvidia-cuda"), load_executor("onnxruntime"), 1))
    assert not can_time(Engine(find_target("qualcomm-htp-v73"), load_executor("qnn"), 1))


def costs_of(model: Model, watch):
    groups = trace(model)
    return Costs(Layers(model, groups), LatencyTable(watch)), groups


def test_a_cut_saves_in_the_layers_on_both_its_sides():
    watch = Watch()
    costs, groups = costs_of(residual(), watch)
    for group in groups.free:
        (saved,) = costs.saved([Cut(group.name, 2)], {})
        assert saved == pytest.approx(costs.of({}) - costs.of({group.name: 2}))
        assert saved > 0


def test_what_has_no_weights_follows_its_numbers():
    costs, groups = costs_of(residual(), lambda shapes: [0.0 if one.layer.is_weighted else 1.0 for one in shapes])
    name = groups.free[0].name
    whole, cut = costs.of({}), costs.of({name: groups[name].channels // 2})
    assert 0 < cut < whole or np.isclose(whole, 0)
