"""Moments of what layers read: exact where all positions are taken, the same in any order of layers, bounded."""

from time import monotonic

import numpy as np
import pytest
from channel_nets import chain, columns, concat, flatten, net, residual, transposed, weights
from fixture_models import numbers
from prune_nets import pictures, worst

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.groups import keep_channels, trace
from edgeopt.steps.prune import statistics as module
from edgeopt.steps.prune.network.layers import layers_of
from edgeopt.steps.prune.network.weights import constants_of
from edgeopt.steps.prune.ranking import rank
from edgeopt.steps.prune.repair import repair_local
from edgeopt.steps.prune.statistics import Looks, collect, watch
from edgeopt.system.processes.time_limit import OutOfTime, limited

_STRIDED = 'a = Conv <auto_pad="SAME_UPPER"> (x, w0) y = Conv <auto_pad="SAME_UPPER", strides=[2,2]> (a, w1)'


def strided():
    return net(_STRIDED, "float[1,4,4,4] y", w0=weights(0, 5, 3, 3, 3), w1=weights(1, 4, 5, 3, 3))


def dilated():
    return net(
        "a = Conv (x, w0) y = Conv <dilations=[2,1], pads=[2,0,1,1], strides=[1,2]> (a, w1, b)",
        "float[1,4,7,4] y",
        w0=weights(0, 5, 3, 1, 1),
        w1=weights(1, 4, 5, 3, 2),
        b=numbers(4),
    )


def pairs():
    """Two pictures in one batch."""
    return net(
        "a = Conv (x, w0) y = Conv <group=2, pads=[1,1,1,1]> (a, w1)",
        "float[2,4,8,8] y",
        inputs="float[2,3,8,8] x",
        w0=weights(0, 6, 3, 1, 1),
        w1=weights(1, 4, 3, 3, 3),
    )


@pytest.mark.parametrize(
    "make", [chain, columns, concat, dilated, flatten, pairs, residual, strided, transposed], ids=lambda m: m.__name__
)
def test_rows_times_weights_are_the_outputs(make):
    one = make()
    stored = constants_of(one)
    layers = layers_of(one, stored)
    names = {name for layer in layers for name in (layer.source, layer.name)}
    for picture, values in watch(one, pictures(one, 2), names):
        for layer in layers:
            out = values[layer.name]
            at = layer.positions(out.shape, 20, picture)
            rows = layer.rows(values[layer.source], out.shape, at)
            made = np.einsum("gnct,goct->ngo", rows, layer.matrix(stored[layer.weight])).reshape(len(at), -1)
            if layer.bias_node == layer.name:
                made = made + layer.bias_of(stored)
            np.testing.assert_allclose(layer.outputs(out, at), made, atol=1e-4)
            again = layer.constant(layer.matrix(stored[layer.weight]), stored[layer.weight])
            np.testing.assert_array_equal(again, stored[layer.weight])


def test_moments_are_those_of_all_rows_where_all_are_taken():
    one = strided()
    seen = collect(one, pictures(one, 3), trace(one), looks=Looks(10**6))
    layer = seen.layers["y"]
    rows = np.concatenate(
        [
            layer.rows(values["a"], (1, 4, 4, 4), np.arange(16))[0].reshape(16, -1)
            for _, values in watch(one, pictures(one, 3), {"a"})
        ]
    )
    moments = seen.of(layer)
    assert moments.rows == 48
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(moments.covariance, np.cov(rows.T, bias=True), atol=1e-5)


def test_layers_that_read_the_same_rows_share_their_moments():
    one = net(
        "a = Conv (x, w0) y = Conv (a, w1) z = Conv (a, w2) v = Conv <strides=[2,2]> (a, w1)",
        "float[1,4,8,8] y, float[1,2,8,8] z, float[1,4,4,4] v",
        w0=weights(0, 5, 3, 1, 1),
        w1=weights(1, 4, 5, 1, 1),
        w2=weights(2, 2, 5, 1, 1),
    )
    seen = collect(one, pictures(one), trace(one))
    assert set(seen.layers) == {"y", "z", "v"}
    assert len(seen.moments) == 2


def size_of(seen):
    return sum(one.gram.nbytes for one in seen.moments.values())


@pytest.mark.parametrize("make", [flatten, strided], ids=lambda make: make.__name__)
def test_where_memory_is_short_the_widest_input_is_taken_by_channel(make):
    one = make()
    groups = trace(one)
    whole = collect(one, pictures(one), groups)
    most = size_of(whole) // 2
    short = collect(one, pictures(one), groups, most_bytes=most)
    assert size_of(short) <= most
    assert not short.skipped
    assert any(one.fold for one in short.moments.values())
    group = groups.free[0]
    keep = {group.name: rank(group, one, short).kept(group.channels - 1)}
    cut = keep_channels(one, groups, keep)
    assert worst(repair_local(one, cut, groups, keep, short), one) < worst(cut, one)


def test_where_nothing_fits_layers_are_left_out_and_named():
    one = strided()
    seen = collect(one, pictures(one), trace(one), most_bytes=100)
    assert not seen.moments
    assert seen.skipped == {"y": "its input is too wide"}


def test_activations_that_do_not_fit_together_are_fetched_in_parts(monkeypatch):
    one = residual()
    whole = collect(one, pictures(one), trace(one))
    monkeypatch.setattr(module, "_FETCHED_BYTES", 2000)
    parts = collect(one, pictures(one), trace(one))
    for key, moments in whole.moments.items():
        np.testing.assert_allclose(parts.moments[key].gram, moments.gram, rtol=1e-6, atol=1e-9)
    assert parts.pictures == whole.pictures == 24


def test_pictures_are_read_one_after_the_other():
    one = residual()
    alive, most = [], [0]

    def stream():
        for inputs in pictures(one, 40):
            alive.append(inputs)
            most[0] = max(most[0], len(alive))
            yield inputs
            alive.clear() if len(alive) >= 8 else None

    assert collect(one, stream(), trace(one)).pictures == 40


def test_no_pictures_and_activations_that_are_no_numbers_end_in_one_sentence():
    one = residual()
    with pytest.raises(EdgeoptError, match="no calibration pictures"):
        collect(one, [], trace(one))
    spoiled = [*pictures(one, 2), {"x": np.full((1, 3, 8, 8), np.nan, np.float32)}]
    with pytest.raises(UnsupportedError, match="calibration picture 3"):
        collect(one, spoiled, trace(one))


def test_looking_at_pictures_ends_with_a_time_limit():
    one = residual()
    with limited(monotonic() - 1), pytest.raises(OutOfTime):
        collect(one, pictures(one), trace(one))
