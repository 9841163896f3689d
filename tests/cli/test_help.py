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
from edgeopt.cli._help import SCREEN_LINES, GroupedCommand
from edgeopt.cli._values import RecipeName, TargetName
from edgeopt.cli._verb import VerbOption
from edgeopt.executors.browser import chromium
from edgeopt.system.declared.options import OptionGroup


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


LONG = ["optimize", "bench", "run", "check", "compare", "serve"]
"""Commands whose whole help fits no screen."""


def help_of(name: str, *words: str, columns: int = 80) -> str:
    """Return what a command prints with `--help` and further words."""
    width = min(columns, 110) - 2  # as click makes it of a terminal's columns
    done = CliRunner().invoke(cli, [name, *words], prog_name="edgeopt", terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", LONG)
def test_every_option_of_a_long_help_stands_under_one_heading(name):
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, GroupedCommand)
    placed = [option for names in command.groups.values() for option in names]
    listed = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    options = {each.name for each in listed}
    assert len(placed) == len({*placed})
    assert {*placed} == options
    shown = help_of(name, "--help", "all")
    heads = [shown.index(f"\n{group.heading}:\n") for group in command.groups]
    assert heads == sorted(heads)
    assert all(f"{each.opts[0]} " in shown for each in listed)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_the_help_of_every_command_fits_a_screen(name, columns):
    lines = help_of(name, "--help", columns=columns).splitlines()
    assert len(lines) <= SCREEN_LINES
    assert all(len(line) <= columns for line in lines)
    assert not any(line.endswith("-") for line in lines)  # inside an option


@pytest.mark.parametrize("name", LONG)
def test_the_screen_names_every_option_and_says_how_to_read_on(name):
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, GroupedCommand)
    most_used, groups = help_of(name, "--help").split("\nMost used:\n")[1].split("\nAll options, by group:\n")
    flags = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert {*re.findall(r"--[a-z-]+", groups)} - {"--help"} == {*flags}
    assert [line.split()[0] for line in groups.split("\n\n")[0].splitlines() if line[2] != " "] == [
        group.name for group in command.groups
    ]
    assert len(most_used.splitlines()) >= 5
    assert f"edgeopt {name} --help {next(iter(command.groups)).name} " in groups
    assert groups.splitlines()[-1].startswith(f"edgeopt {name} --help all ")


@pytest.mark.parametrize("name", [*LONG, "inspect"])
def test_names_of_groups_are_words_that_no_other_group_of_the_command_has(name):
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, GroupedCommand)
    names = [group.name for group in command.groups]
    assert len(names) == len({*names})
    assert all(each.isalpha() and each.islower() and each != "all" for each in names)
    headings = [group.heading for group in command.groups]
    assert len(headings) == len({*headings})
    declared = {use.option.group for each in command.params if isinstance(each, VerbOption) for use in each.uses}
    assert declared <= {*command.groups}  # no two kinds of workload describe a group of one name in two ways


def test_a_group_is_shown_as_in_the_whole_help():
    whole = help_of("bench", "--help", "all")
    for words in (["--help", "load"], ["--help=load"], ["-h", "load"], ["x.onnx", "--help", "load"]):
        shown = help_of("bench", *words)
        section = shown[shown.index("\nHow frames arrive:\n") :].rstrip()
        assert "  --seed INTEGER " in section
        assert f"{section}\n\nAlso measured:\n" in whole
    assert "\nWhat each step does:\n" in help_of("optimize", "--help", "steps")


def test_a_group_of_one_kind_says_so():
    assert "for a single model of frames only." in help_of("run", "--help", "model")
    assert "for a language model only" in help_of("serve", "--help")
    assert "for a" not in help_of("bench", "--help").split("by group:")[1]


@pytest.mark.parametrize(
    ("name", "words", "heading"),
    [
        ("bench", ["--help", "jitter"], "How frames arrive"),
        ("bench", ["--help", "max-miss"], "The budget"),
        ("bench", ["--help", "max_miss"], "The budget"),
        ("bench", ["x.onnx", "--help", "--max-miss"], "The budget"),
        ("bench", ["--help=--max-miss"], "The budget"),
        ("bench", ["--help", "--model"], "Servers"),  # an option; the group of this name is asked for without dashes
        ("bench", ["-h", "-t"], "Model and device"),
        ("bench", ["--help", "json"], "What is printed"),
        ("inspect", ["--help", "nodes"], "What is shown"),
    ],
)
def test_the_name_of_an_option_shows_its_group(name, words, heading):
    assert re.findall(r"^(\S.*):$", help_of(name, *words), re.MULTILINE) == [heading]


def test_every_option_is_in_the_group_that_its_name_shows():
    command = cli.get_command(click.Context(cli), "optimize")
    flags = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert len(flags) > 30
    for flag in flags:
        assert f"{flag} " in help_of("optimize", f"--help={flag}").split(":\n", 1)[1], flag


@pytest.mark.parametrize("name", ["bench", "optimize", "run", "serve"])
def test_no_name_of_a_shipped_recipe_or_target_is_taken_for_a_slip(name):
    command = cli.get_command(click.Context(cli), name)
    context = click.Context(command, info_name=name)
    parts = (RecipeName(), TargetName())
    names = {each.value for part in parts for each in part.shell_complete(context, command.params[0], "")}
    assert len(names) > 50
    screen = command.help_with(context, "")
    for word in sorted(names):
        assert command.help_with(context, word) == screen, word


def test_other_arguments_beside_help_change_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lode").mkdir()
    screen = help_of("bench", "--help")
    for line in (
        "--help model.onnx",
        "model.onnx --help",
        "--help digits_detector",
        "--help ./model",
        "--help lode",  # a bundle that lies here
        "--help yolox",
        "--help bert",
        f"--help {'a' * 300}",  # longer than a file's name may be
        "--load fps:30 --help",
        "--help --load fps:30",
        "-h",
    ):
        assert help_of("bench", *line.split()) == screen, line
    assert help_of("run", "b", "--help", "0") == help_of("run", "--help")  # a camera's number
    assert help_of("serve", "--help", "xyz") == help_of("serve", "--help")
    assert help_of("targets", "--help", "cpu") == help_of("targets", "--help=all") == help_of("targets", "--help")


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ("bench --help lod", "no group of options and no option is named 'lod'", "see edgeopt bench --help load"),
        ("bench x.onnx --help=Load", "no group of options and no option is named 'Load'", "did you mean 'load'?"),
        ("bench --help max-mis", "no group of options and no option is named 'max-mis'", "did you mean 'max-miss'?"),
        ("bench --help jtiter", "no group of options and no option is named 'jtiter'", "did you mean 'jitter'?"),
    ],
)
def test_a_slip_in_the_name_of_a_group_or_option_is_told_with_the_nearest(words, problem, remedy):
    done = CliRunner().invoke(cli, words.split(), prog_name="edgeopt")
    assert done.exit_code == 1
    first, second = " ".join(done.output.split()).split(" -> ")
    assert first.startswith(f"error: {problem}")
    assert remedy in second


def test_completion_names_groups_and_what_they_are_for():
    from edgeopt.cli._help import GroupName

    command = cli.get_command(click.Context(cli), "bench")
    found = GroupName(command.groups).shell_complete(click.Context(command), command.params[0], "")
    assert [each.value for each in found] == [*(group.name for group in command.groups), "all"]
    assert all(each.help for each in found)


def test_no_command_lists_more_than_sixteen_options_without_headings():
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        options = {each.name for each in command.params if isinstance(each, click.Option) and not each.hidden}
        assert isinstance(command, GroupedCommand) or len(options) <= 16, name


def test_help_says_the_unit_of_a_number_without_one():
    shown = CliRunner().invoke(cli, ["optimize", "--help", "all"]).output
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


def test_a_long_command_without_options_that_most_users_need_has_a_screen():
    group = OptionGroup("many", "Many", "fifty numbers")
    options = [click.Option([f"--number-{i}"], help="A number.") for i in range(50)]
    command = GroupedCommand("long", params=options, groups={group: tuple(each.name for each in options)})
    done = CliRunner().invoke(command, ["--help"])
    assert done.exit_code == 0, done.exception
    assert "Most used" not in done.output
    assert "--number-49" in done.output


def test_the_groups_of_serve_say_what_they_hold_there():
    rows = help_of("serve", "--help").split("by group:")[1]
    for taken in ("prompts, and the answers", "times, languages"):
        assert taken not in rows
    assert "times, languages, silence" in help_of("run", "--help")


@pytest.mark.parametrize("name", ["inspect", "bench"])
def test_the_group_of_devices_names_the_links_that_the_command_has(name):
    shown = help_of(name, "--help", "on")
    assert ("adb." in shown) == ("adb://" in shown) == (name == "bench")


def test_no_help_speaks_of_most_used_options_where_all_are_shown():
    assert "most" not in help_of("inspect", "--help").lower()


ARGUMENTS = re.compile(r"\b(?:MODELS?|SOURCE|BUNDLE|RESULTS?)\b")


def test_help_of_options_names_arguments_that_the_command_has():
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        context = click.Context(command, info_name=name)
        arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
        options = [each for each in command.params if isinstance(each, click.Option)]
        shown = {*ARGUMENTS.findall(" ".join([*arguments, *(each.metavar or "" for each in options)]))}
        for each in options:
            text = re.sub("`.*?`", "", each.help or "")  # another command
            assert {*ARGUMENTS.findall(text)} <= shown, (name, each.opts)


def test_a_command_that_was_asked_alone_has_the_short_name_below_the_group():
    command = cli.get_command(click.Context(cli), "bench")
    assert command.get_help_option(click.Context(command)).opts == ["--help"]
    with cli.make_context("edgeopt", ["bench"], resilient_parsing=True) as above:
        below = click.Context(command, parent=above)
        assert command.get_help_option(below).opts == ["-h", "--help"]
        assert command.get_help_option(below) is command.get_help_option(below)
