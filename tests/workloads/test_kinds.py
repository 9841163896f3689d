"""Kinds of workload: one of another package goes through every verb; no verb and no command names a kind."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_type_hints

import pytest
from click.testing import CliRunner

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.system.declared.options import OptionGroup, Syntax, option, options_of
from edgeopt.verbs import wishes
from edgeopt.workloads import SIDE_VERBS, kind_of, kinds, verbs

TOY = Path(__file__).parents[1] / "fixtures" / "toy_kind"
PACKAGE = Path(edgeopt.__file__).parent


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "colours.table.json"
    path.write_text(json.dumps({"sky": "blue", "grass": "green"}), "utf-8")
    return path


def with_toy(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the package of the toy kind is installed."""
    paths = os.pathsep.join((str(TOY), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "100"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)


def test_a_group_of_options_may_be_a_text():
    @dataclass(frozen=True)
    class TableOptions:
        key: str = option("", "The key that is asked.", group="Keys of tables")

    ((_, made),) = options_of(TableOptions)
    assert made.group == OptionGroup("keys-of-tables", "Keys of tables", "its options")


SCRIPT = """
import sys
from edgeopt.cli import cli
for line in sys.stdin.read().splitlines():
    try:
        cli(line.split(), prog_name="edgeopt")
    except SystemExit as ended:
        print(f"[{ended.code}]", flush=True)
"""


def test_a_kind_of_another_package_goes_through_every_verb_on_the_command_line(table, tmp_path):
    other = tmp_path / "other.table.json"
    other.write_text(json.dumps({"sky": "grey", "grass": "green"}), "utf-8")
    baseline, out = tmp_path / "baseline.json", tmp_path / "out"
    lines = [
        f"inspect {table}",
        f"bench {table} --key grass",
        f"compare {table} {other} --seconds 50ms",
        f"check {table} -b {baseline} --update --seconds 50ms",
        f"check {table} -b {baseline} --skip latency",
        f"check {other} -b {baseline} --skip latency",
        f"check {other} -b {baseline} --skip placement",
        f"optimize {table} -t cpu -o {out}",
        f"report {out}",
        f"run {table} sky,sea --otherwise nothing",
        f"run {table} grass --json",
        f"serve {table}",
        f"bench {table} --queue latest",
        "bench digits_detector --key grass",
        f"compare {table} digits_detector",
        "bench --help table",
    ]
    paths = os.pathsep.join((str(TOY), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        env=environment,
    )
    codes = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert codes == [f"[{code}]" for code in (0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0)], done.stdout
    assert (out / "small.table.json").is_file()
    for line in (
        "changed: sky",
        "error: no check of a table of answers named 'placement'",
        "sky: blue\nsea: nothing",
        "colours.table.json has its 2 keys in order",
        '{"key": "grass", "text": "green"}',
        "error: a table is not served",
        f"error: --queue is for a single model of frames, and {table} is a table of answers",
        "error: --key is for a table of answers, and digits_detector is a single model of frames",
        f"error: {table} is a table of answers, and digits_detector is a single model of frames",
        "--key TEXT  Of a table: the key that is asked.  [default: (the first)]",
    ):
        assert line in done.stdout, line


def test_a_kind_of_another_package_goes_through_every_verb_in_python(table, tmp_path):
    code = f"""
from click.testing import CliRunner

import edgeopt
table, baseline = {str(table)!r}, {str(tmp_path / "baseline.json")!r}
assert edgeopt.bench(table, key="sky").values["key"] == "sky"
compared = edgeopt.compare(table, table, seconds=0.05)
assert (compared.whole, compared.rows[1].quality.value) == ("answer", 1.0)
edgeopt.check(table, baseline=baseline, update=True, seconds=0.05)
assert edgeopt.check(table, baseline=baseline, skip=("latency",)).exit_code == 0
assert edgeopt.optimize(table, out={str(tmp_path / "made")!r}).exit_code == 0
facts = edgeopt.inspect(table)
assert (facts.keys, facts.as_json()["keys"]) == (2, 2)
ran = edgeopt.run(table, "sky,sea", otherwise="nothing")
assert ran.text == "bluenothing" and ran.as_json()["answers"][1] == {{"key": "sea", "text": "nothing"}}
answers = []
assert edgeopt.run(table, "sky", hear=answers.append).answers == () and answers[0].text == "blue"
for refused in (lambda: edgeopt.bench(table, queue="latest"), lambda: edgeopt.serve(table)):
    try:
        refused()
    except edgeopt.EdgeoptError as error:
        print(error.problem)
"""
    done = with_toy("-c", code)
    assert done.returncode == 0, done.stderr
    assert "is a table of answers" in done.stdout
    assert "a table is not served" in done.stdout


@pytest.mark.parametrize("folder", ["cli", "verbs"])
def test_no_command_and_no_verb_imports_a_kind(folder):
    names = {kind.name for kind in kinds()}
    for path in (PACKAGE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert not any(module.startswith(f"edgeopt.workloads.{name}") for name in names), f"{path}: {module}"


@pytest.mark.parametrize("folder", ["cli", "verbs"])
def test_no_command_and_no_verb_asks_for_the_name_of_a_kind(folder):
    """A difference between kinds is a field of `Kind`, or a file of its folder."""
    names = {kind.name for kind in kinds()}
    for path in (PACKAGE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_name = isinstance(node, ast.Constant) and node.value in names
            if is_name and path.name != "combine.py":  # there it is a section of recipes
                raise AssertionError(f"{path}:{node.lineno} names the kind {node.value}")


OLDER = {"optimization/report/result.py"}
"""Files that read what older versions wrote, whose forms differ by kind."""


def compared_kinds(text: str, names: set[str]) -> list[int]:
    """Return the lines on which a text of Python compares the kind of something with a kind.

    `x.kind == "frames"`, `x["kind"] in ("frames", "table")` and `x.kind == FrameResult.kind` are such comparisons;
    `x.kind == y.kind`, of two results, is none.
    """
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            lines += (
                [node.lineno] if any(map(_is_kind, sides)) and any(_names_kind(each, names) for each in sides) else []
            )
        if isinstance(node, ast.Match) and _is_kind(node.subject):
            lines.append(node.lineno)
    return lines


def _is_kind(node: ast.expr) -> bool:
    """Return whether an expression is the kind of something, by attribute, by its name, or by key."""
    if isinstance(node, ast.Attribute):
        return node.attr == "kind" or (node.attr == "name" and _is_kind(node.value))
    if isinstance(node, ast.Name):
        return node.id == "kind"
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "kind"


def _names_kind(node: ast.expr, names: set[str]) -> bool:
    """Return whether an expression stands for a certain kind: its name, several, or the kind of a class."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_names_kind(each, names) for each in node.elts)
    if isinstance(node, ast.Constant):
        return node.value in names
    is_class = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
    return is_class and node.attr in ("kind", "KIND")


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [
        ('x.kind == "frames"', True),
        ('"frames" != x.kind', True),
        ('x.kind.name in ("frames", "table")', True),
        ('values["kind"] == "pipeline"', True),
        ("report.kind == ModelReport.kind", True),
        ("report.kind == other.kind", False),
        ('sound.kind == "sound"', False),
        ("note.kind is NoteKind.INFO", False),
        ("match x.kind:\n    case _:\n        pass", True),
    ],
)
def test_comparisons_of_kinds_are_seen(line, is_seen):
    assert bool(compared_kinds(line, {kind.name for kind in kinds()})) == is_seen


def test_nothing_outside_the_kinds_asks_which_kind_something_is_of():
    names = {kind.name for kind in kinds()}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith("workloads/") and place not in OLDER:
            assert compared_kinds(path.read_text("utf-8"), names) == [], place


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("verb", verbs())
def test_a_kind_has_a_verb_or_refuses_it_in_one_line(kind, verb):
    if kind.has(verb):
        module = kind.module(verb)
        names = ("open_sides", "open_checked") if verb in SIDE_VERBS else ("work", "summarize")
        names = {"serve": ("hosted",), "bench": ("prepare", "view")}.get(verb, names)
        assert all(callable(getattr(module, name)) for name in names)
        assert verb not in kind.refusals
        return
    with pytest.raises(EdgeoptError) as refused:
        kind.module(verb)
    assert "\n" not in refused.value.problem
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("digits_detector", "frames"),
        ("no_such_file.onnx", "frames"),
        ("tiny_lm", "generation"),
        ("http://localhost:8000/v1", "endpoint"),
    ],
)
def test_a_source_is_of_one_kind(source, name):
    assert kind_of(source).name == name


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_a_verb_that_a_kind_never_heard_of_is_refused_in_one_line(kind):
    """A new verb needs no line in any kind, those of other packages neither."""
    assert not kind.has("profile")
    with pytest.raises(EdgeoptError, match=f"edgeopt profile does not take {kind.noun}"):
        kind.require_verb("profile")
    assert kind.part("profile") is None


@pytest.mark.parametrize("verb", verbs())
def test_a_flag_means_the_same_syntax_for_every_kind(verb):
    """Budgets alone are read by kind: a frame has a time, an answer has limits."""
    by_kind = {Syntax.FRAME_BUDGET, Syntax.ANSWER_BUDGET, Syntax.SERVER_BUDGET}
    seen: dict[str, set[Syntax]] = {}
    for kind in kinds():
        for _, each in options_of(kind.options[verb]) if verb in kind.options else ():
            seen.setdefault(each.flags[0], set()).add(each.syntax)
    mixed = {flag: found for flag, found in seen.items() if len(found - by_kind) + bool(found & by_kind) > 1}
    assert set(mixed) <= {"--prompt-tokens"}, mixed


@pytest.mark.parametrize("verb", verbs())
def test_type_checkers_see_every_option_of_every_kind(verb):
    listed = getattr(wishes, f"{verb.capitalize()}Wishes")
    named = {name for kind in kinds() if verb in kind.options for name, _ in options_of(kind.options[verb])}
    assert named <= {*get_type_hints(listed)}
    fields_of_all = {each.name for kind in kinds() if verb in kind.options for each in fields(kind.options[verb])}
    assert {*get_type_hints(listed)} <= fields_of_all


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["optimize", "digits_detector"], "Missing option '--target' / '-t'"),
        (["check", "digits_detector"], "Missing option '--baseline' / '-b'"),
        (["bench"], "Missing argument 'MODEL'; or --endpoint in its place"),
    ],
)
def test_what_has_no_default_is_asked_for(command, missing):
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1
    assert missing in done.output


def test_python_asks_too_for_what_has_no_default():
    with pytest.raises(EdgeoptError, match="check needs --baseline"):
        edgeopt.check("digits_detector")
