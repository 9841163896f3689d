"""Wishes that no machine can meet are refused before work begins, on the command line and in Python."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from edgeopt import check, compare
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.check.run import thresholds_of
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import parse_load
from edgeopt.optimization.one_step.quantize import quantize
from edgeopt.optimization.options import Options
from edgeopt.recipes.default_limits import Check
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.disk.files import require_writable
from edgeopt.system.machine.threads import engine_threads, logical_cores, usual_threads

NAN, INFINITE = float("nan"), float("inf")
DIGITS = "digits_detector"


def told(*arguments: object) -> str:
    """Return what a command says that must end at once, with exit code 1 and no traceback."""
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == 1, result.output
    assert len(result.output) < 6000
    return result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", DIGITS, "-t", "cpu", "--fps", "nan"),
        ("optimize", DIGITS, "-t", "cpu", "--fps", "inf"),
        ("optimize", DIGITS, "-t", "cpu", "--max-drop", "nan"),
        ("optimize", DIGITS, "-t", "cpu", "--max-drop", "inf"),
        ("optimize", DIGITS, "-t", "cpu", "--budget", "1e200h"),
        ("quantize", DIGITS, "-t", "cpu", "--max-drop", "nan"),
        ("bench", DIGITS, "--minutes", "nan"),
        ("bench", DIGITS, "--minutes", "inf"),
        ("bench", DIGITS, "--minutes", "1e9"),
        ("bench", DIGITS, "--seed", "-1"),
        ("bench", DIGITS, "--seed", "1" + "0" * 30),
        ("bench", DIGITS, "--load", "closed:1000000"),
        ("bench", DIGITS, "--load", "poisson:30", "--workers", "1000000"),
        ("bench", DIGITS, "--load", "fps:30", "--streams", "1000000"),
        ("bench", DIGITS, "--batch", "1000000"),
        ("bench", DIGITS, "--batch", "9" * 5000),
        ("bench", DIGITS, "--frames", "9" * 30),
        ("bench", DIGITS, "--device-price", "inf", "--find-capacity"),
        ("check", DIGITS, "-b", "b.json", "--latency-ratio", "nan"),
        ("check", DIGITS, "-b", "b.json", "--seed", "-1"),
        ("compare", DIGITS, DIGITS, "--seconds", "1e99h"),
    ],
    ids=" ".join,
)
def test_a_number_out_of_range_ends_in_one_line(arguments):
    assert "rror: " in told(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", DIGITS, "-t", "cpu"),
        ("quantize", DIGITS, "-t", "cpu"),
        ("bench", DIGITS),
        ("compare", DIGITS, DIGITS),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("threads", [logical_cores() + 1, 10_000])
def test_more_threads_than_logical_cores_are_refused(arguments, threads, tmp_path):
    shown = told(*arguments, "--threads", threads, *(("-o", tmp_path / "o") if arguments[0] != "bench" else ()))
    assert f"{logical_cores()} logical core" in shown or "threads is 10000" in shown


def test_threads_come_from_the_wish_then_the_device_then_the_machine():
    assert engine_threads(1, 4) == 1
    assert engine_threads(0, 10_000) == logical_cores()
    assert engine_threads(0) == usual_threads()
    assert engine_threads(0, workers=1000) == 1
    for asked in (-1, logical_cores() + 1):
        with pytest.raises(EdgeoptError, match="logical core"):
            engine_threads(asked)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Options(budget_ms=NAN),
        lambda: Options(budget_ms=0),
        lambda: Options(max_drop=INFINITE),
        lambda: Options(threads=-5),
        lambda: Options(time_limit_s=NAN),
        lambda: Options(threads="4"),
        lambda: compare("a", "b", seconds=NAN),
        lambda: compare("a", "b", seed=-1),
        lambda: compare("a", "b", margin=NAN),
        lambda: check("a", baseline="b", seconds=INFINITE),
        lambda: check("a", baseline="b", starts=10**9),
        lambda: thresholds_of(Check(), {"latency_ratio": NAN}),
        lambda: quantize("a", max_drop=NAN),
        lambda: quantize("a", time_limit_s=NAN),
        lambda: plan_load(BenchOptions(seconds=NAN)),
        lambda: plan_load(BenchOptions(minutes=INFINITE)),
        lambda: plan_load(BenchOptions(load="closed:1000000")),
        lambda: make_arrivals(parse_load("fps:1000000000"), seconds=1e6),
    ],
)
def test_the_library_refuses_what_the_command_line_refuses(ask):
    with pytest.raises(EdgeoptError) as caught:
        ask()
    assert "\n" not in caught.value.problem


@pytest.mark.parametrize("where", ["n" * 5000, "file/o", "folder"])
def test_a_place_that_cannot_be_written_is_told_before_work_begins(tmp_path, where):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder" / "bench.json").mkdir(parents=True)
    with pytest.raises(EdgeoptError, match="cannot be written"):
        require_writable(tmp_path / where / "bench.json")
    model = tmp_path / "no-model.onnx"  # never reached
    for arguments in (
        ("bench", model, "-o", tmp_path / where),
        ("bench", model, "--trace", tmp_path / where / "bench.json"),
    ):
        assert "cannot be written" in told(*arguments)


def test_trying_a_place_leaves_nothing_there(tmp_path):
    require_writable(tmp_path / "a" / "b" / "file.json")
    assert not list(tmp_path.iterdir())


def test_a_bundle_is_not_opened_with_more_threads_than_cores(tmp_path):
    with pytest.raises(EdgeoptError):
        Runtime.load(tmp_path, threads=10_000)
