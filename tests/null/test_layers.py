"""The design as a test: imports point down, parts are found by their file name, the runtime stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import edgeopt

PACKAGE = Path(edgeopt.__file__).parent

LAYERS = [
    "__init__ __main__",
    "cli",
    "line merge bench_run compare_run check_run quantize_run quantized_view inspection checkup",
    "bench_report",
    "thread_choice alternatives npu_forms conclude bench_result",
    "qualcomm_forms rockchip_forms",
    "by_rule",
    "int8 bench_passes",
    "buffer_choice trial bench_round",
    "partition_picture rockchip device_form",
    "placement compile adapt simulate conversions replay measure",
    "counterparts accuracy_check misreading",
    "load_run bench_setup attention plan report workspace sheet baseline check_result side_by_side judge fresh_turns",
    "subject bench_options search turns rewrite quantization scored stored fresh_starts",
    "candidate benchmarking runtime devices apart evaluate",
    "opening",
    "passes executors tasks bundle answers canonical",
    "quantized_tensors integers",
    "graph multiply_adds recognise picture decoders raw_values drawing binding drivers tensorrt",
    "output_shapes metadata recipe_text tensor_outputs",
    "recipe target outcome boxes providers label_places",
    "model environment frames labels fingerprint drift metrics likeness states",
    "tables archives",
    "validity page",
    "text plugins assets extras files tensors subgraphs affine channels workers rknn_table match_tables",
    "errors",
]
RANK = {name: row for row, names in enumerate(LAYERS) for name in names.split()}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "models" not in path.relative_to(PACKAGE).parts)
HEAVY = {"torch", "onnx", "onnx_ir", "click", "rich", "jinja2", "pycocotools", "onnxslim"}


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a file imports, also inside functions; `from edgeopt import x` too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgeopt":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {name.name for name in node.names}
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("edgeopt.")}
    return {name for name in found if not name.startswith("__")} & RANK.keys()


def roots_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    direct = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return direct | {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_every_module_has_a_row():
    unknown = {module_of(path) for path in FILES} - RANK.keys()
    assert not unknown, f"give {unknown} a row in LAYERS"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_point_down(path):
    module = module_of(path)
    for other in imports_of(path) - {module}:
        assert RANK[other] > RANK[module], f"{module} must not import {other}"


def test_no_import_cycle_inside_a_package():
    for package in (path.parent for path in FILES if path.name == "__init__.py" and path.parent != PACKAGE):
        edges = {path.stem: leaf_imports(path, package) for path in package.glob("*.py")}
        seen: set[str] = set()
        for start in edges:
            walk(start, edges, (), seen)


def leaf_imports(path: Path, package: Path) -> set[str]:
    prefix = f"edgeopt.{package.relative_to(PACKAGE).as_posix().replace('/', '.')}."
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {module.removeprefix(prefix).split(".")[0] for module in modules if module.startswith(prefix)}


def walk(name: str, edges: dict[str, set[str]], path: tuple[str, ...], seen: set[str]) -> None:
    assert name not in path, f"import cycle: {' -> '.join((*path, name))}"
    if name not in seen:
        for other in edges.get(name, ()):
            walk(other, edges, (*path, name), seen)
        seen.add(name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is(path):
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert text
    assert text.splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize(
    "module", ["runtime", "bundle", "executors.onnxruntime", "tasks.detection", "tasks.classification"]
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
    direct = [path for path in FILES if path.stem != "onnxruntime" and "onnxruntime" in roots_of(path)]
    assert not direct, f"{direct} import onnxruntime past the executor, which switches telemetry off"


def test_files_stay_readable():
    long = {path.name: n for path in FILES if (n := len(path.read_text("utf-8").splitlines())) > 420}
    assert not long


def test_most_functions_are_short():
    lengths = [
        node.end_lineno - node.body[0].lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert sorted(lengths)[int(len(lengths) * 0.9)] < 30
