"""Sizes of layers under a choice of channels are those of the model that is really cut."""

import numpy as np
import pytest
from channel_nets import NETS, residual, some

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.graph import Graph
from edgeopt.graph.groups import first_empty, keep_channels, trace
from edgeopt.steps.prune.network.layer_shapes import Layers, model_of

nets = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


def legal(groups, seed):
    return next(one for one in (some(groups, seed + i) for i in range(50)) if not first_empty(groups, one))


@nets
def test_sizes_are_those_of_the_cut_model(make):
    model = make()
    groups = trace(model)
    keep = legal(groups, 3)
    graph = Graph.from_model(keep_channels(model, groups, keep))
    graph.infer_shapes()
    real = {v.name: graph.shape(v) for n in graph.nodes() for v in n.outputs} | {
        v.name: graph.constant(v).shape for v in graph.initializers
    }
    layers = Layers(model, groups, lambda name, _: keep[name])
    assert layers.all
    counts = {name: len(one) for name, one in keep.items()}
    for place in range(len(layers.all)):
        shape = layers.shape(place, counts)
        for name, sizes in shape.sizes.items():
            if real.get(name) is not None and name not in shape.layer.constants[1:]:
                assert sizes == real[name], (name, shape.key)


@nets
def test_layers_run_alone_whole_and_cut(make):
    model = make()
    groups = trace(model)
    chosen = legal(groups, 5)
    layers = Layers(model, groups, lambda name, _: chosen[name])
    counts = {name: len(one) for name, one in chosen.items()}
    for keep in ({}, counts):
        shapes = [layers.shape(place, keep) for place in range(len(layers.all))]
        weighted = [one for one in shapes if one.layer.is_weighted or not keep]
        made = model_of([one.branch(f"L{i}/") for i, one in enumerate(weighted)], layers.opset)
        session = EXECUTOR.open(made.data, SessionOptions())
        feed = {one.name: np.ones(one.shape, np.float32) for one in made.inputs}
        assert len(session.run(feed)) == len(made.outputs)
        session.close()


def test_equal_layers_have_one_key_and_others_another():
    model = residual()
    layers = Layers(model, trace(model))
    keys = [layers.shape(place, {}).key for place in range(len(layers.all))]
    group = trace(model).free[0]
    cut = [layers.shape(place, {group.name: 1}).key for place in layers.of_group(group.name)]
    assert len(set(keys)) > 1
    assert not set(cut) & set(keys)
