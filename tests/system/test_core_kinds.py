"""Fast and slow cores, of topologies that are made up as Linux shows them."""

from __future__ import annotations

import pytest
from fixture_topologies import intel, topology

from edgeopt.measurement.opening.threads import ThreadUse, uses_to_try
from edgeopt.system.machine import threads
from edgeopt.system.machine.core_kinds import fast_cores, fast_processors, fastest_first, numbers_of


def test_a_core_of_two_clusters_counts_the_fast_ones(tmp_path):
    rk3588 = topology(tmp_path, cpu_capacity=[414] * 4 + [1024] * 4)
    assert fast_cores(range(8), rk3588) == 4
    assert fast_cores(range(4), rk3588) == 4, "held to the slow ones: these are all there is"
    assert fast_cores([0, 1, 6], rk3588) == 1


def test_middle_cores_of_a_phone_are_fast_ones(tmp_path):
    assert fast_cores(range(8), topology(tmp_path, cpu_capacity=[325] * 4 + [780] * 3 + [1024])) == 4


def test_clocks_tell_where_capacities_do_not(tmp_path):
    slow = topology(tmp_path, cpufreq__cpuinfo_max_freq=[1800] * 4 + [2400] * 4)
    assert fast_cores(range(8), slow) == 4


def test_a_favoured_core_of_a_desktop_is_not_the_only_fast_one(tmp_path):
    assert fast_cores(range(4), topology(tmp_path, cpufreq__cpuinfo_max_freq=[5000, 5000, 5200, 5250])) == 4


def test_the_p_cores_of_a_hybrid_processor_count_once_for_two_threads(tmp_path):
    assert fast_cores(range(8), intel(tmp_path)) == 2
    assert fast_cores(range(4, 8), tmp_path) == 4, "held to E cores"


def test_nothing_is_known_of_a_system_that_tells_nothing(tmp_path):
    assert fast_cores(range(8), tmp_path) == 0


def test_fast_cores_come_first_so_that_the_most_important_model_gets_them(tmp_path):
    rk3588 = topology(tmp_path / "a", cpu_capacity=[414] * 4 + [1024] * 4)
    assert fastest_first(range(8), rk3588) == (4, 5, 6, 7, 0, 1, 2, 3)
    assert fastest_first({7, 2, 0}, rk3588) == (7, 0, 2)
    assert fastest_first(range(8), intel(tmp_path / "b")) == tuple(range(8))
    assert fastest_first({3, 1}, tmp_path / "none") == (1, 3)


def test_cores_of_one_kind_all_count(tmp_path):
    assert fast_cores(range(4), topology(tmp_path, siblings=[0, 0, 1, 1])) == 2


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("a-b", set()), ("1-", {1})]
)
def test_lists_of_numbers(text, numbers):
    assert numbers_of(text) == numbers


def test_an_engine_gets_the_fast_cores_and_never_more_than_the_quota(monkeypatch):
    monkeypatch.setattr(threads, "logical_cores", lambda: 8)
    monkeypatch.setattr(threads, "physical_cores", lambda: 8)
    for fast, expected in ((4, 4), (0, 8), (16, 8)):
        monkeypatch.setattr(threads, "fast_cores", lambda usable, fast=fast: fast)
        assert threads.engine_threads(0) == threads.usual_threads() == expected
    monkeypatch.setattr(threads, "fast_cores", lambda usable: 4)
    assert threads.engine_threads(0, workers=2) == 2
    assert threads.engine_threads(7) == 7


def test_processors_are_named_only_where_there_are_slower_ones(tmp_path):
    rk3588 = topology(tmp_path / "a", cpu_capacity=[414] * 4 + [1024] * 4)
    assert fast_processors(range(8), rk3588) == (4, 5, 6, 7)
    assert fast_processors([0, 1, 6], rk3588) == (6,), "a container's share"
    assert fast_processors(range(4), rk3588) == (), "held to the slow ones: these are of one kind"
    assert fast_processors(range(8), intel(tmp_path / "b")) == (0, 1, 2, 3)
    assert fast_processors(range(4), topology(tmp_path / "c", siblings=[0, 0, 1, 1])) == ()
    assert fast_processors(range(8), tmp_path / "none") == ()


def test_optimize_tries_one_thread_the_fast_cores_held_or_not_and_all():
    assert uses_to_try(fast=4, cores=8) == [ThreadUse(1), ThreadUse(4), ThreadUse(8)]
    assert uses_to_try(fast=8, cores=8) == [ThreadUse(1), ThreadUse(8)]
    assert uses_to_try(fast=1, cores=2) == [ThreadUse(1), ThreadUse(2)]
    assert uses_to_try(fast=1, cores=1) == [ThreadUse(1)]
    assert uses_to_try(fast=4, cores=8, may_hold=True) == [
        ThreadUse(1),
        ThreadUse(4),
        ThreadUse(8),
        ThreadUse(4, "fast"),
    ]
