"""The README and the docs cannot lie: their commands and examples are run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest
from click.testing import CliRunner

import edgeopt
from edgeopt import tasks
from edgeopt.cli import cli
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.recipes.metrics import metrics_of
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.system.declared.registry import names
from edgeopt.system.declared.target import Target
from edgeopt.system.toml import parse_table
from edgeopt.tasks import find_task

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from api_reference import GROUPS, api_page  # noqa: E402
from update_docs import API, DOCS, commands_page  # noqa: E402

README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def test_the_page_of_commands_shows_the_current_help():
    assert DOCS.read_text("utf-8") == commands_page(), "run: python tests/update_docs.py"


def test_the_api_reference_shows_the_current_docstrings():
    page = api_page()
    assert API.read_text("utf-8") == page, "run: python tests/update_docs.py"
    assert "|  |\n" not in page, "a field or a property says nothing of itself"


def test_the_api_reference_has_every_public_name_and_the_answer_of_every_task():
    listed = {name for _, names in GROUPS.values() for name in names}
    assert {f"edgeopt:{name}" for name in edgeopt.__all__ if name != "__version__"} <= listed
    answers = {name.partition(":")[2] for name in GROUPS["Answers"][1]}
    returned = {get_type_hints(find_task(name).postprocess)["return"] for name in names(tasks) if name != "tensors"}
    shown = {each.__name__ for each in returned if hasattr(each, "__name__")}
    assert shown <= answers


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for page in PAGES[1:]:
        if page.name != "README.md":
            assert f"({page.name}" in index, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8")):
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name} leads to {path}"
        if anchor and place.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", place.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}
            assert anchor in anchors, f"{page.name} leads to #{anchor} of {place.name}"


SHORTER = {"optimize": ["--steps", "simplify"], "check": ["--seconds", "0.3", "--skip", "memory,cold_start"]}
"""Options by which the tutorial's commands do less in a test."""


def test_the_tutorial_works_from_the_file_to_the_app(tmp_path, monkeypatch, brief):
    import cv2
    import numpy as np

    (tmp_path / "models").symlink_to(find_recipe("digits_detector").folder.parent)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tutorial.md"
    for line in "".join(blocks(page, "sh")).splitlines():
        if not line.startswith("edgeopt "):
            subprocess.run(["sh", "-c", line], check=True)
            for picture in sorted((tmp_path / "pictures").glob("*.jpg"))[8:]:
                picture.unlink()  # a tenth of them makes no other test
            continue
        words = shlex.split(line)[1:]
        shown = CliRunner().invoke(cli, [*words, *SHORTER.get(words[0], [])])
        assert shown.exit_code in (0, 3, 4), shown.output  # which one is the machine's affair
        if words[:2] == ["recipe", "detector.onnx"] and "--recipe" in words:
            assert "RGB, 0 to 1 (as written)" in shown.output
            assert "8 0.95 at" in shown.output
            assert "class 8" not in shown.output
    assert list((tmp_path / "seen").iterdir())
    assert (tmp_path / "baseline.json").exists()
    frame = cv2.imread("frame.jpg")
    writer = cv2.VideoWriter("street.mp4", cv2.VideoWriter.fourcc(*"mp4v"), 60, frame.shape[1::-1])
    for _ in range(6):
        writer.write(frame)
    writer.release()
    (app,) = blocks(page, "python")
    done = subprocess.run([sys.executable, "-c", app], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "frames answered" in done.stdout
    assert np.any(cv2.imread("last.jpg") != frame)


def test_the_quick_start_and_the_tests_are_one_line_each():
    first, second, *_ = blocks(ROOT / "README.md", "sh")
    assert first.count("\n") == second.count("\n") == 1
    assert "edgeopt optimize digits_detector --target cpu" in first
    assert "pytest" in second


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_edgeopt_command_in_the_docs_parses(page):
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if re.search(r"(^|/)edgeopt ", line)]
    for line in lines:
        arguments = re.split(r"\S*edgeopt ", line)[-1].split()
        name, options = arguments[0], [one.split("=")[0] for one in arguments if one.startswith("-")]
        shown = CliRunner().invoke(cli, [name, "--help", "all"]).output
        for option in options:
            assert re.search(rf"{re.escape(option)}\b", shown), f"{page.name}: {option} is no option of {name}"


@pytest.mark.parametrize("command", ["targets", "models", "doctor", "targets --json", "models --json", "doctor --json"])
def test_the_listing_commands_run(command):
    shown = CliRunner().invoke(cli, command.split())
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) >= 5


def test_inspect_shows_what_the_shipped_model_is():
    shown = CliRunner().invoke(cli, ["inspect", "digits_detector", "--target", "cpu"])
    assert shown.exit_code == 0
    assert "all 155 nodes on the CPU" in shown.output
    assert "BatchNormalization" in shown.output


def test_the_recipes_in_the_docs_are_valid():
    pages = sorted((ROOT / "docs").glob("recipes*.md"), key=lambda page: page.name != "recipes.md")
    values = [tomllib.loads(text) for page in pages for text in blocks(page, "toml")]
    parts = [one for one in values if "name" not in one]
    helmets, *others = (parse_table(Recipe, one, "docs/recipes.md") for one in values if one not in parts)
    for part in parts:  # what a page shows of a recipe must fit into a whole one
        parse_table(Recipe, next(one for one in values if one.get("task") == "tensors") | part, "docs/recipes.md")
    assert helmets.input.fixed == {"batch": 1}
    assert {one.task: one.least_agreement for one in others}["tensors"] == 0.99
    assert all(one.evaluation.metric in metrics_of(one.task) for one in (helmets, *others))
    shown = {(one.task, one.kind) for one in (helmets, *others)}
    assert {task for task, _ in shown} >= {*names(tasks)}, "each task has an example"
    assert {("embedding", "picture"), ("embedding", "text"), ("classification", "sound")} <= shown


def test_the_target_in_the_docs_is_valid():
    values = tomllib.loads(blocks(ROOT / "docs" / "targets.md", "toml")[0])
    assert parse_table(Target, values, "docs/targets.md").threads == 2


def test_the_python_page_runs(tmp_path):
    page = "\n".join(blocks(ROOT / "docs" / "python.md", "python"))
    fixtures = str(ROOT / "tests" / "fixtures")
    first = f"import sys; sys.path.append({fixtures!r})\nfrom fixture_brief import briefly, ending_after\n"
    picture = sorted((find_recipe("digits_detector").folder / "calib").glob("*.jpg"))[1]
    (tmp_path / "frame.jpg").write_bytes(picture.read_bytes())
    code = f"{first}with briefly(), ending_after(2):\n    exec({page!r}, {{'__name__': '__main__'}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(f"{one.name}: " in done.stdout for one in Verdict)  # which one is the machine's affair
    assert (tmp_path / "boxes.jpg").exists()
    assert "8 0.95 [" in done.stdout


def test_the_readmes_and_the_runtimes_examples_run_on_the_quick_starts_output(tmp_path, brief):
    import cv2

    from edgeopt.optimization.optimize import optimize

    picture = sorted((find_recipe("digits_detector").folder / "calib").glob("*.jpg"))[0]
    cv2.imwrite(str(tmp_path / "frame.jpg"), cv2.imread(str(picture)))
    optimize(
        "digits_detector", target="cpu", out=tmp_path / "out" / "digits_detector-cpu", steps=("simplify",), threads=1
    )
    code = "\n".join((blocks(ROOT / "README.md", "python")[0], *blocks(ROOT / "docs" / "runtime.md", "python")))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dependency_table_names_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.split(r"[><=;\[ ]", one)[0] for one in project["dependencies"]]
    table = README[README.index("| package |") :]
    missing = [name for name in names if name not in table]
    assert not missing
