"""Names from files reach neither the terminal nor a page as what drives them."""

from __future__ import annotations

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from edgeopt.cli import cli
from edgeopt.report.formats.markdown import escape
from edgeopt.system.text import printable

ESCAPE = "\x1b[31m"
EVIL = f"{ESCAPE}[/d]<script>\u202e|x"
RECIPE = (
    'name = "own"\ntask = "classification"\ndescription = "d"\nlicense = "l"\nsource = "s"\nlabels = "labels.txt"\n'
    '[postprocess]\ndecoder = "logits"\n[evaluation]\nmetric = "top1"\n'
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model whose nodes, tensors and metadata, class names and pictures bear names that drive a terminal."""
    folder = tmp_path_factory.mktemp("names") / "[/d]"
    (folder / "pictures").mkdir(parents=True)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 1, 1], np.linspace(-1, 1, 9).tolist())
    nodes = [
        helper.make_node("Conv", [f"x{EVIL}", "w"], ["a"], f"conv{EVIL}"),
        helper.make_node("GlobalAveragePool", ["a"], ["b"], EVIL),
        helper.make_node("Flatten", ["b"], [f"y{EVIL}"], f"{EVIL}\n"),
    ]
    inputs = [helper.make_tensor_value_info(f"x{EVIL}", TensorProto.FLOAT, [1, 3, 8, 8])]
    outputs = [helper.make_tensor_value_info(f"y{EVIL}", TensorProto.FLOAT, [1, 3])]
    graph = helper.make_graph(nodes, f"g{EVIL}", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {f"key{EVIL}": EVIL})
    onnx.save(model, str(folder / "m[31m].onnx"))
    (folder / "own.toml").write_text(RECIPE)
    (folder / "labels.txt").write_text(f"cat{EVIL}\ndog{ESCAPE}\n[/red]\n")
    for i in range(3):
        picture = np.random.default_rng(i).integers(0, 256, (12, 12, 3), np.uint8)
        ok, data = cv2.imencode(".png", picture)
        assert ok
        (folder / "pictures" / f"{i}{ESCAPE}[b].png").write_bytes(data.tobytes())
    return folder


def quiet(shown: str) -> None:
    driving = [one for one in shown if printable(one) != one and one != "\n"]
    assert not driving, shown


def ran(place, *arguments: object, exit_codes: tuple[int, ...] = (0,)) -> str:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in exit_codes, result.output
    quiet(result.output)
    return result.output


def test_no_command_lets_a_name_drive_the_terminal(place, tmp_path):
    model, recipe, pictures = place / "m[31m].onnx", place / "own.toml", place / "pictures"
    given = ("--recipe", recipe)
    assert "\\x1b[31m" in ran(place, "inspect", model, *given, "--target", "cpu", "--nodes")
    out = tmp_path / "out"
    steps = ("-t", "cpu", "--calib", pictures, "--steps", "simplify", "--threads", 1, "-o", out)
    ran(place, "optimize", model, *given, *steps, "--dry-run")
    ran(place, "optimize", model, *given, *steps)
    ran(place, "report", out)
    assert "\\x1b[31m" in ran(place, "run", out, pictures, "--save", tmp_path / "drawn")
    assert len(list((tmp_path / "drawn").iterdir())) == 3
    quick = ("--seconds", 0.3, "--threads", 1, "--source", pictures)
    ran(place, "compare", model, model, *given, *quick, "-o", tmp_path / "compared")
    ran(place, "bench", model, *given, *quick, "--frames", 50, "-o", tmp_path / "bench", exit_codes=(0, 3, 4))
    ran(place, "inspect", model, "--recipe", EVIL, exit_codes=(1,))
    ran(place, "bench", place / "none[/d]", exit_codes=(1,))
    for page in tmp_path.rglob("*.md"):
        text = page.read_text("utf-8")
        quiet(text)
        assert "<script" not in text


def test_markdown_shows_text_and_makes_nothing_of_it():
    assert escape("<script>a|b[c](d)![e][f]") == "&lt;script>a\\|b[c]\\(d)![e]\\[f]"
    assert escape("0.98 [0.95, 1.01]") == "0.98 [0.95, 1.01]"
    assert printable("\x1b[31m\u202e\ud800\r\x07ü") == "\\x1b[31m\\u202e\\ud800\\r\\x07ü"
