"""Channels that are cut out of small nets leave what the dense net gives without them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from channel_nets import (
    GROUPS,
    NETS,
    alike,
    attention_of_one_product,
    net,
    residual,
    shared_shift,
    some,
    split_sizes,
    with_merged,
    with_twins,
    with_zeros,
    without_reading,
)
from fixture_models import numbers
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.graph.groups import first_empty, keep_channels, trace


def count_numbers(one):
    return sum(int(np.prod(tensor.dims)) for tensor in one.proto.graph.initializer)


nets = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


def legal(groups, dense, seed):
    """Return a choice that leaves something of every tensor, and the model of it."""
    for attempt in range(50):
        keep = some(groups, seed + attempt)
        if not first_empty(groups, keep):
            return keep, keep_channels(dense, groups, keep)
    raise AssertionError("no choice is legal")


@nets
def test_the_groups_of_each_structure(make):
    groups = trace(make())
    assert {one.name: one.channels for one in groups.free} == GROUPS[make.__name__]


@nets
def test_what_is_cut_out_is_what_consumers_no_longer_read(make):
    dense = make()
    groups = trace(dense)
    for seed in (0, 1):
        keep, cut = legal(groups, dense, seed)
        alike(without_reading(dense, groups, keep), cut)
        assert count_numbers(cut) < count_numbers(dense)


@nets
def test_channels_of_zeros_are_cut_without_a_trace(make):
    groups = trace(make())
    keep, _ = legal(groups, make(), 2)
    dense = with_zeros(make(), groups, keep)
    alike(dense, keep_channels(dense, groups, keep))


@nets
def test_twins_are_merged_into_one(make):
    groups = trace(make())
    keep, _ = legal(groups, make(), 3)
    dense = with_twins(make(), groups, keep)
    alike(dense, keep_channels(with_merged(dense, groups, keep), groups, keep))


def shapes(one):
    return {tensor.name: tuple(tensor.dims) for tensor in one.proto.graph.initializer}


def values(one, name):
    return numpy_helper.to_array(next(t for t in one.proto.graph.initializer if t.name == name)).tolist()


def test_constants_keep_their_names():
    dense = residual()
    cut = keep_channels(dense, trace(dense), {"a": np.array([0, 2, 5])})
    assert shapes(cut) == {
        "b0": (3,),
        "w0": (3, 3, 1, 1),
        "w1": (5, 3, 1, 1),
        "w2": (3, 5, 1, 1),
        "w3": (2, 3, 1, 1),
    }


def test_the_sizes_of_a_split_follow_its_parts():
    dense = split_sizes()
    assert values(keep_channels(dense, trace(dense), {"a": np.array([1, 4, 5])}), "s") == [1, 2]


def test_a_head_goes_at_once_and_every_shape_follows():
    dense = attention_of_one_product()
    cut = keep_channels(dense, trace(dense), {"p": np.array([0, 2])})
    assert shapes(cut)["w"] == (8, 24)
    assert shapes(cut)["wo"] == (8, 8)
    assert values(cut, "heads") == [0, 0, 2, 4]


def test_a_constant_of_two_layers_is_cut_for_each_of_them():
    dense = shared_shift()
    groups = trace(dense)
    cut = keep_channels(dense, groups, {"a": np.array([0, 1]), "c": np.array([2, 3, 4])})
    assert sorted(size for name, (size, *_) in shapes(cut).items() if name.startswith("b")) == [2, 3]
    same = keep_channels(dense, groups, {"a": np.array([0, 1]), "c": np.array([0, 1])})
    assert [name for name in shapes(same) if name.startswith("b")] == ["b"]


def test_a_constant_of_a_node_is_cut_and_the_node_goes():
    body = "w = Constant <value = float[4,3,1,1] {1,2,3,4,5,6,7,8,9,10,11,12}> () a = Conv(x, w) y = Conv(a, v)"
    dense = net(body, "float[1,2,8,8] y", v=numbers(2, 4, 1, 1))
    cut = keep_channels(dense, trace(dense), {"a": np.array([0, 2])})
    assert [node.op_type for node in cut.proto.graph.node] == ["Conv", "Conv"]
    assert sorted(shapes(cut).values()) == [(2, 2, 1, 1), (2, 3, 1, 1)]


def test_a_model_with_other_weights_is_cut_by_the_same_groups():
    first, second = residual(), residual()
    second.proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers(6, seed=9), "b0"))
    cut = keep_channels(second, trace(first), {"a": np.array([0, 3])})
    np.testing.assert_array_equal(values(cut, "b0"), numbers(6, seed=9)[[0, 3]])


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        ({"y": [0]}, "group 'y' is pinned: an output of the model keeps its shape"),
        ({"a": [6]}, "group 'a' has channels 0 to 5"),
        ({"a": []}, "no channel of 'a' would be left"),
        ({"nothing": [0]}, "no group of channels named 'nothing'"),
    ],
)
def test_what_cannot_be_kept_is_one_error_that_says_why(keep, problem):
    dense = residual()
    with pytest.raises(EdgeoptError) as error:
        keep_channels(dense, trace(dense), {name: np.array(kept, np.int64) for name, kept in keep.items()})
    assert error.value.problem == problem


def test_a_part_of_a_split_is_never_left_empty():
    dense = split_sizes()
    groups = trace(dense)
    assert first_empty(groups, {"a": np.array([4, 5])}) == "b"
    assert first_empty(groups, {"a": np.array([0, 5])}) == ""


def test_a_model_that_was_not_traced_is_refused():
    dense = residual()
    wide = net("a = Conv(x, w0) y = Conv(a, w1)", "float[1,2,8,8] y", w0=numbers(9, 3, 1, 1), w1=numbers(2, 9, 1, 1))
    with pytest.raises(EdgeoptError, match="not what was traced"):
        keep_channels(wide, trace(dense), {"a": np.array([0])})


def every_cut() -> list[str]:
    told = []
    for make in NETS:
        dense = make()
        groups = trace(dense)
        cut = keep_channels(dense, groups, {one.name: np.arange(one.channels - 1) for one in groups.free})
        told.append(f"{[one.name for one in groups]} {groups.pins} {cut.fingerprint}")
    return told


def test_two_processes_make_the_same_bytes():
    code = "import test_groups_cutting; print(*test_groups_cutting.every_cut(), sep=chr(10))"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == every_cut()
