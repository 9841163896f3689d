"""Residual blocks go one by one or several in a row, and what the user keeps keeps its blocks."""

import numpy as np
import pytest
from channel_nets import net, run, weights

from edgeopt.graph.groups import removable_blocks, trace
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.network.depth import groups_inside, separate, without_blocks
from edgeopt.steps.prune.statistics import collect


def two_blocks():
    return net(
        """a = Conv(x, w0) b = Conv(a, w1) c = Relu(b) d = Conv(c, w2) e = Add(d, a)
        f = Conv(e, w3) g = Relu(f) h = Conv(g, w4) i = Add(h, e) y = Conv(i, w5)""",
        "float[1,2,8,8] y",
        **{f"w{i}": weights(i, *size, 1, 1) for i, size in enumerate([(8, 3), (6, 8), (8, 6), (6, 8), (8, 6), (2, 8)])},
    )


def test_blocks_in_a_row_go_in_any_order_and_leave_what_is_added_to():
    model = two_blocks()
    blocks = {one.name: one for one in separate(removable_blocks(model))}
    assert sorted(blocks) == ["e", "i"]
    plain = net(
        "a = Conv(x, w0) y = Conv(a, w5)",
        "float[1,2,8,8] y",
        w0=weights(0, 8, 3, 1, 1),
        w5=weights(5, 2, 8, 1, 1),
    )
    for order in (("e", "i"), ("i", "e")):
        left = without_blocks(model, [blocks[name] for name in order])
        assert left.op_counts["Conv"] == 2
        np.testing.assert_allclose(run(left)[0], run(plain)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["e", "i"])
def test_one_block_alone(name):
    model = two_blocks()
    (block,) = [one for one in separate(removable_blocks(model)) if one.name == name]
    left = without_blocks(model, [block])
    assert left.op_counts["Conv"] == 4
    assert left.op_counts["Add"] == 1
    assert run(left)[0].shape == (1, 2, 8, 8)


def test_a_block_takes_along_the_groups_that_are_made_in_it_alone():
    model = two_blocks()
    groups = trace(model)
    inside = groups_inside({one.name: one for one in removable_blocks(model)}, groups)
    assert inside == {"e": ("b",), "i": ("f",)}


def test_of_blocks_inside_each_other_the_smallest_are_candidates():
    blocks = separate(removable_blocks(two_blocks()))
    for i, one in enumerate(blocks):
        for other in blocks[i + 1 :]:
            assert not {*one.nodes} & {*other.nodes}


def test_what_the_user_keeps_keeps_its_block():
    model = two_blocks()
    groups = trace(model)
    rng = np.random.default_rng(0)
    fed = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(3)]
    seen = collect(model, iter(fed), groups)
    assert sorted(Dense(model, groups, seen).blocks) == ["e", "i"]
    assert sorted(Dense(model, groups, seen, frozenset(["b"])).blocks) == ["i"]
    assert Dense(model, groups, None).blocks == {}
