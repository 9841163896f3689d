"""Every chart of `bench` holds the figures that were measured, drawn where they belong."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from screens import bench_result

from edgeopt.measurement.bench.summary import summarize
from edgeopt.measurement.fresh_process.cold_start import POINTS, ColdPoint, ColdRun, ColdStart, ColdWay
from edgeopt.measurement.fresh_process.page_cache import PageCache
from edgeopt.measurement.load.batch import BatchPoint
from edgeopt.measurement.load.capacity import Capacity, Probe
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.result import summarize_load
from edgeopt.measurement.load.sustained import sustained_curve
from edgeopt.measurement.resources.cost import cost_per_inference
from edgeopt.measurement.resources.energy import Energy
from edgeopt.measurement.resources.memory import MemoryTrace
from edgeopt.measurement.samples import Samples
from edgeopt.report.document import Document
from edgeopt.report.formats import Paper, render
from edgeopt.workloads.frames import bench as frames_bench

MS, SECOND = 1_000_000, 1_000_000_000


def frames(times_ms: np.ndarray, gap_ms: float = 0.0) -> Samples:
    """Return frames of these times, back to back or due every so often."""
    times = (np.asarray(times_ms) * MS).astype(np.int64)
    began = np.cumsum(times) - times if not gap_ms else np.arange(len(times)) * round(gap_ms * MS)
    due = {"intended_ns": began} if gap_ms else {}
    warm = np.zeros(len(times), np.bool_)
    return Samples(("execute",), times[:, None], times, warm, started_ns=began, done_ns=began + times, **due)


def steady(ms: float, count: int) -> np.ndarray:
    """Return times of which half are `ms` and less, with a tail."""
    return ms * (1 + 0.002 * (np.arange(count) % 100 - 49.5))


def probe(rate_per_s: float, ms: float) -> Probe:
    rows, load = frames(steady(ms, 600), 1000 / rate_per_s), FixedRate(rate_per_s)
    return Probe(rate_per_s, summarize_load(rows, load, budget_ms=33.0))


def cold(way: ColdWay, session_ms: int, place: int) -> ColdRun:
    took = dict.fromkeys(POINTS, (10 + place) * MS) | {"session": (session_ms + place) * MS}
    points = tuple(ColdPoint(name, took[name], 50 << 20, 12) for name in POINTS)
    return ColdRun(way, points, 1.0 if way.page_cache is PageCache.WARM else 0.0)


@pytest.fixture(scope="module")
def document() -> Document:
    """A run of which everything was asked for; its figures are fixed."""
    at_ns = np.arange(240) * SECOND // 4
    held = 100 * 2**20 + np.where(np.arange(240) < 239, at_ns // 3000, 0)
    memory = MemoryTrace(at_ns, held, 0 * at_ns + 8_000_000_000, 200 << 20)
    warm, chilled = ColdWay(PageCache.WARM, False), ColdWay(PageCache.COLD, False)
    result = bench_result()
    passes = replace(
        result.passes,
        energy=Energy("RAPL", "package", 90.0, 30.0, 1500, 1.0, 20e6),
        cost=cost_per_inference(0.0009, 45.0),
        sustained=sustained_curve(frames(np.concatenate([steady(10, 7000), steady(14, 7000)]))),
        capacity=Capacity(45.0, (probe(20, 11), probe(40, 15), probe(45, 21), probe(50, 40))),
        batches=tuple(BatchPoint(size, frames(steady(ms, 200))) for size, ms in ((1, 10), (2, 16), (4, 40))),
        cold=ColdStart(tuple(cold(way, ms, i) for way, ms in ((warm, 100), (chilled, 300)) for i in range(7))),
    )
    return summarize(replace(result, passes=passes, observed=replace(result.observed, memory=memory)), frames_bench)


@pytest.fixture(scope="module")
def page(document) -> str:
    return render(document, "html", Paper())


def chart(page: str, title: str) -> str:
    (found,) = [one for one in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if f"<h3>{title}</h3>" in one]
    return found


def marks(drawing: str) -> dict[str, str]:
    """Return what is drawn by name."""
    parts = drawing.split('<g class="mark')[1:]
    return {unescape(re.search('data-name="([^"]*)"', one)[1]): one for one in parts}


def told(mark: str) -> dict[str, str]:
    """Return the facts that a mark tells by label."""
    parts = unescape(re.search('data-tip="([^"]*)"', mark)[1]).split("\n")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def line(mark: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the (x, y) that a line tells, after checking that it is drawn through them, larger ones higher."""
    values = np.array([one.split(",") for one in re.search('data-values="([^"]*)"', mark)[1].split()], float)
    numbers = re.findall(r"-?\d+(?:\.\d+)?", re.search(r'<path[^>]* d="([^"]*)"', mark)[1])
    drawn = np.array(numbers, float).reshape(-1, 2)
    assert drawn.shape == values.shape
    for axis, sign in ((0, 1), (1, -1)):
        slope, start = np.polyfit(values[:, axis], drawn[:, axis], 1)
        assert slope * sign > 0
        assert slope * values[:, axis] + start == pytest.approx(drawn[:, axis], abs=0.02)
    return values[:, 0], values[:, 1]


def test_a_sustained_run_is_drawn_window_by_window(page):
    drawing = chart(page, "Frame times over the run")
    assert "The last fifth takes 1.400 times as long as the first." in drawing
    found = {name: line(mark) for name, mark in marks(drawing).items()}
    assert found.keys() == {"p50", "p99"}
    at_s, p50 = found["p50"]
    assert at_s == pytest.approx(168 * (np.arange(20) + 0.5) / 20, abs=0.1)
    assert p50[:8] == pytest.approx(10, rel=0.01)
    assert p50[9:] == pytest.approx(14, rel=0.01)
    assert found["p99"][1][9:] == pytest.approx(14 * 1.097, rel=0.01)


def test_the_capacity_is_drawn_against_the_budget_up_to_where_the_queue_grows(page):
    drawing = chart(page, "Latency over load")
    assert "45 per s keep the budget." in drawing
    assert 'data-limit="33.0"' in drawing
    rates, p99 = line(marks(drawing)["p99"])
    assert rates.tolist() == [20, 40, 45]
    assert p99 == pytest.approx(np.array([11, 15, 21]) * 1.097, rel=0.01)
    assert "queue grows" in page


def test_batches_are_points_of_throughput_over_latency(page):
    found = marks(chart(page, "Throughput against latency"))
    assert [*found] == ["batch 1", "batch 2", "batch 4"]
    at = [[float(re.search(f'data-{axis}="([^"]*)"', one)[1]) for axis in "xy"] for one in found.values()]
    assert np.array(at) == pytest.approx(np.array([[10, 100], [16, 125], [40, 100]]), rel=0.01)
    assert told(found["batch 2"]) == {"frames": "125 per s", "p50": "15.98 ms", "p50 a frame": "7.99 ms"}
    assert "Batches of 2 serve the most frames, 125 per s." in page


def test_memory_is_drawn_as_it_was_read(page):
    (mark,) = marks(chart(page, "Memory over the run")).values()
    at_s, mib = line(mark)
    assert (at_s[0], at_s[-1], len(at_s)) == (0, 59.75, 240)
    assert told(mark) == {"at the end": "100.0 MiB", "most": "118.9 MiB"}
    assert (mib.min(), round(mib.max(), 1)) == (100.0, 118.9)


def test_a_cold_start_is_a_bar_of_its_parts(page):
    found = marks(chart(page, "From start to first answer"))
    parts = [dict(re.findall('data-part="([^"]*)" data-value="([^"]*)"', one)) for one in found.values()]
    shared = {"interpreter": "13.0", "import": "13.0", "first": "13.0"}
    assert parts == [shared | {"session": "103.0"}, shared | {"session": "303.0"}]
    widths = [[float(one) for one in re.findall(r'width="([\d.]+)%" height="16"', mark)] for mark in found.values()]
    assert [sum(one) for one in widths] == pytest.approx([142 * widths[1][2] / 303, 342 * widths[1][2] / 303], abs=0.05)
    assert [told(one)["to first answer"] for one in found.values()] == ["142 ms", "342 ms"]


def test_energy_and_cost_are_key_figures_and_lines(document, page):
    found = {one.label: one.text for one in document.key_figures}
    assert (found["Energy"], found["Cost"], found["Capacity"]) == ("60 mJ", "0.02", "45 per s")
    assert (found["Cold start"], found["Memory, peak"]) == ("142 ms", "200.00 MiB")
    assert "60 mJ, 40 mJ above idle an inference (package)" in page
    # 0.0009 a second at 45 a second: 2e-5 each; a camera of 1000 / 33 a second takes that 3600 * 30.3 times an hour
    assert "0.02 per 1000 inferences, 2.18 an hour for one camera at 30.3 a second" in page
