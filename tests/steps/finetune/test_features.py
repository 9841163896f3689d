from __future__ import annotations

import numpy as np
from taught_nets import dense, pruned

from edgeopt.steps.finetune.features import match, rising_choice, shared_tensors


def channels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, count, 8, 8)).astype(np.float32)


def test_kept_channels_are_found_by_what_they_compute():
    theirs = channels(20, 0)
    kept = np.array([1, 4, 5, 11, 18])
    mine = 0.7 * theirs[:, kept] + 0.3 * channels(5, 1)
    found = match(mine, theirs, "x")
    assert found is not None
    assert found.axis == 1
    assert found.mine.tolist() == [0, 1, 2, 3, 4]
    assert found.theirs.tolist() == kept.tolist()


def test_a_channel_without_a_counterpart_is_not_compared():
    theirs = channels(20, 0)
    mine = theirs[:, [2, 9, 15]].copy()
    mine[:, 1] = 0
    found = match(mine, theirs, "x")
    assert found is not None
    assert found.mine.tolist() == [0, 2]
    assert found.theirs.tolist() == [2, 15]


def test_tensors_of_other_sizes_are_not_compared():
    theirs = channels(20, 0)
    assert match(theirs[..., :4], theirs[..., :4].repeat(2, axis=2), "x") is None
    assert match(channels(21, 1), theirs, "x") is None
    assert match(theirs[:, 0], theirs, "x") is None


def test_the_rising_choice_is_the_best_of_all():
    scores = np.random.default_rng(3).normal(size=(3, 7))
    found = rising_choice(scores)
    every = [(a, b, c) for a in range(7) for b in range(a + 1, 7) for c in range(b + 1, 7)]
    best = max(every, key=lambda one: scores[[0, 1, 2], one].sum())
    assert tuple(found) == best


def test_what_layers_read_and_the_last_of_them_makes_is_compared():
    teacher = dense()
    names = shared_tensors(pruned(teacher), teacher)
    ops = {node.output[0]: node.op_type for node in teacher.proto.graph.node}
    assert [ops[name] for name in names] == ["Relu", "Relu", "Flatten", "Gemm"]
