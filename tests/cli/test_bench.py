"""`edgeopt bench` as a user runs it: short runs of the shipped model; no test is decided by a time."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from trace_format import check

import edgeopt
from edgeopt.cli import cli
from edgeopt.cli._progress import Progress
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.bench.summary import summarize as summarize_bench
from edgeopt.measurement.frames import diagnosis
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.frames.result import FrameBenchResult, notes_of_costs
from edgeopt.measurement.load.run import observe
from edgeopt.measurement.resources.energy import Energy, NotMeasured
from edgeopt.measurement.resources.meters import Meter, MeterKind, Meters
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.report.document import Document
from edgeopt.report.formats import render
from edgeopt.system.text import shown_path
from edgeopt.workloads.frames import bench as frames_bench

SHORT = {"seconds": 0.3, "min_frames": 60, "threads": 1}


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> tuple[FrameBenchResult, Path]:
    """The plain command, with its files."""
    out = tmp_path_factory.mktemp("closed")
    return edgeopt.bench("digits_detector", out=out, **SHORT), out


@pytest.fixture(scope="module")
def cameras(tmp_path_factory) -> tuple[FrameBenchResult, Path]:
    """Two cameras with a budget, a timeline and a profile."""
    trace = tmp_path_factory.mktemp("cameras") / "trace.json"
    wishes = {"load": "fps:60", "streams": 2, "queue": "latest", "phases": "random", "jitter_ms": 1.0, "seed": 3}
    source = edgeopt_pictures()
    return edgeopt.bench(
        "digits_detector", source=source, trace=trace, profile=True, budget_ms=33.0, **wishes, **SHORT
    ), trace


def edgeopt_pictures() -> Path:
    from edgeopt.recipes.recipe import find_recipe

    return find_recipe("digits_detector").folder / "calib"


def summarize(result: FrameBenchResult) -> Document:
    return summarize_bench(result, frames_bench)


def strict(text: str) -> dict:
    """Parse JSON that has no NaN and no infinity."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def shown(result: FrameBenchResult) -> str:
    return render(summarize(result), "terminal")


def page(result: FrameBenchResult) -> str:
    return render(summarize(result), "markdown")


def refuse(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["bench", "digits_detector", *arguments])
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.output.lower().count("error: ") == 1
    return result.output


def test_stages_and_overhead_add_up_to_every_frame(closed):
    samples = closed[0].samples
    np.testing.assert_array_equal(samples.times_ns.sum(axis=1) + samples.overhead_ns, samples.frame_ns)
    assert (samples.overhead_ns >= 0).all()
    assert sum(share.mean_ratio for share in closed[0].shares.values()) == pytest.approx(1)
    assert closed[0].passes.attribution.n > 0


def test_everything_that_is_always_told_is_in_the_file(closed):
    result, out = closed
    text = (out / "bench.json").read_text()
    values = strict(text)
    assert values == strict(json.dumps(result.as_json()))
    assert values["environment"]["hash"] == result.environment.hash
    assert len(values["environment"]["facts"]) > 30
    assert values["trust"]["level"] in ("trusted", "noisy", "invalid")
    assert values["trust"]["thresholds"]["steal_ratio"] == 0.005
    assert values["memory"]["peak_bytes"] > 10_000_000
    assert values["cpu"]["per_inference_ms"] > 0
    assert values["warmup"]["status"] in ("steady", "not_steady")
    assert values["options"]["seed"] == 0
    assert values["diagnosis"] == result.why != ""
    assert not {"cold", "profile", "capacity", "energy", "batches"} & values.keys()


def test_raw_samples_lie_beside_the_figures_and_are_read_for_a_comparison(closed):
    result, out = closed
    np.testing.assert_array_equal(Samples.read(out / "samples.npz").frame_ns, result.samples.frame_ns)
    stored = read_stored(out)
    assert stored.trust == result.trust.level
    assert stored.environment.hash == result.environment.hash
    assert len(stored.samples) == len(result.samples)


def test_markdown_has_every_line_of_the_terminal(closed):
    result, out = closed
    text = (out / "bench.md").read_text()
    document = summarize(result)
    assert text == render(document, "markdown")
    for section in document.sections:
        assert section.title in text
        assert all(f"- {one.label}: {one.text}" in text for one in section.values)
        assert all(f"| {' | '.join(row)} |" in text for row in (section.table.rows if section.table else ()))


def test_the_thresholds_of_trust_are_printed(closed):
    text = page(closed[0])
    assert "steal_ratio 0.005" in text
    assert "anchor_drift_ratio 0.03" in text


def test_without_a_budget_nothing_fails(closed):
    impossible = replace(closed[0], load=with_verdict(closed[0], Verdict.FAIL))
    assert impossible.exit_code == 0
    assert summarize(impossible).verdict.outcome == "DONE"
    assert "--budget makes it a gate" in page(closed[0])


def with_verdict(result: FrameBenchResult, verdict: Verdict):
    return replace(result.load, budget=replace(result.load.budget, verdict=verdict))


def test_cameras_are_accounted_for_frame_by_frame(cameras):
    result, _ = cameras
    load, samples = result.load, result.samples
    assert load.arrivals == load.served + load.dropped + load.failed
    assert set(samples.stream.tolist()) == {0, 1}
    assert (samples.served().response_ns >= samples.served().frame_ns).all()
    assert load.budget.misses >= load.dropped
    assert result.plan.rate_per_s == 120
    assert result.exit_code in (0, 2, 3, 4)
    assert result.load.queue == "latest"
    assert "fps:60 on 2 streams (random phases), jitter 1 ms, queue latest, 1 worker" in shown(result)


def test_waiting_is_told_apart_from_service(cameras):
    text = shown(cameras[0])
    for word in ("queue wait", "response", "generator", "misses", "jitter"):
        assert word in text


def test_a_run_with_arrivals_is_checked_against_unmarked_frames_too(cameras):
    assert cameras[0].samples.wall_ns is None
    assert cameras[0].passes.attribution.n > 0


def test_the_timeline_is_valid_and_holds_stages_waits_memory_and_operators(cameras):
    events = strict(cameras[1].read_text())["traceEvents"]
    check(events)
    names = {event["name"] for event in events}
    assert {"frame", "execute", "postprocess", "memory (MiB)"} <= names
    frames = [event for event in events if event["name"] == "frame"]
    assert len(frames) == len(cameras[0].samples.served())
    assert any(event.get("cat", "").startswith("operator") for event in events)
    memory = [event["ts"] for event in events if event["name"] == "memory (MiB)"]
    assert min(memory) < max(event["ts"] for event in frames)


def test_the_profile_names_nodes_with_provider_and_shape(cameras):
    profile = cameras[0].passes.profile
    assert sum(node.share_ratio for node in profile.nodes) == pytest.approx(1)
    assert {node.provider for node in profile.nodes} == {"CPUExecutionProvider"}
    assert cameras[0].memory.arena_bytes == profile.arena_held_bytes
    assert "believe the shares" in shown(cameras[0])
    assert "arena: only" not in str(cameras[0].memory.missing)


def test_the_same_seed_gives_the_same_timetable():
    wishes = SHORT | {"load": "poisson:200", "seed": 5, "min_frames": 20, "seconds": 0.1}
    first, second = (edgeopt.bench("digits_detector", **wishes) for _ in range(2))
    for result in (first, second):
        due = result.samples.intended_ns
        assert result.load.jitter_p99 is None
        assert len(due) > 30
    gaps = [np.diff(one.samples.intended_ns[10:]) for one in (first, second)]
    np.testing.assert_array_equal(*gaps)


def test_commands_of_the_diagnosis_repeat_what_was_asked(cameras):
    commands = [one.command for one in cameras[0].findings if "edgeopt bench" in one.command]
    assert commands
    source = str(edgeopt_pictures())
    for command in commands:
        assert f"--source {source}" in command or "--source FOLDER" in command
        assert command.count("--load ") == 1
        assert "--budget 33ms" in command
        assert "--streams 2" in command
    assert cameras[0].findings[0].command in shown(cameras[0])


def test_every_option_that_the_diagnosis_names_exists():
    text = Path(diagnosis.__file__).read_text("utf-8")
    flags = set(re.findall(r"--[a-z][a-z-]+", text))
    known = {name for command in ("bench", "optimize", "inspect") for name in options_of(command)}
    assert len(flags) > 10
    assert flags <= known


def options_of(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    return {flag for option in found.params if isinstance(option, click.Option) for flag in option.opts}


def test_several_workers_share_the_cores_and_nobody_waits():
    result = edgeopt.bench("digits_detector", load="closed:2", seconds=0.2, min_frames=40)
    assert set(result.samples.stream.tolist()) == {0, 1}
    assert result.setup.subject.threads >= 1
    assert "closed loop, 2 workers" in shown(result)
    served = edgeopt.bench("digits_detector", load="fps:80", workers=2, queue="bounded:3", **SHORT)
    assert served.load.workers == 2
    assert served.load.queue == "bounded:3"


def test_rounds_run_in_fresh_processes_and_give_the_headline(tmp_path):
    heard = []
    wishes = SHORT | {"min_frames": 380, "seconds": 0.1}
    result = edgeopt.bench(
        "digits_detector", rounds=2, out=tmp_path, tell=lambda what, done, of: heard.append((what, done, of)), **wishes
    )
    rounds = result.passes.rounds
    assert set(rounds.samples.round_id.tolist()) == {0, 1}
    assert len(rounds.quantiles["p99"].rounds_ns) == 2
    assert rounds.quantiles["p99"].low_ns <= rounds.quantiles["p99"].value_ns <= rounds.quantiles["p99"].high_ns
    assert len(rounds.anchors) == 3
    assert ("process rounds", 2, 2) in heard
    assert len(Samples.read(tmp_path / "rounds.npz")) == len(rounds.samples)
    assert "over 2 processes" in shown(result)
    strict((tmp_path / "bench.json").read_text())


def test_a_round_that_fails_says_why():
    from edgeopt.measurement.frames.process_rounds import run_rounds

    with pytest.raises(EdgeoptError, match=r"a fresh process failed: .*nowhere"):
        run_rounds("nowhere.onnx", target="cpu", recipe=None, options=BenchOptions(rounds=2))


def test_the_search_for_the_capacity_draws_the_curve_and_prices_an_inference():
    result = edgeopt.bench(
        "digits_detector",
        find_capacity=True,
        load="fps:30",
        queue="latest",
        budget_ms=2000.0,
        max_miss_ratio=0.4,
        cloud_price=0.36,
        **SHORT | {"seconds": 0.05, "min_frames": 20},
    )
    capacity, text = result.passes.capacity, shown(result)
    rates = [probe.rate_per_s for probe in capacity.probes]
    assert rates == sorted(rates)
    assert len(rates) >= 2
    assert all(f"{rate:.4g}" in text for rate in rates)
    if capacity.rate_per_s is None:
        assert "no cost of an inference" in text
    else:
        assert result.passes.cost.per_inference == pytest.approx(0.0001 / capacity.rate_per_s)
        assert "per 1000 inferences" in text
    assert strict(json.dumps(result.as_json()))["capacity"]["probes"][0]["rate_per_s"] == rates[0]


def test_a_cost_that_leaves_energy_out_says_so(closed):
    from edgeopt.measurement.resources.cost import InferenceCost

    passes = replace(closed[0].passes, cost=InferenceCost(0.001, 10.0))
    device = BenchOptions(device_price=100.0, watts=5.0, find_capacity=True)
    assert [note.detail for note in notes_of_costs(device, passes)] == ["the cost leaves energy out"]
    assert notes_of_costs(replace(device, kwh_price=0.3), passes) == ()
    assert notes_of_costs(BenchOptions(cloud_price=1.0), passes) == ()


def test_a_device_is_priced_by_its_life_and_the_measured_power():
    wishes = BenchOptions(find_capacity=True, device_price=87.66, life_years=1, kwh_price=0.36)
    device = 87.66 / (8766 * 3600)
    assert wishes.per_s(measured_watts=10.0) == pytest.approx(device + 10 * 0.36 / 3.6e6)
    assert replace(wishes, watts=20.0).per_s(measured_watts=10.0) == pytest.approx(device + 20 * 0.36 / 3.6e6)
    assert BenchOptions(cloud_price=3.6).per_s() == pytest.approx(1e-3)
    assert BenchOptions().per_s() is None


@pytest.fixture
def free_batch(tmp_path) -> tuple[str, str]:
    """A classifier whose first dimension is free, and its recipe."""
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(10, 3, 3, 3)).astype("f4"), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "weight"], ["features"]),
            helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["scores"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ("batch", 3, 16, 16))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("batch", 10))],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "free.onnx"))
    recipe = tmp_path / "own.toml"
    head = 'name = "own"\ntask = "classification"\ndescription = "d"\nlicense = "l"\nsource = "s"\n'
    recipe.write_text(f'{head}[postprocess]\ndecoder = "logits"\n[evaluation]\nmetric = "top1"\n')
    return str(tmp_path / "free.onnx"), str(recipe)


def test_a_batch_sweep_gives_throughput_and_latency_of_each_size(free_batch, tmp_path):
    model, recipe = free_batch
    result = edgeopt.bench(model, recipe=recipe, batches=(1, 4), out=tmp_path / "out", **SHORT)
    assert [point.size for point in result.passes.batches] == [1, 4]
    assert all(point.throughput_per_s > 0 for point in result.passes.batches)
    assert (tmp_path / "out" / "batch-4.npz").is_file()
    assert "frames per s" in shown(result)
    assert "synthetic pictures" in shown(result)


def test_a_cold_start_is_measured_in_fresh_processes_each_way():
    result = edgeopt.bench("digits_detector", cold=True, repeats=1, **SHORT)
    cold = result.passes.cold
    assert {way.is_optimized for way in cold.ways} == {True, False}
    assert all(run.took_ns("to_first") > run.took_ns("session") > 0 for run in cold.runs)
    text = shown(result)
    for word in ("interpreter", "import", "session", "page cache", "MiB at first"):
        assert word in text
    assert result.figures.cold_first_ms > result.figures.cold_session_ms


def test_minutes_give_the_curve_over_time():
    result = edgeopt.bench("digits_detector", minutes=0.02, min_frames=20, threads=1)
    assert len(result.passes.sustained.windows) == 20
    assert result.passes.sustained.ratio > 0
    assert "last fifth over first fifth" in shown(result)
    assert sum(one.frames for one in result.passes.sustained.windows) == len(result.samples.steady())


@pytest.mark.parametrize("spin", [True, False])
def test_spinning_is_an_entry_of_the_session_and_in_the_environment(spin):
    result = edgeopt.bench("digits_detector", spin=spin, seconds=0.05, min_frames=20, threads=2)
    assert result.environment.facts["session.spins"].value is spin
    assert result.setup.subject.options.entries["session.intra_op.allow_spinning"] == str(int(spin))


def test_energy_is_measured_or_says_why_not():
    result = edgeopt.bench("digits_detector", energy=True, **SHORT)
    found = result.passes.energy
    assert isinstance(found, (Energy, NotMeasured))
    assert (f"not measured: {found.reason}" if isinstance(found, NotMeasured) else found.coverage) in shown(result)
    strict(json.dumps(result.as_json()))


def test_a_meter_is_read_at_rest_and_beside_the_run(closed):
    from edgeopt.measurement.frames.passes import _energy

    joules = iter(range(10_000))
    meter = Meter("rapl", "CPU package", MeterKind.COUNTER, lambda: (float(next(joules)),), (0.0,), least_s=0.0)
    observed = observe(lambda: closed[0].samples, meter, idle_s=0.01)
    assert observed.idle.joules >= 1
    found = _energy(observed, Meters((meter,), ()))
    assert found.total_j == observed.energy.joules
    assert found.frames == len(closed[0].samples) + len(closed[0].samples.wall_ns)
    assert found.net_j is None, "a rest of less than 5 s tells no idle power"


WRONG = [
    ("--streams 2", "--streams 2 has no meaning in a closed loop"),
    ("--queue latest", "--queue latest has no meaning"),
    ("--queue last --load fps:30", "'last' is not a queue"),
    ("--workers 2", "write --load closed:2"),
    ("--jitter 1ms --load poisson:30", "--jitter has no meaning for poisson"),
    ("--phases random --load poisson:30", "--phases has no meaning for poisson"),
    ("--load fast", "'fast' is not a load"),
    ("--seconds 1 --minutes 1", "both say how long"),
    ("--max-miss 0", "no run can prove"),
    ("--repeats 3", "--repeats counts the starts of --cold"),
    ("--rounds 1", "not in the range"),
    ("--batch 1,2", "the batch of input images"),
    ("--batch 1,1", "cannot be swept"),
    ("--batch 1,x", "no list of whole numbers"),
    ("--cloud-price 1", "add --find-capacity"),
    ("--cloud-price 1 --device-price 1 --find-capacity", "two machines"),
    ("--watts 5", "add --device-price"),
    ("--format yaml", "no format named 'yaml'"),
    ("--spin maybe", "'maybe'"),
    ("--source nowhere", "nowhere does not exist"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[options for options, _ in WRONG])
def test_wishes_that_do_not_go_together_are_one_clear_line(options, said):
    assert said in " ".join(refuse(*options.split()).split())


def test_wrong_wishes_from_python_are_refused_too():
    for wish in ({"streams": 0}, {"phases": "odd"}, {"min_frames": 0}, {"rounds": 1}, {"load": "fps:0"}):
        with pytest.raises(EdgeoptError):
            plan_load(BenchOptions(**wish))


def test_options_that_need_onnxruntime_say_so_for_other_engines(tmp_path):
    target = tmp_path / "other.toml"
    target.write_text(
        'name = "other"\ndevice = "cpu"\nexecutor = "reference"\ndescription = "d"\nproviders = ["CPU"]\n'
        'precisions = ["fp32"]\n'
    )
    for option, word in (("--profile", "--profile needs the executor"), ("--spin=off", "--spin")):
        assert word in refuse("--target", str(target), option)


def test_the_command_prints_json_and_nothing_else(tmp_path):
    command = [
        sys.executable,
        "-m",
        "edgeopt",
        "bench",
        "digits_detector",
        "--seconds",
        "0.1",
        "--frames",
        "20",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert strict(done.stdout)["name"] == "digits_detector"
    assert done.stderr == ""


def test_a_pipe_gets_every_character():
    long = ["bench", "digits_detector", "--seconds", "1", "--frames", "800", "--source", str(edgeopt_pictures())]
    text = CliRunner().invoke(cli, long).output
    assert "postprocess" in text
    assert "p1 " in text, "no column is left out"
    assert shown_path(edgeopt_pictures()) in text
    assert "…" not in text


def test_the_command_prints_markdown():
    quick = ["--seconds", "0.1", "--frames", "20"]
    done = CliRunner().invoke(cli, ["bench", "digits_detector", *quick, "--format", "markdown"])
    assert done.output.startswith("# digits_detector under closed loop")
    assert "| execute |" in done.output


def test_progress_is_one_line_that_no_thread_redraws(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    threads = threading.active_count()
    with Progress() as progress:
        for done in (1, 1, 2):
            progress.progress("seconds", done, 2)
        assert threading.active_count() == threads
    bars = [f"{'#' * filled}{'-' * (24 - filled)}  {done}/2  seconds" for done, filled in ((1, 12), (2, 24))]
    assert terminal.getvalue() == "".join(f"\r{bar}" for bar in bars) + f"\r{' ' * (len(bars[1]) + 2)}\r"


@pytest.mark.slow
def test_two_cameras_on_a_real_detector_with_a_budget(data, tmp_path):
    trace = tmp_path / "trace.json"
    model, pictures = data / "models" / "yolox_nano_416.onnx", data / "coco" / "val"
    options = ["--load", "fps:30", "--streams", "2", "--queue", "latest", "--budget", "33ms", "--seconds", "2"]
    command = ["bench", str(model), *options, "--frames", "60", "--trace", str(trace), "--source", str(pictures)]
    done = CliRunner().invoke(cli, [*command, "-o", str(tmp_path / "out")])
    assert done.exit_code in (0, 2, 3, 4), done.output
    check(strict(trace.read_text())["traceEvents"])
    values = strict((tmp_path / "out" / "bench.json").read_text())
    assert values["under_load"]["streams"] == 2
    samples = Samples.read(tmp_path / "out" / "samples.npz").served()
    np.testing.assert_array_equal(samples.times_ns.sum(axis=1) + samples.overhead_ns, samples.frame_ns)
