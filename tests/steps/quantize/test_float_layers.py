from __future__ import annotations

import itertools

import numpy as np
import pytest
from small_nets import Net, detector

from edgeopt.steps.quantize.api import open_graph
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime, border_time
from edgeopt.steps.quantize.keep_float.layers import fastest_float, minimum_cut
from edgeopt.steps.quantize.patterns import WEIGHTED, key


def cost_of(capacities: dict[tuple[int, int], int], side: set[int]) -> int:
    return sum(cost for (start, end), cost in capacities.items() if start in side and end not in side)


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_cheapest_of_all_cuts(seed: int) -> None:
    chance = np.random.default_rng(seed)
    pairs = [pair for pair in itertools.permutations(range(7), 2) if chance.random() < 0.5]
    capacities = {pair: int(chance.integers(0, 20)) for pair in pairs}
    rest = range(1, 6)
    every = [{0, *some} for count in range(6) for some in itertools.combinations(rest, count)]
    assert cost_of(capacities, minimum_cut(capacities, 0, 6)) == min(cost_of(capacities, side) for side in every)


def chain() -> Net:
    net = Net()
    x = "x"
    for _ in range(6):
        x = net.op("Relu", net.conv(x, 3, 3))
    net.op("Relu", x)
    return net


def chosen(times: list[tuple[int, int]], border_ns: float) -> tuple[list[int], int]:
    net = chain()
    graph = open_graph(net.model(net.nodes[-1].output[0]))
    layers = graph.nodes(*WEIGHTED)
    known = {key(node): LayerTime(*pair) for node, pair in zip(layers, times, strict=True)}
    found, saved = fastest_float(graph, known, BorderTime(border_ns, 0.0))
    return [i for i, node in enumerate(layers) if node in found], saved


def test_a_layer_in_the_middle_is_float_where_it_saves_more_than_its_two_borders() -> None:
    times = [(90, 10), (90, 10), (10, 60), (90, 10), (90, 10), (90, 10)]
    assert chosen(times, 20) == ([2], 10)  # against all integers, whose border at the entrance stays
    assert chosen(times, 30) == ([], 0)


def test_the_entrance_pays_one_border_wherever_it_lies() -> None:
    times = [(10, 40), (15, 10), (10, 40), (90, 10), (90, 10), (90, 10)]
    assert chosen(times, 100)[0] == [0, 1, 2]


def test_nothing_is_float_where_integers_are_faster() -> None:
    assert chosen([(50, 10)] * 6, 5) == ([], 0)


def test_a_border_is_fitted_to_what_a_profile_shows() -> None:
    graph = open_graph(detector())
    names = {str(v.name): graph.shape(v) for node in graph.nodes("Mul") for v in node.outputs}
    profile = {f"{name}_quantize_kernel_time": 3000 + int(np.prod(shape)) for name, shape in names.items() if shape}
    found = border_time(graph, profile)
    assert (found.call_ns, found.element_ns) == (pytest.approx(3000), pytest.approx(1))
    assert border_time(graph, {}).of((10,)) > 0
