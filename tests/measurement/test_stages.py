"""Stages have the names that task and session give them, from the timed frame to every report."""

from __future__ import annotations

import json
from pathlib import Path

import fixture_models
import pytest
from click.testing import CliRunner, Result

from edgeopt.cli import cli
from edgeopt.graph.model import save_model
from edgeopt.measurement.samples import Samples
from edgeopt.system.declared import registry
from edgeopt.tasks.tensors import TensorsAsTheyAre

NAMES = ["load", "tokenize", "prefill", "decode", "detokenize"]
TARGET = """
name = "generator"
device = "cpu"
executor = "generator"
description = "stages of its own"
providers = ["CPUExecutionProvider"]
precisions = ["fp32"]
threads = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, a target on an executor of another package, and a task that names its own stages."""
    installed = {"edgeopt.executors": {"generator": "fixture_stages"}}
    monkeypatch.setattr(registry, "_installed", lambda package: installed.get(package, {}))
    registry.names_in.cache_clear()
    monkeypatch.setattr(TensorsAsTheyAre, "stages", ("tokenize", "detokenize"))
    text = "words (float[1,64] x) => (float[1,64] y) { m = MatMul(x, weight) y = Tanh(m) }"
    save_model(fixture_models.model(text, weight=fixture_models.numbers(64, 64)), tmp_path / "words.onnx")
    (tmp_path / "generator.toml").write_text(TARGET)
    yield tmp_path
    registry.names_in.cache_clear()


def ran(folder: Path, command: str, *options: str) -> Result:
    named = ["--target", str(folder / "generator.toml"), "--recipe", "tensors", "--seconds", "0.3"]
    found = CliRunner().invoke(cli, [command, str(folder / "words.onnx"), *named, *options], catch_exceptions=False)
    assert found.exit_code in (0, 4), found.output
    return found


def test_other_stages_pass_through_bench_its_table_its_json_and_its_trace(folder: Path) -> None:
    out, trace = folder / "out", folder / "trace.json"
    shown = ran(folder, "bench", "--frames", "60", "-o", str(out), "--trace", str(trace)).stdout
    first_words = [line.split()[0] for line in shown.splitlines() if line.split()]
    table = first_words[first_words.index("stage") + 1 :]
    rows = [word for word in table if word in (*NAMES, "overhead", "frame")]
    assert rows[: len(NAMES) + 2] == [*NAMES, "overhead", "frame"]
    assert "execute" not in shown
    told = json.loads((out / "bench.json").read_text())
    assert told["samples"]["stages"] == NAMES
    assert [*told["samples"]["times"]] == ["frame", *NAMES, "overhead"]
    assert [*told["shares"]] == [*NAMES, "overhead"]
    assert told["attribution"]["n"] > 0
    assert Samples.read(out / "samples.npz").stages == tuple(NAMES)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {one["name"] for one in events if one.get("cat") == "stage"} <= {*NAMES}
    assert "decode" in {one["name"] for one in events if one.get("cat") == "stage"}


def test_a_stored_run_is_compared_and_a_baseline_checked_stage_by_stage(folder: Path) -> None:
    for name in ("one", "two"):
        ran(folder, "bench", "--frames", "60", "-o", str(folder / name))
    both = [str(folder / name) for name in ("one", "two")]
    told = CliRunner().invoke(cli, ["compare", *both, "--json"], catch_exceptions=False)
    parts = json.loads(told.stdout)["parts"]
    assert {"frame", "prefill", "decode"} <= {*parts} <= {"frame", *NAMES}
    base, light = folder / "base.json", ("--skip", "memory,cold_start,accuracy")
    ran(folder, "check", "--baseline", str(base), "--update", *light)
    judged = json.loads(ran(folder, "check", "--baseline", str(base), *light, "--json").stdout)
    names = [one["name"] for one in judged["results"]]
    assert names[:3] == ["latency prefill", "latency decode", "latency frame"]
