"""Networks of PyTorch become ONNX files that answer alike, or nothing is written."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixture_brief import briefly

from edgeopt.cli import cli
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import load_model

torch = pytest.importorskip("torch", reason="torch is not installed: an export needs it")
if not hasattr(torch, "export") or not importlib.util.find_spec("onnxscript"):
    pytest.skip("onnxscript is not installed: an export needs it", allow_module_level=True)

NETS = '''
import torch
from torch import nn

class Small(nn.Module):
    """A residual, a depthwise convolution, SiLU."""
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.deep, self.point = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)
    def forward(self, images):
        x = nn.functional.silu(self.norm(self.stem(images)))
        x = x + self.point(nn.functional.silu(self.deep(x)))
        return {"scores": self.head(x.mean((2, 3))), "map": x}

def small():
    torch.manual_seed(0)
    return Small()

class Scores(Small):
    def forward(self, images):
        return super().forward(images)["scores"]

GUARDS = []

def scores():
    from edgeopt.executors._guard import active_guard
    GUARDS.append(active_guard() is not None)
    torch.manual_seed(0)
    return Scores()

class Age(Scores):
    def forward(self, images):
        return super().forward(images).max()

class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)

class Branches(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

class Detector(Branches):
    pass

Detector.__module__ = "torchvision.models.detection.ssd"

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 4)
    def forward(self, ids):
        return self.table(ids)

class Blocks(nn.Module):
    """Attention within blocks of a picture: five axes, which torch.onnx does not translate."""
    def forward(self, x):
        attend = nn.functional.scaled_dot_product_attention
        near = torch.ones(16, 16, dtype=torch.bool).triu(-2)
        return {
            "plain": attend(x, x, x), "causal": attend(x, x, x, is_causal=True),
            "masked": attend(x, x, x, attn_mask=near), "added": attend(x, x, x, attn_mask=near * 0.5, scale=0.3),
            "grouped": attend(x, x[:, :, :2], x[:, :, :2], enable_gqa=True), "usual": attend(x[0], x[0], x[0]),
        }

number = 7
'''


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    (folder / "nets_of_export.py").write_text(NETS)
    return folder


@pytest.fixture(autouse=True)
def _in_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))


def ask(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["export", *words])


def small() -> object:
    import nets_of_export

    return nets_of_export.small().eval()


def test_a_module_answers_alike_and_two_exports_are_the_same_bytes(here: Path) -> None:
    words = ["torch:nets_of_export:small", "--input", "images=1x3x16x16"]
    shown = ask(*words, "-o", "one/model.onnx", "--json")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.output)
    told = told.get("data", told)
    assert [one["name"] for one in told["outputs"]] == ["scores", "map"]
    assert all(one["drift"]["sqnr_db"] > 100 and one["drift"]["cosine"] > 0.99999 for one in told["outputs"])
    assert ask(*words, "-o", "two/model.onnx").exit_code == 0
    one, two = ((here / name / "model.onnx").read_bytes() for name in ("one", "two"))
    assert one == two
    assert str(here).encode() not in one, "the paths of this machine's code are in the file"


def test_the_next_command_works(here: Path) -> None:
    words = ["torch:nets_of_export:scores", "--input", "images=1x3x16x16", "-o", "next/model.onnx"]
    shown = ask(*words)
    assert sys.modules["nets_of_export"].GUARDS[-1:] == [True], "what is exported is run in a child first"
    (line,) = [one for one in shown.output.splitlines() if one.startswith("next ")]
    assert line.split()[1:] == ["edgeopt", "recipe", "next/model.onnx"]
    written = CliRunner().invoke(cli, line.split()[2:])
    assert written.exit_code == 0, written.output
    assert (here / "next" / "recipe.toml").is_file()
    (line,) = [one for one in ask(*words).output.splitlines() if one.startswith("next ")]
    assert line.split()[1:] == ["edgeopt", "optimize", "next/model.onnx", "--target", "cpu"]


def test_a_network_that_ends_in_a_scalar_is_exported(here: Path) -> None:
    shown = ask("torch:nets_of_export:Age", "--input", "images=1x3x16x16", "-o", "age/model.onnx")
    assert shown.exit_code == 0, shown.output
    assert [str(one) for one in load_model(here / "age" / "model.onnx").outputs] == ["output float32 scalar"]


def test_a_free_axis_takes_other_sizes_and_one_that_cannot_be_free_is_refused(here: Path) -> None:
    words = ["torch:nets_of_export:small", "--input", "images=1x3x16x16", "-o", "free.onnx"]
    assert ask(*words, "--dynamic", "images=0,2,3").exit_code == 0
    model = load_model(here / "free.onnx")
    assert model.inputs[0].shape == ("batch", 3, "images_2", "images_3")
    session = EXECUTOR.open(model.data, SessionOptions())
    picture = np.random.default_rng(0).random((3, 3, 24, 20), np.float32)
    with torch.no_grad():
        theirs = small()(torch.from_numpy(picture))["scores"].numpy()
    np.testing.assert_allclose(session.run({"images": picture})["scores"], theirs, atol=1e-5)
    session.close()
    refused = ask(*words, "--dynamic", "images=1")
    assert refused.exit_code == 1
    assert "error: " in refused.output
    assert "--dynamic" in refused.output


def test_an_exported_program_and_a_torchscript_file_answer_alike(here: Path) -> None:
    given = torch.zeros(1, 3, 16, 16)
    torch.export.save(torch.export.export(small(), (given,)), here / "small.pt2")
    shown = ask("small.pt2", "-o", "program.onnx")
    assert shown.exit_code == 0, shown.output
    import nets_of_export

    torch.jit.trace(nets_of_export.scores().eval(), given).save(str(here / "small.pt"))
    shown = ask("small.pt", "--input", "images=1x3x16x16", "-o", "script.onnx")
    assert shown.exit_code == 0, shown.output
    picture = {"images": np.random.default_rng(0).random((1, 3, 16, 16), np.float32)}
    found = []
    for name, output in {"program": "scores", "script": "output"}.items():
        session = EXECUTOR.open(load_model(here / f"{name}.onnx").data, SessionOptions())
        found.append(session.run(picture)[output])
        session.close()
    np.testing.assert_allclose(*found, atol=1e-5)


def test_attention_of_five_axes_is_written_out(here: Path) -> None:
    shown = ask("torch:nets_of_export:Blocks", "--input", "x=1x3x4x16x8", "-o", "blocks.onnx", "--json")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.output)
    told = told.get("data", told)["outputs"]
    assert [one["name"] for one in told] == ["plain", "causal", "masked", "added", "grouped", "usual"]
    assert all(one["drift"]["sqnr_db"] > 100 for one in told)


def test_free_axes_of_a_program_have_names_that_a_reader_knows(here: Path) -> None:
    axes = {"images": {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}}
    given = torch.zeros(2, 3, 16, 32)
    torch.export.save(torch.export.export(small(), (given,), dynamic_shapes=axes), here / "free.pt2")
    shown = ask("free.pt2", "-o", "free.onnx")
    assert shown.exit_code == 0, shown.output
    assert load_model(here / "free.onnx").inputs[0].shape == ("batch", 3, "images_2", 32)


def test_whole_numbers_are_asked_too(here: Path) -> None:
    shown = ask("torch:nets_of_export:Words", "--input", "ids=1x5:int64", "-o", "words.onnx")
    assert shown.exit_code == 0, shown.output
    assert load_model(here / "words.onnx").inputs[0].dtype == "int64"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("torch:nets_of_export:small", "--input images="),
        ("torch:nets_of_export:nothing --input x=1", "has no 'nothing'"),
        ("torch:no_such_module:small --input x=1", "cannot be imported"),
        ("torch:nets_of_export:number --input x=1", "failed: TypeError"),
        ("torch:nets_of_export:small --input images=1x4x16x16", "expected input"),
        ("torch:nets_of_export:small --input images=1x3x16x16 --dynamic image=0", "did you mean 'images'"),
        ("torch:nets_of_export:small --input images=1x3x16x16 --dynamic images=4", "4 axes"),
        ("torch:nets_of_export:Random --input x=1x4", "answers differently"),
        ("torch:nets_of_export:Branches --input x=1x4", "cannot export"),
        ("torch:nets_of_export:Detector --input x=1x4", "dynamo=False"),
        ("torch:nets_of_export", "names nothing"),
        ("folder", "edgeopt export hf:folder"),
        ("hf:../no_such_folder", "there is no folder"),
        ("hf:/no/such/folder", "there is no folder"),
        ("keras.tflite", "tf2onnx"),
        ("weights.pt --input x=1x4", "no TorchScript file: torch.save wrote it"),
        ("saved", "tf2onnx"),
        ("text.pt2", "no exported program"),
        ("absent.pt2", "does not exist"),
        ("model.bin", "no source"),
    ],
)
def test_what_cannot_be_exported_is_one_error_and_leaves_no_file(here: Path, words: str, said: str) -> None:
    torch.save({"weight": torch.zeros(3)}, here / "weights.pt")
    (here / "text.pt2").write_text("no program")
    (here / "saved").mkdir(exist_ok=True)
    (here / "folder").mkdir(exist_ok=True)
    (here / "folder" / "config.json").write_text("{}")
    (here / "saved" / "saved_model.pb").write_bytes(b"")
    shown = ask(*words.split(), "-o", "refused.onnx")
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ")
    assert shown.output.count("error: ") == 1
    assert said in " ".join(shown.output.split())
    assert "  -> " in shown.output
    assert not (here / "refused.onnx").exists()


def test_optimize_exports_first_and_its_bundle_answers_as_the_module(here: Path) -> None:
    from edgeopt.runtime.runtime import Runtime

    words = ["optimize", "torch:nets_of_export:small", "--input", "images=1x3x16x16", "--target", "cpu"]
    picture = np.random.default_rng(1).random((4, 3, 16, 16)).astype(np.float32)
    np.savez(here / "in.npz", images=picture)
    with briefly():
        shown = CliRunner().invoke(
            cli,
            [
                *words,
                "-r",
                "tensors",
                "--calib",
                "in.npz",
                "--steps",
                "simplify,fuse",
                "--threads",
                "1",
                "-o",
                "out/small",
            ],
        )
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    with torch.no_grad():
        theirs = small()(torch.from_numpy(picture[:1]))["scores"].numpy()
    ours = Runtime.load(str(here / "out" / "small"), threads=1).predict({"images": picture[:1]})
    np.testing.assert_allclose(ours["scores"], theirs, atol=1e-3)
