"""Help is quick: no heavy import on the way to it. An interrupt says what it leaves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import edgeopt
from edgeopt.cli import cli
from edgeopt.cli._verb import GroupedCommand
from edgeopt.executors.browser import chromium


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['edgeopt', '--help']\n"
        "from edgeopt.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'onnx', 'cv2', 'rich', 'onnxruntime', 'jinja2', 'edgeopt.cli.bench', 'edgeopt.workloads'}\n"
        "print('heavy:', *heavy & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "optimize" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "heavy:"


def test_each_command_has_one_line_in_80_columns():
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["--help"]).output
    listed = shown.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in listed] == cli.list_commands(None)
    assert all(line.endswith(".") and len(line) <= 80 for line in listed), shown


@pytest.mark.parametrize("command", ["bench", "check", "compare", "quantize", "inspect", "optimize"])
def test_an_interrupt_speaks_of_resume_only_where_the_command_has_it(command: str, monkeypatch) -> None:
    callback = cli.get_command(None, command)
    monkeypatch.setattr(callback, "callback", interrupted)
    given = {
        "optimize": ["m", "-t", "cpu"],
        "quantize": ["m", "-t", "cpu"],
        "compare": ["a", "b"],
        "check": ["m", "-b", "b"],
    }
    shown = CliRunner().invoke(cli, [command, *given.get(command, ["m"])])
    assert shown.exit_code == 130, shown.output
    assert shown.output.startswith("interrupted: ")
    assert ("--resume" in shown.output) == (command == "optimize")
    assert ("nothing was written" in shown.output) == (command not in ("optimize", "quantize"))


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


_FROZEN = {"--graphdef", "--inputs", "--outputs", "--model"}
TF2ONNX = {"--tflite", "--keras", "--saved-model", "--opset", "--output", *_FROZEN}
CHROMIUM = set(re.findall(r"--[a-z][a-z-]+", Path(chromium.__file__).read_text("utf-8")))
OTHERS = {
    *CHROMIUM,
    "--index-url",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "--no-compile",
    "--no-index",
    "--find-links",
    "--retries",
    "--timeout",
    "--only-binary",
    "--implementation",
    "--python-version",
    "--platform",
    "--abi",
    "--dest",
    "--id",
    "--nthreads",
    "--resources",
    "--query-gpu",
    "--use",
    "--help",
    "--version",
    *TF2ONNX,
}
"""Options of other programs that are called or advised, and click's own."""


def test_every_option_that_a_message_names_exists():
    root = Path(edgeopt.__file__).parent
    ours = (path for path in root.rglob("*.py") if path.relative_to(root).parts[0] != "models")  # which a wheel brings
    named = {flag for path in ours for flag in re.findall(r"--[a-z][a-z-]+", path.read_text("utf-8"))}
    commands = [cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))]
    known = {flag for command in commands for option in command.params for flag in option.opts}
    assert named - known - OTHERS == set()


def test_a_wrong_value_is_told_as_every_error_and_folded_on_a_terminal(monkeypatch):
    wrong = ["optimize", "digits_detector", "-t", "cpu", "--budget", "abc"]
    lines = CliRunner().invoke(cli, wrong, prog_name="edgeopt").output.splitlines()
    assert lines[0] == "Usage: edgeopt optimize [OPTIONS] MODEL"
    assert lines[-2:] == [
        "error: Invalid value for '--budget': 'abc' is not a duration",
        "  -> write a number with us, ms, s, m or h, for example 33ms",
    ]
    monkeypatch.setattr("edgeopt.cli._output.line_width", lambda **_: 50)
    folded = CliRunner().invoke(cli, wrong, prog_name="edgeopt").output.splitlines()[-4:]
    assert [line[:5] for line in folded] == ["error", "     ", "  -> ", "     "]
    assert all(len(line) <= 50 for line in folded)


@pytest.mark.parametrize("name", ["optimize", "bench", "run", "check", "serve"])
def test_every_option_of_a_long_help_stands_under_one_heading(name):
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, GroupedCommand)
    placed = [option for names in command.groups.values() for option in names]
    listed = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    options = {each.name for each in listed}
    assert len(placed) == len({*placed})
    assert {*placed} == options
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(cli, [name, "--help"]).output
    heads = [shown.index(f"\n{heading}:\n") for heading in command.groups]
    assert heads == sorted(heads)
    assert all(f"{each.opts[0]} " in shown for each in listed)


def test_no_command_lists_more_than_sixteen_options_without_headings():
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        options = {each.name for each in command.params if isinstance(each, click.Option) and not each.hidden}
        assert isinstance(command, GroupedCommand) or len(options) <= 16, name


def test_help_says_the_unit_of_a_number_without_one():
    shown = CliRunner().invoke(cli, ["optimize", "--help"]).output
    assert "--budget MS|33ms|ttft:TIME" in shown
    assert "--time-limit SECONDS|5m" in shown


def test_a_plan_says_times_with_their_units():
    shown = (
        CliRunner()
        .invoke(cli, ["optimize", "digits_detector", "-t", "cpu", "--budget", "33", "--time-limit", "5", "--dry-run"])
        .output
    )
    assert "33.0 ms a frame" in shown
    assert "time limit 5s" in shown


def test_errors_are_folded_under_their_text_where_columns_are_asked_for(tmp_path):
    command = [sys.executable, "-m", "edgeopt", "bench", f"{'long-' * 8}name.onnx", "--load", f"{'word ' * 30}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "60"})
    lines = done.stderr.splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(("error: ", "       ", "  -> ", "     ")) for line in lines)
