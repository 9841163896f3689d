from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages, draw_times, thin
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import StageTime, summarize
from edgeopt.report.figures import AxisScale, Emphasis, Limit

MS = 1_000_000
BUDGET = Limit("budget 5 ms", 5.0)


def samples(times_ms, warmup=0):
    times = (np.asarray(times_ms) * MS).astype(np.int64)
    return Samples(("execute",), times[:, None], times, np.arange(len(times)) < warmup)


def steady(n, seed=0):
    return np.random.default_rng(seed).uniform(1.0, 2.0, n)


def test_percentiles_are_those_of_the_summary_and_only_what_the_frames_can_tell():
    run = samples(steady(400))
    chart = draw_percentiles([TimedRun("a", run)], BUDGET)
    told = dict(zip(chart.lines[0].xs, chart.lines[0].ys, strict=True))
    summary = summarize(run.frame_ns)
    assert (told[50.0], told[90.0], told[99.0]) == (summary.p50.value_ms, summary.p90.value_ms, summary.p99.value_ms)
    assert max(told) == 99.0, "400 frames say nothing about p99.9"
    assert [*told.values()] == sorted(told.values())
    assert (chart.x.scale, chart.limit) == (AxisScale.TAIL, BUDGET)
    assert [label for label, _ in chart.lines[0].facts] == ["p50", "p90", "p99"]


def test_warm_up_is_in_the_order_of_times_and_not_in_percentiles():
    run = samples([50.0, *steady(399)], warmup=1)
    assert max(draw_percentiles([TimedRun("a", run)], None).lines[0].ys) < 3
    times = draw_times([TimedRun("a", run)], None)
    assert times.lines[0].ys[0] == 50.0
    assert times.y.scale is AxisScale.LOG, "one spike would press all else flat"
    assert draw_times([TimedRun("a", samples(steady(400)))], None).y.scale is AxisScale.LINEAR


def test_charts_of_answers_speak_of_answers():
    runs = [TimedRun("a", replace(samples(steady(1200), warmup=3), whole="answer"))]
    percentiles, times = draw_percentiles(runs, None), draw_times(runs, None)
    assert (percentiles.title, percentiles.y.label) == ("How slow the slow answers are", "answer time")
    assert (times.x.label, times.y.label) == ("answer", "answer time")
    assert dict(times.lines[0].facts)["warm-up"] == "3 answers"
    assert "frame" not in f"{percentiles}{times}"


def test_nothing_to_draw_is_no_chart():
    empty = samples([])
    assert draw_percentiles([TimedRun("a", empty)], None) is None
    assert draw_times([TimedRun("a", empty)], None) is None
    assert draw_stages([StagedRun("a", StageTime(None, None, None), {})], None) is None


@pytest.mark.parametrize("n", [1, 499, 501, 100_003])
def test_a_long_run_keeps_its_fastest_and_its_slowest_frame(n):
    values = np.random.default_rng(n).integers(1, 1 << 40, n)
    kept = thin(values, 500)
    assert len(kept) <= 500
    assert (np.diff(kept) > 0).all()
    assert values[kept].max() == values.max()
    assert values[kept].min() == values.min()


def test_stages_add_up_to_the_frame():
    def time(mean, p99=None):
        return StageTime(mean, mean, p99)

    runs = [
        StagedRun(
            "a", time(2.0, 3.0), {"load": time(0.5), "execute": time(1.2), "upload": time(0.001)}, Emphasis.FIRST
        ),
        StagedRun("b", time(1.0), {"load": time(0.5), "execute": time(0.5)}),
        StagedRun("not measured", StageTime(None, None, None), {}),
    ]
    chart = draw_stages(runs, BUDGET)
    assert chart.parts == ("load", "execute", "between stages")
    assert [bar.name for bar in chart.bars] == ["a", "b"]
    assert [sum(bar.parts) for bar in chart.bars] == pytest.approx([2.0, 1.0])
    assert [bar.tail for bar in chart.bars] == [3.0, None]
    assert chart.text.startswith("Mean of each stage; execute takes 57%")
    assert all(len(bar.parts) == len(chart.parts) for bar in chart.bars)
