"""A fleet compares itself with its last run, and has one word for all cells together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import edgeopt.verbs.fleet.result as result_module
from edgeopt.report.formats import Paper, render
from edgeopt.verbs.fleet.result import CellResult, FleetResult
from edgeopt.verbs.fleet.run import write_bundles
from edgeopt.verbs.fleet.summary import cell_line, summarize
from edgeopt.verbs.fleet.work import CellRun


def ran(name: str, code: int = 0, p50_ms: float = 10.0, score: float = 0.5, began_s: float = 0.0) -> CellResult:
    run = CellRun(name, code, "tcp://w", "m", "cpu", 0.0, began_s, began_s + 60.0, ())
    frame = SimpleNamespace(p50_ms=p50_ms)
    best = SimpleNamespace(
        name="quantize",
        executor="onnxruntime",
        precision="w8a8",
        latency=SimpleNamespace(frame=frame),
        speed=None,
        score=SimpleNamespace(value=score),
    )
    report = SimpleNamespace(best=best, latency=best.latency, environment=SimpleNamespace(facts={}))
    workload, device, target = name.split("-")
    return CellResult(name, workload, device, target, run, report, "")


def fleet(*cells: CellResult, **before: dict[str, object]) -> FleetResult:
    return FleetResult("nightly", Path("out"), cells, {name.replace("_", "-"): was for name, was in before.items()})


@pytest.mark.parametrize(
    ("codes", "whole"), [((0, 0), 0), ((0, 2), 2), ((3, 2), 2), ((4, 3), 3), ((2, 1), 1), ((0, 4), 4)]
)
def test_the_worst_cell_decides(codes, whole):
    assert fleet(*(ran(f"a-d{i}-t", code) for i, code in enumerate(codes))).exit_code == whole


def test_what_changed_is_told_and_what_may_be_chance_is_not():
    now = [ran("a-d-t", p50_ms=12.0), ran("b-d-t", p50_ms=10.5), ran("c-d-t", score=0.4), ran("e-d-t", code=2)]
    was = {"p50_ms": 10.0, "score": 0.5, "exit_code": 0}
    result = fleet(*now, a_d_t=was, b_d_t=was, c_d_t=was, e_d_t=was)
    assert result.changes() == (
        "a-d-t is slower: 12.00 ms, was 10.00",
        "c-d-t scores 0.4000, was 0.5000",
        "e-d-t ends with 2, was 0",
    )
    assert fleet(replace(now[0], is_kept=True), a_d_t=was).changes() == ()
    assert fleet(now[0]).changes() == ()


def test_cells_that_measured_on_one_device_at_one_time_are_told():
    one, other, apart = ran("a-d-t"), ran("b-d-t", began_s=30.0), ran("c-e-t", began_s=30.0)
    assert fleet(one, other, apart).overlaps == (("a-d-t", "b-d-t"),)
    assert fleet(one, replace(other, is_kept=True)).overlaps == ()


def test_cells_of_a_device_are_not_compared_pair_by_pair(monkeypatch):
    """A night of 100,000 cells has five thousand million pairs."""
    compared = list[bool]()
    overlap = result_module._overlap

    def count(first: CellRun, second: CellRun) -> bool:
        compared.append(overlap(first, second))
        return compared[-1]

    monkeypatch.setattr(result_module, "_overlap", count)
    cells = [ran(f"w{i}-d{i % 10}-t", began_s=60.0 * i) for i in range(400)]
    beside = ran("x-d3-t", began_s=cells[3].run.began_s + 30.0)
    assert fleet(beside, *reversed(cells)).overlaps == (("x-d3-t", "w3-d3-t"),)
    assert compared == [True]


def test_devices_are_summed_up_in_one_pass_over_all_cells():
    class Passes(tuple[CellResult, ...]):
        count = 0

        def __iter__(self) -> Iterator[CellResult]:
            type(self).count += 1
            return super().__iter__()

    def passes(devices: int) -> int:
        Passes.count = 0
        summarize(FleetResult("nightly", Path("out"), Passes(ran(f"a-d{i}-t") for i in range(devices)), {}))
        return Passes.count

    assert passes(50) == passes(2)


def test_the_best_target_of_each_device_and_the_slowest_device_are_shown():
    result = fleet(ran("a-pi-cpu", p50_ms=30.0), ran("a-pi-litert", p50_ms=20.0), ran("a-desk-cpu", p50_ms=2.0))
    text = render(summarize(result), "terminal", Paper(80))
    best = text.split("Best of each workload and device")[1].split("PASS")[0]
    assert "litert" in best
    assert best.count("slowest") == 1
    assert "3 cells: 3 PASS" in text


def test_the_run_costs_what_its_devices_were_held_for():
    """60 s a cell: a minute at 0.6 an hour is 0.01; a kept cell and one without a price cost nothing."""
    cells = [
        ran("a-pi-cpu"),
        ran("b-pi-cpu"),
        ran("a-lab-cpu"),
        replace(ran("b-lab-cpu"), is_kept=True),
        ran("b-x-cpu"),
    ]
    prices = {"pi": 0.6, "lab": 60.0}
    priced = [replace(cell, price_per_h=prices.get(cell.device)) for cell in cells]
    result = fleet(*priced)
    values = result.as_json()
    assert values["cost"] == pytest.approx(1.02)
    assert {name: used["cost"] for name, used in values["devices"].items()} == {
        "pi": pytest.approx(0.02),
        "lab": pytest.approx(1.0),
        "x": None,
    }
    assert values["devices"]["lab"]["device_s"] == 60.0
    assert {name: used["cost"] for name, used in values["workloads"].items()} == {
        "a": pytest.approx(1.01),
        "b": pytest.approx(0.01),
    }
    text = render(summarize(result), "terminal", Paper(80))
    told = " ".join(text.split())
    assert "1.02 in the currency of the prices; 0.07 device hours, without a price those of 1 device" in told
    workloads = text.split("Cost of each workload")[1]
    assert [line.split()[-1] for line in workloads.splitlines() if line.split()[:1] in (["a"], ["b"])] == [
        "1.01",
        "0.01",
    ]
    for form in ("markdown", "html"):
        assert "1.02" in render(summarize(result), form, Paper(80))


def test_without_prices_nothing_is_said_of_cost():
    result = fleet(ran("a-pi-cpu"))
    assert result.as_json()["cost"] is None
    assert "cost" not in render(summarize(result), "terminal", Paper(80)).lower()


def test_a_workload_whose_bundles_do_not_become_one_says_why(tmp_path):
    places = tmp_path / "cells"
    (places / "a-pi-cpu" / "bundle").mkdir(parents=True)
    (places / "a-pi-cpu" / "bundle" / "pipeline.json").write_text("{}")
    (tmp_path / "bundles" / "a").mkdir(parents=True)
    (written,) = write_bundles([ran("a-pi-cpu"), ran("b-pi-cpu")], places, tmp_path)
    assert written.problem.endswith("is the bundle of a pipeline, not of one model")
    assert not (tmp_path / "bundles" / "a").exists(), "that of an earlier run is none of this one"
    text = " ".join(render(summarize(replace(fleet(ran("a-pi-cpu")), bundles=(written,))), "terminal").split())
    assert "is the bundle of a pipeline, not of one model" in text


def test_a_cell_that_never_ended_says_why():
    cell = CellResult("a-d-t", "a", "d", "t", None, None, "it ended every worker that ran it")
    assert cell_line(cell) == "a-d-t: ERROR, it ended every worker that ran it"
    assert fleet(cell).exit_code == 1
