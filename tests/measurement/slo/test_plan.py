"""A plan keeps its objective with the fewest replicas, and says where the knee is and what a late scaler costs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.measurement.slo import plan
from edgeopt.measurement.slo.day import plan_day, read_rates
from edgeopt.measurement.slo.plan import Objective, Trials, plan_replicas
from edgeopt.measurement.slo.routing import Routing


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Six trials of 3,000 requests each: the tests look at how a plan is made, not at its last replica."""
    monkeypatch.setattr(plan, "_TRIALS", TRIALS)
    monkeypatch.setattr(plan, "_REQUESTS", 3000)


TRIALS = 6
STEADY = np.full(500, 0.010)
"""A service takes 10 ms, always."""


def test_fewer_replicas_miss_it_and_more_are_not_ordered():
    planned = plan_replicas(STEADY, Objective(0.030), 450.0)
    for needed in planned.needed:
        trials = Trials(STEADY, planned.objective)
        kept = [trials._keeps(trial, 450.0, needed.high, needed.routing) for trial in range(TRIALS)]
        fewer = [trials._keeps(trial, 450.0, needed.high - 1, needed.routing) for trial in range(TRIALS)]
        assert all(kept)
        assert not all(fewer)
        assert needed.low <= needed.median <= needed.high
    assert planned.needed[0].routing is Routing.SHARED_QUEUE
    assert planned.deployed.routing is Routing.LEAST_OUTSTANDING
    assert 5 <= planned.deployed.high <= 8


def test_the_knee_lies_between_the_rate_and_what_the_replicas_can_do():
    planned = plan_replicas(STEADY, Objective(0.030), 450.0)
    assert 450 <= planned.knee_per_s <= planned.knee_high_per_s < planned.deployed.high / 0.010
    by_rate = {point.rate_per_s: point for point in planned.points}
    assert by_rate[450.0].is_kept
    assert [point.is_kept for point in planned.points] == sorted((p.is_kept for p in planned.points), reverse=True)
    assert all(point.is_kept == (point.rate_per_s <= planned.knee_per_s) for point in planned.points)


def test_services_that_vary_need_more():
    varied = np.random.default_rng(0).choice([0.005, 0.025], 500, p=[0.75, 0.25])
    steady = plan_replicas(STEADY, Objective(0.040), 450.0).deployed
    assert plan_replicas(varied, Objective(0.040), 450.0).deployed.high > steady.high


@pytest.mark.parametrize(
    ("services", "limit_s", "rate", "says"),
    [
        (STEADY, 0.005, 10.0, "no number of replicas"),
        (STEADY[:50], 0.05, 10.0, "50 frames were measured"),
        (STEADY, 0.05, 0.0, "a rate of 0"),
        (STEADY, 0.05, float("nan"), "a rate of nan"),
        (STEADY, 0.05, 1e9, "more than 2000 replicas"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_line(services, limit_s, rate, says):
    with pytest.raises(EdgeoptError, match=says):
        plan_replicas(services, Objective(limit_s), rate)


def test_a_constant_day_needs_no_headroom():
    day = plan_day(Trials(STEADY, Objective(0.030)), [300.0] * 12, 300, 40, Routing.LEAST_OUTSTANDING)
    assert day.best is day.followed[0]
    assert day.best.late_share == 0
    assert day.best.replica_hours == pytest.approx(day.static_hours) == day.static_replicas


def test_replicas_that_come_late_miss_a_step_and_headroom_or_speed_mends_it():
    trials, rates = Trials(STEADY, Objective(0.030)), [100.0] * 6 + [500.0] * 6
    slow = plan_day(trials, rates, 300, 240, Routing.LEAST_OUTSTANDING)
    quick = plan_day(trials, rates, 300, 1, Routing.LEAST_OUTSTANDING)
    assert slow.followed[0].late_share > 0.05 > quick.followed[0].late_share
    assert not slow.followed[0].is_kept
    assert quick.best is not None
    assert slow.followed[0].replica_hours < slow.static_hours
    shares = [each.late_share for each in slow.followed]
    assert shares == sorted(shares, reverse=True)


def test_a_night_without_requests_keeps_one_replica():
    day = plan_day(Trials(STEADY, Objective(0.030)), [0.0, 0.0, 100.0], 3600, 0, Routing.LEAST_OUTSTANDING)
    assert day.followed[0].replica_hours == 1 + 1 + day.static_replicas


def test_rates_are_read_and_wrong_ones_named(tmp_path):
    path = tmp_path / "day.txt"
    path.write_text("1\n\n2.5\n0\n")
    assert read_rates(path) == [1.0, 2.5, 0.0]
    for text, says in (("1\nx\n", "line 2"), ("-1", "line 1"), ("inf", "line 1"), ("", "0 rates"), ("0\n0", "2 rates")):
        path.write_text(text)
        with pytest.raises(InvalidFileError, match=says):
            read_rates(path)


def test_the_command_plans_from_a_result_of_bench(tmp_path, brief):
    runner = CliRunner()
    bench = ["bench", "digits_detector", "--seconds", "0.5", "--threads", "1", "-o", str(tmp_path / "b")]
    assert runner.invoke(cli, bench).exit_code in (0, 4)
    (tmp_path / "day.txt").write_text("5\n20\n")
    slo = ["slo", str(tmp_path / "b"), "--within", "5s", "--rates", str(tmp_path / "day.txt")]
    shown = runner.invoke(cli, [*slo, "--json"])
    assert shown.exit_code == 0, shown.output
    values = json.loads(shown.stdout)
    planned = values.get("data", values)["plan"]
    assert planned["rate_per_s"] == 20
    assert {each["routing"] for each in planned["needed"]} == {str(routing) for routing in Routing}
    shown = runner.invoke(cli, slo)
    assert "keep p99 of 5000 ms at 20 requests a second" in " ".join(shown.output.split())
    for wrong, says in (([], "a plan needs a rate"), (["--rate", "1", "--within", "0.001ms"], "no number of replicas")):
        shown = runner.invoke(cli, ["slo", str(tmp_path / "b"), *wrong])
        assert shown.exit_code == 1
        assert says in shown.output


def test_a_result_with_arrivals_holds_waiting(tmp_path, brief):
    runner = CliRunner()
    bench = ["bench", "digits_detector", "--seconds", "0.3", "--load", "fps:1000", "-o", str(tmp_path / "b")]
    assert runner.invoke(cli, bench).exit_code in (0, 2, 3, 4)
    shown = runner.invoke(cli, ["slo", str(tmp_path / "b"), "--rate", "5"])
    assert "was measured with arrivals" in shown.output
