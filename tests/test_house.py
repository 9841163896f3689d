"""The house as a test: imports point down, nothing goes round in circles, the runtime stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from fixture_brief import SHORTER

import edgeopt

ROOT = Path(__file__).parents[1]
PACKAGE = Path(edgeopt.__file__).parent
ORDER = [
    "cli",
    "verbs",
    "workloads",
    "optimization",
    "inspection",
    "running",
    "export",
    "steps",
    "passes",
    "measurement",
    "runtime",
    "report",
    "tasks",
    "executors",
    "recipes",
    "graph",
    "system",
    "errors",
]
"""A folder imports only from those after it; inside a folder everything may, but not in a circle."""
RANK = {folder: row for row, folder in enumerate(ORDER)}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "models")
HEAVY = {"torch", "onnx", "onnx_ir", "click", "rich", "jinja2", "pycocotools", "onnxslim", "rapidfuzz"}


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(("edgeopt", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@dataclass(frozen=True)
class Seen:
    """Facts of a file that the tests below ask for, read in one pass: each pass over all files takes three seconds."""

    imports: frozenset[str]
    """Modules of ours that it imports, also inside functions; `from edgeopt.x import part` too."""
    first: frozenset[str]
    """Modules of ours that run when it is imported: packages on the way too, beside those it lies in."""
    roots: frozenset[str]
    """Packages that it imports anywhere."""
    docstrings: tuple[str, ...]
    """The module's own first, empty where there is none."""
    lengths: tuple[int, ...]
    """Lines of each function."""
    classes: tuple[str, ...]
    reads_the_folder: tuple[int, ...]
    """Lines that start Python without `-P`."""
    empty_words: int
    """Names that are bound and say nothing of what they hold."""


@cache
def seen_in(path: Path) -> Seen:
    """Return what a file holds, without its tree."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(ast.walk(tree))
    return Seen(
        imports_of(path, nodes),
        imported_first(path, tree),
        roots_of(nodes),
        tuple(docstrings(nodes)),
        tuple(node.end_lineno - node.body[0].lineno + 1 for node in nodes if isinstance(node, ast.FunctionDef)),
        tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        tuple(lines_that_read_the_folder(nodes)),
        sum(binds_an_empty_word(node) for node in nodes),
    )


def imports_of(path: Path, nodes: Sequence[ast.AST]) -> frozenset[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgeopt":
            named = {f"{node.module}.{name.name}" for name in node.names}
            found |= {one if one in MODULES else node.module for one in named}
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name in MODULES}
    return frozenset(found - {module_of(path), "edgeopt"})


def roots_of(nodes: Sequence[ast.AST]) -> frozenset[str]:
    direct = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    whole = {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return frozenset(direct | whole)


def test_the_root_holds_the_folders_and_little_else():
    entries = {path.name for path in PACKAGE.iterdir() if path.name not in ("__pycache__", "models", "targets")}
    assert len(entries) <= 20, sorted(entries)
    assert {name.removesuffix(".py") for name in entries} <= {*ORDER, "__init__", "__main__", "py.typed"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_point_down(path):
    folder = folder_of(path)
    for other in seen_in(path).imports:
        row = other.split(".")[1]
        if folder in RANK and row != folder:
            assert RANK[row] > RANK[folder], f"{folder}/ must not import {other}"


def test_no_import_goes_in_a_circle():
    done: set[str] = set()
    for start in MODULES:
        walk(start, (), done)


def imported_first(path: Path, tree: ast.Module) -> frozenset[str]:
    own, named = module_of(path), set()
    for node in tree.body:  # those in a function, or for type checkers, are imported later or never
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgeopt":
            named |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        if isinstance(node, ast.Import):
            named |= {name.name for name in node.names}
    whole = {".".join(name.split(".")[:depth]) for name in named for depth in range(2, name.count(".") + 2)}
    lies_in = {own.rsplit(".", depth)[0] for depth in range(1, own.count("."))}
    return frozenset((whole & MODULES.keys()) - lies_in - {own})


def test_any_module_can_be_imported_first():
    """A package's `__init__` runs before its modules: where it imports what imports one of them, that is a circle."""
    done: set[str] = set()
    for start in MODULES:
        walk(start, (), done, "first")


def walk(name: str, path: tuple[str, ...], done: set[str], edges: str = "imports") -> None:
    assert name not in path, f"import cycle: {' -> '.join((*path[path.index(name) :], name))}"
    if name not in done:
        for other in getattr(seen_in(MODULES[name]), edges):
            if other in MODULES:
                walk(other, (*path, name), done, edges)
        done.add(name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is(path):
    text = seen_in(path).docstrings[0]
    assert text
    assert text.splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize(
    "module",
    [
        "runtime",
        "runtime.bundle",
        "runtime.decoding.opening",
        "runtime.pipelines",
        "executors.onnxruntime",
        "tasks.detection",
        "tasks.classification",
    ],
)
def test_what_a_device_imports_is_light(module):
    code = f"import sys, edgeopt.{module}; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ""


def test_telemetry_is_off_before_onnxruntime_is_imported():
    code = (
        "import os, sys, edgeopt.executors.onnxruntime\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["1", "False"]
    direct = [path for path in FILES if "onnxruntime" in seen_in(path).roots and folder_of(path) != "executors"]
    assert not direct, f"{direct} import onnxruntime past the executor, which switches telemetry off"


def test_files_stay_readable():
    long = {path.name: n for path in FILES if (n := len(path.read_text("utf-8").splitlines())) > 600}
    assert not long


def test_most_functions_are_short():
    lengths = [length for path in FILES for length in seen_in(path).lengths]
    assert sorted(lengths)[int(len(lengths) * 0.9)] < 30


def test_the_pages_name_every_folder_and_no_path_that_is_missing():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for folder in ORDER:
        assert f"{folder}/" in page or f'{folder}["' in page, f"docs/architecture.md does not name {folder}"
    for path in re.findall(r"`([\w./]+/[\w./]*)`", page + contributing):
        if "NAME" in path:
            continue
        places = [PACKAGE / path, ROOT / path, ROOT / "toolkit" / path]
        assert any(place.exists() for place in places) or re.search(r"\b(x|fuse_x)\.(py|toml)$|/x/", path), path


def test_no_two_files_of_tests_have_one_name():
    """Both would be one module: pytest collects neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("name", SHORTER)
def test_what_tests_make_shorter_is_there(name):
    module, _, constant = name.rpartition(".")
    assert hasattr(import_module(module), constant), f"tests/fixtures/fixture_brief.py names {name}"


def test_no_interpreter_is_started_that_reads_the_folder_it_starts_in():
    """Without `-P` a file `json.py` of the user's folder takes the place of Python's own."""
    for path in FILES:
        if "rknn" not in path.parts:  # Rockchip's Python may be older than `-P` (3.11)
            lines = seen_in(path).reads_the_folder
            assert not lines, f"{path}, lines {lines}"


def lines_that_read_the_folder(nodes: Sequence[ast.AST]) -> list[int]:
    """Return the lines of the commands, lists or tuples of words, that start Python without `-P`."""
    commands = [node for node in nodes if isinstance(node, ast.List | ast.Tuple)]
    words = [{word.value for word in node.elts if isinstance(word, ast.Constant)} for node in commands]
    return [
        node.lineno
        for node, each in zip(commands, words, strict=True)
        if each & {"-m", "-c"} and not each & {"-P", "sh"}
    ]


@pytest.mark.parametrize(
    ("command", "lines"),
    [("[p, '-m', 'pip']", [1]), ("(p, '-c', x)", [1]), ("(p, '-P', '-m', x)", []), ("['sh', '-c', x]", [])],
)
def test_a_command_may_be_a_list_or_a_tuple(command, lines):
    assert lines_that_read_the_folder([*ast.walk(ast.parse(command))]) == lines


EMPTY_WORDS = {"one", "found", "told", "asked", "given"}
"""Names that say nothing of what they hold."""


def test_names_say_what_they_hold():
    assert sum(seen_in(path).empty_words for path in FILES) <= 600


def binds_an_empty_word(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in EMPTY_WORDS
    return isinstance(node, ast.arg) and node.arg in EMPTY_WORDS


NO_NOUN = re.compile(r"(Of|What|That|Whose|(Along|At|By|For|From|In|On|To|Under|Until|With) (which|whom)) ")
"""Beginning of a docstring that neither names the thing nor is a sentence."""


def docstrings(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the docstrings of the module, its classes and functions, and each text directly below an assignment."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)  # a lambda's body is no list
            for before, after in pairwise(statements if isinstance(statements, list) else ()):
                match before, after:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                        yield text


def docstrings_in(path: Path) -> Sequence[str]:
    """Return the docstrings of a file; those of the package were read with all else that is looked at."""
    if PACKAGE in path.parents:
        return seen_in(path).docstrings
    return tuple(docstrings(list(ast.walk(ast.parse(path.read_text("utf-8"))))))


def is_ours(path: Path) -> bool:
    """Whether it is no package that somebody installed below the repository, nor what a build left."""
    folders = path.relative_to(ROOT).parts
    return not any(name in ("node_modules", "out", "build", "dist") or name.startswith(".venv") for name in folders)


WRITTEN = [
    FILES,
    *(sorted(filter(is_ours, (ROOT / name).rglob("*.py"))) for name in ("tests", "benchmarks", "docs", "examples")),
]
"""Files whose docstrings are read: the package, its tests and benchmarks, what makes pictures, and examples."""


@pytest.mark.parametrize("files", WRITTEN, ids=("toolkit", "tests", "benchmarks", "docs", "examples"))
def test_docstrings_are_sentences_or_nouns(files):
    texts = [(path, text) for path in files for text in docstrings_in(path)]
    wrong = [f"{path}: {text}" for path, text in texts if NO_NOUN.match(text.strip())]
    assert texts
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    x = 1\n    'What it is.'",
        "def f(self):\n    self.x: int = 1\n    'What it is.'",
        "x = 1\n'What it is.'",
    ],
)
def test_a_text_below_an_assignment_is_a_docstring(source):
    assert "What it is." in [*docstrings([*ast.walk(ast.parse(source))])]


def test_no_two_public_classes_have_one_name():
    files: dict[str, list[str]] = {}
    for path in FILES:
        for name in seen_in(path).classes:
            if not name.startswith("_"):
                files.setdefault(name, []).append(module_of(path))
    double = {name: places for name, places in files.items() if len(places) > 1}
    assert not double


def test_a_folder_has_twenty_entries_or_is_a_registry():
    registries = {"cli", "passes", "steps", "recipes/heads"}
    for folder in (PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__")):
        name = folder.relative_to(PACKAGE).as_posix()
        if name.split("/")[0] not in ("models", "targets") and name not in registries:
            shipped = {"__pycache__", "models", "targets"}  # data, which a wheel holds in the package
            count = sum(path.name not in shipped for path in folder.iterdir())
            assert count <= 21, name
