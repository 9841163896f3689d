"""The channels that stay make up for those that are cut out of a net, in closed form."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from channel_nets import NETS, concat, net, shared_weights, some, weights
from fixture_models import numbers
from prune_nets import pictures, twins, worst

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.groups import keep_channels, trace
from edgeopt.steps.prune.repair import collect_targets, repair, repair_local, repair_sequential, sequential
from edgeopt.steps.prune.statistics import collect

nets = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


@nets
def test_twins_are_missed_by_nobody(make):
    dense, groups, keep, cut = twins(make)
    local = repair_local(dense, cut, groups, keep, collect(dense, pictures(dense), groups))
    assert worst(local, dense) < 1e-4
    assert worst(repair_sequential(dense, local, groups, keep, pictures(dense)), dense) < 1e-4


def deep():
    return net(
        """a = Conv <pads=[1,1,1,1]> (x, w0, b0) r = Relu(a) d = Conv <group=12, pads=[1,1,1,1]> (r, wd)
        g = Sigmoid(d) s = Mul(d, g) e = Conv(s, w1, b1) t = Relu(e) y = Conv(t, w2)""",
        "float[1,4,8,8] y",
        w0=weights(0, 12, 3, 3, 3),
        b0=numbers(12),
        wd=weights(1, 12, 1, 3, 3),
        w1=weights(2, 10, 12, 1, 1),
        b1=numbers(10),
        w2=weights(3, 4, 10, 1, 1),
    )


def loss_on(dense, held_out):
    def answers(one):
        session = EXECUTOR.open(one.data, SessionOptions())
        found = [session.run(inputs)["y"] for inputs in held_out]
        session.close()
        return np.stack(found)

    wanted = answers(dense)
    return lambda one: float(np.square(answers(one) - wanted).mean())


def test_on_other_pictures_each_repair_is_better_than_none_and_the_best_is_kept():
    dense = deep()
    groups = trace(dense)
    keep = {one.name: np.arange(one.channels * 2 // 3) for one in groups.free}
    cut = keep_channels(dense, groups, keep)
    found = repair(
        dense,
        cut,
        groups,
        keep,
        collect(dense, pictures(dense), groups),
        pictures(dense),
        loss_on(dense, pictures(dense, 8, seed=1)),
    )
    assert found.losses["local"] < 0.7 * found.losses["none"]
    assert found.losses["sequential"] < 0.95 * found.losses["local"]
    assert found.how == "sequential"


@pytest.mark.parametrize("seed", range(3))
def test_no_repair_is_kept_that_makes_the_loss_on_held_out_pictures_worse(seed):
    """Fitted to one picture whose pixels are all alike, repairs say nothing of others."""
    dense = deep()
    groups = trace(dense)
    keep = some(groups, seed)
    cut = keep_channels(dense, groups, keep)
    one = [{"x": np.full((1, 3, 8, 8), 5.0, np.float32)}]
    loss = loss_on(dense, pictures(dense, 8, seed=seed))
    found = repair(dense, cut, groups, keep, collect(dense, one, groups), one, loss)
    assert loss(found.model) <= loss(cut)
    assert loss(found.model) == min(found.losses.values())


def test_a_loss_that_is_no_number_is_the_worst():
    dense, groups, keep, cut = twins(concat)
    statistics = collect(dense, pictures(dense), groups)
    losses = iter([1.0, math.nan, 2.0])
    assert repair(dense, cut, groups, keep, statistics, pictures(dense), lambda _: next(losses)).how == "none"


def test_a_shared_weight_is_solved_once_for_all_that_read_it():
    dense = shared_weights()
    groups = trace(dense)
    keep = some(groups, 1)
    cut = keep_channels(dense, groups, keep)
    repaired = repair_local(dense, cut, groups, keep, collect(dense, pictures(dense), groups))
    names = [node.input[1] for node in repaired.proto.graph.node if node.op_type == "Conv"]
    assert [one for one in names if names.count(one) > 1] == ["ws", "ws", "w", "w"]
    assert worst(repaired, dense) < worst(cut, dense)


def test_names_stay_and_only_a_bias_that_was_missing_is_new():
    dense = deep()
    groups = trace(dense)
    cut = keep_channels(dense, groups, some(groups))
    repaired = repair_local(dense, cut, groups, some(groups), collect(dense, pictures(dense), groups))
    before, after = ({one.name for one in two.proto.graph.initializer} for two in (cut, repaired))
    assert after - before == {"y_bias"}
    assert not before - after


def test_fewer_pictures_are_taken_where_all_would_not_fit(monkeypatch):
    dense, groups, keep, cut = twins(concat)
    monkeypatch.setattr(sequential, "MOST_BYTES", 40_000)
    few = repair_sequential(dense, cut, groups, keep, pictures(dense))
    assert few.data == repair_sequential(dense, cut, groups, keep, pictures(dense)[:13]).data


def test_targets_that_are_at_hand_give_the_same_bytes_and_where_memory_is_short_they_are_fewer(monkeypatch):
    dense, groups, keep, cut = twins(concat)
    alone = repair_sequential(dense, cut, groups, keep, pictures(dense))
    targets = collect_targets(dense, iter(pictures(dense)))
    assert repair_sequential(dense, cut, groups, keep, pictures(dense), targets=targets).data == alone.data
    monkeypatch.setattr(sequential, "MOST_TARGET_BYTES", 20_000)
    fewer = collect_targets(dense, iter(pictures(dense)))
    assert sum(one.nbytes for one in fewer.values()) <= 20_000 < sum(one.nbytes for one in targets.values())
    made = repair_sequential(dense, cut, groups, keep, pictures(dense), targets=fewer)
    assert made.data == repair_sequential(dense, cut, groups, keep, pictures(dense)).data


_MAKE = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from test_repair import deep, loss_on
from prune_nets import pictures
from edgeopt.graph.groups import keep_channels, trace
from edgeopt.steps.prune.ranking import rank
from edgeopt.steps.prune.repair import repair_local, repair_sequential
from edgeopt.steps.prune.statistics import collect
dense = deep()
groups = trace(dense)
statistics = collect(dense, pictures(dense), groups)
keep = {one.name: rank(one, dense, statistics).kept(one.channels // 2) for one in groups.free}
local = repair_local(dense, keep_channels(dense, groups, keep), groups, keep, statistics)
print(hashlib.sha256(local.data + repair_sequential(dense, local, groups, keep, pictures(dense)).data).hexdigest())
"""


def test_two_processes_make_the_same_bytes():
    here = Path(__file__).parent
    found = set()
    for seed, threads in (("1", "1"), ("2", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": threads}
        command = [sys.executable, "-c", _MAKE, str(here), str(here.parents[1] / "fixtures")]
        made = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found.add(made.stdout)
    assert len(found) == 1


def last_state():
    return net(
        """a = Conv(x, w0, b0) r = Relu(a) c = Conv(r, w1) f = Reshape(c, rows) t = Transpose <perm=[1,0,2]> (f)
        , h = GRU <hidden_size=5> (t, gw, gr, gb, , g0) s = Squeeze(h, first) y = Gemm(s, w2)""",
        "float[1,2] y",
        b0=numbers(12),
        w0=weights(0, 12, 3, 1, 1),
        w1=weights(1, 6, 12, 1, 1),
        gw=weights(2, 1, 15, 64),
        gr=weights(3, 1, 15, 5),
        gb=np.zeros((1, 30), np.float32),
        g0=np.zeros((1, 1, 5), np.float32),
        rows=np.int64([1, 6, 64]),
        first=np.int64([0]),
        w2=weights(4, 5, 2),
    )


def test_a_node_whose_first_output_nobody_asked_for_is_stepped_over():
    """Where the last state alone of a GRU is read, its first output has the name of inputs left out: none."""
    dense, groups, keep, cut = twins(last_state)
    local = repair_local(dense, cut, groups, keep, collect(dense, pictures(dense), groups))
    assert worst(repair_sequential(dense, local, groups, keep, pictures(dense)), dense) < 1e-4
