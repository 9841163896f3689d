"""The order in which channels go: twins and silent channels first, and the same in every process."""

from time import monotonic

import numpy as np
import pytest
from channel_nets import concat, depthwise, flatten, net, residual, weights
from fixture_models import numbers
from prune_nets import pictures, twins

from edgeopt.errors import EdgeoptError, NotFoundError
from edgeopt.graph.groups import trace
from edgeopt.steps.prune.ranking import rank
from edgeopt.steps.prune.statistics import Looks, collect
from edgeopt.system.processes.time_limit import OutOfTime, limited

WAYS = ("activation", "l1", "obs")
ways = pytest.mark.parametrize("how", WAYS)


def wide(**changed):
    """Return a chain of 3x3 convolutions over 8 channels."""
    given = {"w0": weights(0, 8, 3, 3, 3), "b0": numbers(8), "w1": weights(1, 4, 8, 3, 3)} | changed
    return net(
        "a = Conv <pads=[1,1,1,1]> (x, w0, b0) r = Relu(a) y = Conv <pads=[1,1,1,1]> (r, w1)",
        "float[1,4,8,8] y",
        **given,
    )


def ranked(one, how="obs"):
    groups = trace(one)
    (group,) = groups.free
    return rank(group, one, collect(one, pictures(one), groups), how)


def doubled(first, second):
    one = weights(0, 8, 3, 3, 3), numbers(8)
    for array in one:
        array[second] = array[first]
    return wide(w0=one[0], b0=one[1])


def test_one_of_two_twins_goes_first_and_costs_nothing():
    found = ranked(doubled(2, 6))
    assert found.order[0] == 2, "of channels that cost the same, the smallest number"
    assert found.error[1] < 1e-5
    assert found.error[2] > 1e-2


def test_a_twin_is_as_dear_as_its_weights_where_only_energy_counts():
    assert ranked(doubled(2, 6), "activation").error[1] > 1e-2


@ways
def test_channels_that_are_always_zero_go_first(how):
    weight, bias = weights(0, 8, 3, 3, 3), numbers(8)
    for channel in (1, 5):
        weight[channel], bias[channel] = 0, 0
    found = ranked(wide(w0=weight, b0=bias), how)
    assert found.order[:2].tolist() == [1, 5]
    assert found.error[:3] == pytest.approx(0, abs=1e-5)
    assert found.error[3] > 1e-3


@ways
@pytest.mark.parametrize("make", [residual, concat, depthwise, flatten], ids=lambda make: make.__name__)
def test_every_channel_has_its_place_and_errors_never_fall(how, make):
    dense = make()
    groups = trace(dense)
    statistics = collect(dense, pictures(dense), groups)
    for group in groups.free:
        found = rank(group, dense, statistics, how)
        assert sorted(found.order) == list(range(group.channels))
        assert found.error[0] == 0
        assert (np.diff(found.error) >= 0).all()
        assert found.kept(2).tolist() == sorted(found.order[-2:])


def test_the_error_is_what_least_squares_leaves():
    """The four channels that stay get the best weights for what all eight gave, as NumPy solves it on the same rows."""
    dense = wide()
    groups = trace(dense)
    statistics = collect(dense, pictures(dense), groups, looks=Looks(10**6))
    found = rank(groups.free[0], dense, statistics)
    layer = statistics.layers["y"]
    moments, weight = statistics.of(layer), statistics.weights(layer).reshape(4, -1)
    covariance = moments.covariance
    root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(covariance))).T
    columns = moments.columns(found.kept(4))
    left = np.linalg.lstsq(root[:, columns], root @ weight.T, rcond=None)[1].sum()
    assert found.error[4] == pytest.approx(left / np.trace(weight @ covariance @ weight.T), rel=0.02)


def test_an_order_by_what_is_left_costs_less_than_one_by_weights():
    dense = wide()
    groups = trace(dense)
    statistics = collect(dense, pictures(dense), groups)
    obs, other = (rank(groups.free[0], dense, statistics, how) for how in ("obs", "l1"))
    assert obs.error[3] > 0
    assert obs.order[:3].tolist() != other.order[:3].tolist()


def test_without_pictures_weights_alone_rank():
    dense = residual()
    groups = trace(dense)
    assert sorted(rank(groups.free[0], dense, None, "l1").order) == list(range(groups.free[0].channels))
    for how in ("obs", "activation"):
        with pytest.raises(EdgeoptError, match="needs calibration pictures") as caught:
            rank(groups.free[0], dense, None, how)
        assert "--calib" in caught.value.remedy


def test_a_way_that_does_not_exist_is_named():
    dense, groups, _, _ = twins(residual)
    with pytest.raises(NotFoundError, match="l2"):
        rank(groups.free[0], dense, collect(dense, pictures(dense), groups), "l2")


def test_ranking_ends_with_a_time_limit():
    dense = residual()
    groups = trace(dense)
    statistics = collect(dense, pictures(dense), groups)
    with limited(monotonic() - 1), pytest.raises(OutOfTime):
        rank(groups.free[0], dense, statistics, "obs")
