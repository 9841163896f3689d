from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeopt.measurement.resources.memory import make_trace, peak_rss_bytes, read_memory, reset_peak, watch_memory
from edgeopt.measurement.resources.readings import PeriodicSampler
from edgeopt.measurement.statistics.trend import theil_sen

SECOND = 1_000_000_000


def trace(rss: np.ndarray):
    return make_trace([(i * SECOND, (int(one), 5000 - i)) for i, one in enumerate(rss)])


def test_a_leak_has_a_slope_whose_interval_excludes_zero():
    noise = np.random.default_rng(1).normal(0, 300, 200)
    growth = trace(1e6 + 50 * np.arange(200) + noise).growth(frames=398)
    assert growth is not None
    assert growth.is_growing
    assert growth.per_s.low < 50 < growth.per_s.high
    assert growth.per_frame is not None
    assert growth.per_frame.value == pytest.approx(growth.per_s.value / 2)
    assert growth.per_hour_mib.value == pytest.approx(growth.per_s.value * 3600 / 2**20)
    assert growth.grown_mib == pytest.approx(199 * 50 / 2**20, rel=0.1)


def test_constant_memory_does_not_grow():
    growth = trace(np.full(100, 10**6)).growth()
    assert growth is not None
    assert (growth.per_s.low, growth.per_s.value, growth.per_s.high) == (0.0, 0.0, 0.0)
    assert not growth.is_growing
    assert growth.per_frame is None


def test_growth_in_warm_up_can_be_left_out():
    rss = np.concatenate([np.linspace(0, 1e6, 50), np.full(50, 1e6)])
    assert trace(rss).growth().is_growing
    assert not trace(rss).growth(after_ns=50 * SECOND).is_growing
    assert trace(rss).growth(after_ns=95 * SECOND) is None


def test_the_interval_of_the_slope_covers_the_truth():
    rng, covered, x = np.random.default_rng(0), 0, np.arange(40.0)
    for _ in range(400):
        slope = theil_sen(x, 0.5 * x + rng.standard_normal(40))
        covered += slope.low <= 0.5 <= slope.high
    assert covered / 400 >= 0.93


def test_a_slope_of_few_or_simultaneous_points_is_unknown():
    assert theil_sen(np.arange(7.0), np.arange(7.0)) is None
    assert theil_sen(np.zeros(8), np.arange(8.0)) is None


def test_a_trace_knows_now_headroom_and_what_is_missing():
    found = trace(np.array([10, 30, 20]))
    assert (found.now_bytes, found.headroom_bytes, found.peak_bytes) == (20, 4998, None)
    assert any("peak" in reason for reason in found.missing)
    assert any("arena" in reason for reason in found.missing)
    full = make_trace([], peak_bytes=5, was_reset=True)
    assert (full.now_bytes, full.headroom_bytes, len(full.missing)) == (None, None, 1)
    assert full.peak_since == "the start of the run"


def test_watching_sees_what_this_process_holds():
    with watch_memory(interval_s=0.01) as watch:
        held = bytearray(64 * 2**20)
        held[::4096] = b"1" * len(held[::4096])
    found = watch.trace()
    rss, _ = read_memory()
    assert len(found.rss_bytes) >= 2
    assert found.now_bytes == pytest.approx(rss, rel=0.5)
    assert found.peak_bytes is not None
    assert found.peak_bytes >= 64 * 2**20
    assert len(held) == 64 * 2**20


def test_the_peak_is_read_from_the_process_files(tmp_path):
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t1024 kB\n")
    assert peak_rss_bytes(tmp_path) == 2048 * 1024
    (tmp_path / "clear_refs").touch()
    assert reset_peak(tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"
    (tmp_path / "clear_refs").unlink()
    tmp_path.chmod(0o500)
    assert not reset_peak(tmp_path / "absent")


def test_without_process_files_the_peak_comes_from_elsewhere():
    assert peak_rss_bytes(Path("/absent")) > 2**20


def test_a_sampler_reads_at_both_ends_and_keeps_what_it_has_when_a_sensor_fails():
    with PeriodicSampler(lambda: 1, interval_s=60) as quiet:
        pass
    assert [value for _, value in quiet.taken] == [1, 1]
    assert quiet.taken[0][0] <= quiet.taken[1][0]
    values = iter([5.0])

    def read() -> float:
        try:
            return next(values)
        except StopIteration:
            raise OSError("unplugged") from None

    with PeriodicSampler(read, interval_s=60) as broken:
        pass
    assert [value for _, value in broken.taken] == [5.0]
    assert broken.failure == "unplugged"
