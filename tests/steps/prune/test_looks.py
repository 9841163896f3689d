"""Layers are looked at where the answer lies as often as anywhere else."""

import numpy as np
from channel_nets import net, weights

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.groups import keep_channels, trace
from edgeopt.steps.prune.network.layers import layers_of
from edgeopt.steps.prune.network.weights import constants_of
from edgeopt.steps.prune.repair import collect_targets, repair_local, repair_sequential
from edgeopt.steps.prune.statistics import Looks, collect

SIZE, CORNER = 24, 6


def pair():
    return net(
        "a = Conv <pads=[1,1,1,1]> (x, w0) r = Relu(a) y = Conv(r, w1)",
        f"float[1,4,{SIZE},{SIZE}] y",
        inputs=f"float[1,3,{SIZE},{SIZE}] x",
        w0=weights(0, 12, 3, 3, 3),
        w1=weights(1, 4, 12, 1, 1),
    )


def corner():
    place = np.zeros((3, 3))
    place[0, 0] = 2.0
    return place


def pictures(count=16):
    """Return pictures whose corner is made otherwise than the rest."""
    chance = np.random.default_rng(1)
    found = []
    for _ in range(count):
        value = chance.normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)
        value[..., :CORNER, :CORNER] = 3 * value[:, :1, :CORNER, :CORNER] + 2
        found.append({"x": value})
    return found


def positions(place=None, most=40):
    model = pair()
    layer = layers_of(model, constants_of(model))[1]
    return layer.positions((1, 4, SIZE, SIZE), most, 3, place)


def test_half_of_the_positions_lie_where_the_answer_does():
    evenly, both = positions(), positions(corner())
    assert len(evenly) == 40
    assert len(both) == 80
    rows, columns = np.divmod(both, SIZE)
    inside = int(((rows < SIZE // 3) & (columns < SIZE // 3)).sum())
    assert 40 <= inside <= 55
    assert np.array_equal(positions(corner()), both)


def test_where_there_is_no_answer_as_many_positions_are_drawn_evenly():
    found = positions(np.zeros((3, 3)))
    assert len(found) == 80
    rows, columns = np.divmod(found, SIZE)
    assert int(((rows < SIZE // 3) & (columns < SIZE // 3)).sum()) < 25
    assert len(positions(corner(), most=10**6)) == 2 * SIZE**2


def test_repairs_that_look_where_the_answer_lies_lose_less_of_it():
    dense, fed = pair(), pictures()
    groups = trace(dense)
    keep = {groups.free[0].name: np.arange(5)}
    cut = keep_channels(dense, groups, keep)

    def lost(looks):
        seen = collect(dense, fed[:12], groups, looks=looks)
        local = repair_local(dense, cut, groups, keep, seen)
        targets = collect_targets(dense, iter(fed[:12]), looks=looks)
        both = (local, repair_sequential(dense, local, groups, keep, fed[:12], 1e-6, looks=looks, targets=targets))
        return [corner_error(one, dense, fed[12:]) for one in both]

    evenly, there = lost(Looks(64)), lost(Looks(64, [corner()] * 12))
    assert there[0] < 0.9 * evenly[0]
    assert there[1] < 0.9 * evenly[1]


def corner_error(model, dense, fed):
    sessions = [EXECUTOR.open(one.data, SessionOptions()) for one in (model, dense)]
    wrong = [np.subtract(*(session.run(one)["y"] for session in sessions)) for one in fed]
    for session in sessions:
        session.close()
    return float(np.square(np.stack(wrong)[..., :CORNER, :CORNER]).mean())
