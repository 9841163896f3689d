"""What is cut out of a net is made up for by what stays, in closed form."""

import numpy as np
import pytest
from channel_nets import NETS, run, some, with_twins

from edgeopt.graph.groups import first_empty, keep_channels, trace
from edgeopt.steps.prune.repair import repair_local, repair_sequential
from edgeopt.steps.prune.statistics import collect

nets = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


def pictures(one, count=24, seed=7):
    rng = np.random.default_rng(seed)
    return [{spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in one.inputs} for _ in range(count)]


def legal(groups, seed):
    """Return a choice of channels to keep that leaves something of every tensor."""
    return next(one for one in (some(groups, seed + i) for i in range(50)) if not first_empty(groups, one))


def twins(make, seed=3):
    """Return a net with twins, its groups, what to keep of it, and the net with that cut out."""
    groups = trace(make())
    keep = legal(groups, seed)
    dense = with_twins(make(), groups, keep)
    return dense, groups, keep, keep_channels(dense, groups, keep)


def close(one, other, most):
    for want, got in zip(run(one), run(other), strict=True):
        np.testing.assert_allclose(got, want, atol=most, rtol=most)


@nets
def test_a_layer_takes_from_one_twin_what_the_other_gave(make):
    dense, groups, keep, cut = twins(make)
    close(dense, repair_local(dense, cut, groups, keep, collect(dense, pictures(dense), groups)), 1e-4)


@nets
def test_what_was_repaired_locally_is_not_made_worse_layer_by_layer(make):
    dense, groups, keep, cut = twins(make)
    local = repair_local(dense, cut, groups, keep, collect(dense, pictures(dense), groups))
    close(dense, repair_sequential(dense, local, groups, keep, pictures(dense)), 1e-4)
