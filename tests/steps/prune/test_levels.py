"""No number of channels off the step, in any tensor of any net."""

import numpy as np
import pytest
from channel_nets import NETS, split_count

from edgeopt.graph.groups import keep_channels, trace
from edgeopt.graph.groups.types import ChannelUse, Group
from edgeopt.steps.prune.network.levels import removal, step_in_channels

nets = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


def group_of(count, *tensors, width=1):
    def use(name, channels):
        return ChannelUse("", name, 1, np.asarray(channels, np.int32))

    whole = np.repeat(np.arange(count), width)
    return Group("g", count, (use("w", whole),), (), tuple(use(f"t{i}", one) for i, one in enumerate(tensors)), "")


@pytest.mark.parametrize("count", [16, 17, 24, 64, 100, 512])
@pytest.mark.parametrize("step", [4, 8, 16, 32])
def test_levels_are_multiples_of_the_step_and_one_step_at_least(count, step):
    ranked = np.random.default_rng(count).permutation(count)
    found = removal(group_of(count), ranked, step)
    assert all(0 < one < count and one % step == 0 for one in found.levels)
    assert len(found.levels) <= 9
    assert found.levels == () or min(found.levels) == step
    assert bool(found.levels) == (count > step)
    assert sorted(found.order.tolist()) == [*range(count)]


def test_the_least_important_go_first():
    found = removal(group_of(64), np.arange(64)[::-1].copy(), 16)
    assert found.kept(48).tolist() == [*range(48)]


def test_a_head_of_many_channels_is_a_step_by_itself():
    assert step_in_channels(group_of(8, width=64), 16) == 1
    assert step_in_channels(group_of(8, width=24), 16) == 2
    assert removal(group_of(8, width=64), np.arange(8), 16).levels == (7, 6, 5, 4, 3, 2, 1)


def test_behind_a_split_each_half_loses_whole_steps_and_keeps_one():
    halves = (np.arange(64), np.arange(32), np.arange(32, 64))
    ranked = np.random.default_rng(0).permutation(64)
    found = removal(group_of(64, *halves), ranked, 16)
    assert found.levels == (48, 32)
    for count in found.levels:
        kept = found.kept(count)
        assert sum(kept < 32) % 16 == 0
        assert sum(kept < 32) >= 16
        assert sum(kept >= 32) >= 16


@nets
def test_every_level_of_every_net_can_be_cut_and_no_tensor_is_off_the_step(make):
    model = make()
    groups = trace(model)
    for group in groups.free:
        found = removal(group, np.arange(group.channels), 2)
        for count in found.levels:
            kept = found.kept(count)
            keep_channels(model, groups, {group.name: kept})
            for use in group.tensors:
                dense, left = np.isin(use.channels, range(group.channels)), np.isin(use.channels, kept)
                width = max(int(dense.sum()) // group.channels, 1)
                assert left.sum() % 2 == 0 or width % 2 or left.sum() == dense.sum(), (group.name, use.tensor, count)


def test_three_parts_of_a_split_that_are_multiplied_keep_pace():
    groups = trace(split_count())
    for group in groups.free:
        for count in removal(group, np.arange(group.channels), 1).levels:
            keep_channels(split_count(), groups, {group.name: removal(group, np.arange(group.channels), 1).kept(count)})
