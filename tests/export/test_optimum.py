"""A folder of `optimum-cli export onnx` goes through, and optimum loads what is made of it.

optimum pins transformers, so it lives in an environment of its own (`pip install 'optimum-onnx[onnxruntime]' pillow`;
without Pillow it writes no preprocessor_config.json): EDGEOPT_OPTIMUM names its Python.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_brief import briefly
from made_texts import moods

from edgeopt.cli import cli
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.runtime import Runtime

PYTHON = os.environ.get("EDGEOPT_OPTIMUM", sys.executable if importlib.util.find_spec("optimum") else "")
if not PYTHON:
    pytest.skip("optimum is not installed, and EDGEOPT_OPTIMUM names no Python that has it", allow_module_level=True)
PROGRAM = Path(__file__).parents[1] / "fixtures" / "fixture_optimum.py"
TEXT = {
    "input_ids": np.random.default_rng(0).integers(4, 50, (1, 16)),
    "attention_mask": np.ones((1, 16), np.int64),
    "token_type_ids": np.zeros((1, 16), np.int64),
}
PICTURE = {"pixel_values": np.random.default_rng(0).normal(0, 1, (1, 3, 64, 64)).astype("float32")}
SAMPLES = {
    "vit": {"pixel_values": np.random.default_rng(0).normal(0, 1, (1, 3, 32, 32)).astype("float32")},
    "bert": {
        "input_ids": np.random.default_rng(0).integers(0, 50, (1, 16)),
        "attention_mask": np.ones((1, 16), np.int64),
        "token_type_ids": np.zeros((1, 16), np.int64),
    },
}
LOADERS = {"vit": "ORTModelForImageClassification", "bert": "ORTModelForFeatureExtraction"}
PLAIN = {
    "moods": ("ORTModelForSequenceClassification", "text-classification", TEXT),
    "tags": ("ORTModelForTokenClassification", "token-classification", TEXT),
    "masked": ("ORTModelForFeatureExtraction", "feature-extraction", TEXT),
    "segformer": ("ORTModelForSemanticSegmentation", "semantic-segmentation", PICTURE),
    "detr": ("ORTModelForCustomTasks", "object-detection", PICTURE),
}
"""Kind to optimum's class, its task, and what is asked. `simplify` and `fuse` alone are taken: answers are equal."""


def of_optimum(*words: str | Path) -> None:
    done = subprocess.run([PYTHON, PROGRAM, *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("optimum")
    of_optimum("export", made, *SAMPLES, "whisper")
    return made


def test_what_optimum_exports_is_optimized_and_optimum_loads_the_bundles(folder: Path) -> None:
    asked = list[str | Path]()
    for kind, samples in SAMPLES.items():
        np.savez(folder / f"{kind}.npz", **samples)
        calib = "synthetic" if "pixel_values" in samples else str(folder / f"{kind}.npz")
        words = [str(folder / "onnx" / kind), "--target", "cpu", "--calib", calib, "--skip", "prune"]
        words += ["-o", str(folder / "out" / kind)]
        with briefly():
            shown = CliRunner().invoke(cli, ["optimize", *words])
        assert shown.exit_code in (0, 3, 4), shown.output
        assert "int8" in shown.output
        assert f"{LOADERS[kind]}.from_pretrained" in (folder / "out" / kind / "report.json").read_text()
        bundle = folder / "out" / kind / "bundle"
        assert {"config.json", "model.onnx"} <= {one.name for one in bundle.iterdir()}
        asked += [bundle, LOADERS[kind], folder / "hf" / kind, folder / f"{kind}.npz", folder / f"{kind}-out.npz"]
    of_optimum("load", *asked)
    for kind, samples in SAMPLES.items():
        answers = np.load(folder / f"{kind}-out.npz")
        runtime = Runtime.load(folder / "out" / kind / "bundle")
        ours = next(iter(runtime.session.run(samples).values()))
        runtime.close()
        np.testing.assert_allclose(answers["loaded"], ours, rtol=1e-2, atol=1e-2)
        theirs = answers["framework"]
        cosine = float(np.vdot(ours, theirs) / np.linalg.norm(ours) / np.linalg.norm(theirs))
        assert cosine > (0.999 if read_bundle(folder / "out" / kind).artefacts[0].precision == "fp32" else 0.9)


def test_bundles_of_each_task_load_in_its_class_of_optimum(tmp_path: Path) -> None:
    of_optimum("export", tmp_path, *PLAIN)
    asked = list[str | Path]()
    for kind, (loader, task, samples) in PLAIN.items():
        np.savez(tmp_path / f"{kind}.npz", **samples)
        words = [str(tmp_path / "onnx" / kind), "--target", "cpu", "--steps", "simplify,fuse", "--threads", "1"]
        shown = CliRunner().invoke(cli, ["inspect", words[0]])
        assert f"told by the configurations in {words[0]}: {task}" in " ".join(shown.output.split())
        calib = str(_texts(tmp_path)) if samples is TEXT else "synthetic"
        with briefly():
            shown = CliRunner().invoke(cli, ["optimize", *words, "--calib", calib, "-o", str(tmp_path / "out" / kind)])
        assert shown.exit_code in (0, 2, 3, 4), shown.output
        assert f"{loader}.from_pretrained" in (tmp_path / "out" / kind / "report.json").read_text()
        bundle = tmp_path / "out" / kind / "bundle"
        asked += [bundle, loader, tmp_path / "hf" / kind, tmp_path / f"{kind}.npz", tmp_path / f"{kind}-out.npz"]
    of_optimum("load", *asked)
    for kind in PLAIN:
        answers = np.load(tmp_path / f"{kind}-out.npz")
        np.testing.assert_allclose(answers["loaded"], answers["framework"], rtol=1e-3, atol=1e-5)


def _texts(folder: Path) -> Path:
    (folder / "calib.txt").write_text("".join(f"{text}\n" for text, _ in moods(8, seed=1)))
    return folder / "calib.txt"


def test_an_encoder_with_its_decoder_is_told_from_one_model(folder: Path) -> None:
    shown = CliRunner().invoke(cli, ["inspect", str(folder / "onnx" / "whisper")])
    assert shown.exit_code == 1
    assert "decoder_model.onnx, encoder_model.onnx" in " ".join(shown.output.split())
    shown = CliRunner().invoke(cli, ["inspect", str(folder / "onnx" / "whisper" / "encoder_model.onnx")])
    assert "whisper: told by the configurations" in " ".join(shown.output.split())
