"""The next cut, where tables of time and loss are scripted."""

import math
from itertools import pairwise

import pytest

from edgeopt.steps.prune.costs import Cut
from edgeopt.steps.prune.greedy import choices


class Table:
    """Milliseconds that each cut saves, whatever else is cut; a pair of groups may share a layer."""

    def __init__(self, ms, dense=10.0, sharing=None):
        self.ms, self.dense, self.sharing = ms, dense, sharing or {}

    def saved(self, cuts, keep, removed=()):
        return [self._of(cut, keep) for cut in cuts]

    def _of(self, cut, keep):
        if cut.block:
            return self.ms[cut.block]
        before = self.ms[cut.group].get(keep.get(cut.group), 0.0)
        shared = self.sharing.get(cut.group, ("", 1.0))
        return (self.ms[cut.group][cut.keep] - before) * (shared[1] if shared[0] in keep else 1.0)


def frontier(ms, losses, blocks=None, **more):
    levels = {name: sorted(of, reverse=True) for name, of in ms.items() if isinstance(of, dict)}
    asked = []

    def loss(cut):
        asked.append(cut)
        return losses[cut.block] if cut.block else losses[cut.group][cut.keep]

    return [*choices(Table(ms, **more), levels, loss, blocks)], asked


def test_the_most_time_for_the_least_loss_goes_first():
    ms = {"a": {32: 1.0, 16: 2.0}, "b": {32: 0.5, 16: 0.6}}
    found, _ = frontier(ms, {"a": {32: 0.10, 16: 0.5}, "b": {32: 0.01, 16: 0.3}})
    assert [dict(one.keep) for one in found] == [
        {"b": 32},
        {"a": 32, "b": 32},
        {"a": 16, "b": 32},
        {"a": 16, "b": 16},
    ]
    assert [one.saved_ratio for one in found] == pytest.approx([0.05, 0.15, 0.25, 0.26])
    assert found[1].loss == pytest.approx(0.11)
    assert found[1].speedup == pytest.approx(1 / 0.85)


def test_a_cut_counts_what_it_saves_once_its_neighbours_are_cut():
    ms, losses = {"a": {16: 1.0}, "b": {16: 0.9}, "c": {16: 0.8}}, {one: {16: 0.1} for one in "abc"}
    apart, _ = frontier(ms, losses)
    together, _ = frontier(ms, losses, sharing={"b": ("a", 0.5)})
    assert [*apart[1].keep] == ["a", "b"]
    assert [*together[1].keep] == ["a", "c"]


def test_a_level_that_saves_nothing_is_skipped_and_its_loss_never_asked_for():
    found, asked = frontier({"a": {48: 0.0, 32: 1.0}}, {"a": {32: 0.1}})
    assert [dict(one.keep) for one in found] == [{"a": 32}]
    assert asked == [Cut("a", 32)]


def test_nothing_that_saves_no_time_is_ever_chosen():
    found, asked = frontier({"a": {16: 0.0}, "b": {16: -1.0}, "c": {16: 0.004}}, {})
    assert found == []
    assert asked == []


def test_a_hopeless_cut_is_never_chosen_nor_what_lies_beyond():
    found, _ = frontier({"a": {32: 5.0, 16: 9.0}, "b": {16: 0.1}}, {"a": {32: math.inf, 16: math.inf}, "b": {16: 0.4}})
    assert [dict(one.keep) for one in found] == [{"b": 16}]


def test_losses_are_asked_for_only_where_they_may_matter_and_once():
    ms = {name: {32: 1.0, 16: 2.0} for name in "abcd"}
    losses = {name: {32: 0.01 * (i + 1), 16: 10.0} for i, name in enumerate("abcd")}
    found = choices(Table(ms), {name: [32, 16] for name in ms}, lambda cut: losses[cut.group][cut.keep])
    assert next(found).keep == {"a": 32}
    asked = []
    found = choices(Table(ms), {n: [32, 16] for n in ms}, lambda cut: asked.append(cut) or losses[cut.group][cut.keep])
    next(found)
    assert sorted(one.group for one in asked) == [*"abcd"]
    next(found)
    assert len(asked) == len(set(asked)) == 5


def test_a_block_competes_and_takes_its_groups_with_it():
    ms = {"inner": {16: 1.0}, "outer": {16: 0.2}, "block": 3.0}
    losses = {"inner": {16: 0.001}, "outer": {16: 0.2}, "block": 0.1}
    found, _ = frontier(ms, losses, {"block": ("inner",)})
    assert found[0].keep == {"inner": 16}
    assert found[1].removed == ("block",)
    assert found[1].keep == {}
    assert found[1].loss == pytest.approx(0.1)
    assert [one.removed for one in found[1:]] == [("block",), ("block",)]


def test_speed_and_loss_only_grow_and_ties_go_by_name():
    ms = {name: {16: 1.0} for name in ("b", "a", "c")}
    found, _ = frontier(ms, {name: {16: 0.1} for name in ms})
    assert [*found[0].keep] == ["a"]
    for one, other in pairwise(found):
        assert other.saved_ratio > one.saved_ratio
        assert other.loss >= one.loss
