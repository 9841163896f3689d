"""Decoders whose floats are above what a protobuf holds go through files, and answer as those in one file do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from small_decoders import VOCABULARY, write_decoder, write_tokenizer
from small_mixtures import HYBRIDS, KINDS, MAMBAS, write_by_transformers

from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError
from edgeopt.export.decoder.tensors_file import is_large
from edgeopt.export.export import export
from edgeopt.graph.model import load_model
from edgeopt.runtime.decoding.opening import open_language_model

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 40).tolist()
ALL = {**KINDS, **HYBRIDS, **MAMBAS}


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what takes so many bytes for 2 GB, and 4 KiB for what goes to a file."""

    def set_limits(most_bytes: int) -> None:
        monkeypatch.setattr("edgeopt.export.decoder.tensors_file.LARGE_BYTES", most_bytes // 2)
        for name in ("_TWO_GB", "LEAST_FILE_BYTES"):
            monkeypatch.setattr(f"edgeopt.graph.model.{name}", most_bytes)
        for name in ("large_constants", "outside_weights"):
            monkeypatch.setattr(f"edgeopt.graph.files.{name}.LEAST_BYTES", 4096)

    return set_limits


def decoder_folder(folder: Path, kind: str) -> Path:
    if kind in ALL:
        config, more = ALL[kind]
        write_by_transformers(folder, config, **more)
    else:
        write_decoder(folder, kind=kind, is_tied=kind == "qwen3")
        write_tokenizer(folder)
    return folder


def logits_of_file(file: Path) -> np.ndarray:
    with open_language_model(file, 1)[0] as model:
        return np.asarray(model.logits(TOKENS))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen2_moe", "lfm2", "qwen3_5", "mamba2"])
def test_a_decoder_goes_through_files_and_answers_the_same(kind, tmp_path, lower):
    folder = decoder_folder(tmp_path / "net", kind)
    plain = export(f"hf:{folder}", out=tmp_path / "plain" / "model.onnx")
    lower(100_000)
    assert plain.file.stat().st_size > 100_000
    outside = export(f"hf:{folder}", out=tmp_path / "outside" / "model.onnx")
    names = [{path.name for path in made.file.parent.iterdir()} for made in (plain, outside)]
    assert names[1] - names[0] == {"model.onnx.data"}, "nothing else is left there"
    assert outside.file.stat().st_size < 100_000
    assert outside.outputs[0].drift.sqnr_db > 80
    assert outside.size_bytes == pytest.approx(plain.size_bytes, rel=0.1)
    assert load_model(outside.file).is_outside
    np.testing.assert_array_equal(logits_of_file(plain.file), logits_of_file(outside.file))
    done = CliRunner().invoke(cli, ["run", str(outside.file), "--prompt", "the", "--output-tokens", "3", "--json"])
    assert done.exit_code == 0, done.output


def test_what_turns_out_to_be_smaller_is_one_file_with_the_same_bytes(tmp_path, lower):
    """Twice the bytes of floats of 32 bits are above the limit, the graph is not."""
    folder = decoder_folder(tmp_path / "net", "llama")
    plain = export(f"hf:{folder}", out=tmp_path / "plain" / "model.onnx").file
    lower(plain.stat().st_size + 4096)
    assert is_large(folder)
    made = export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx").file
    assert {path.name for path in made.parent.iterdir()} == {path.name for path in plain.parent.iterdir()}
    assert made.read_bytes() == plain.read_bytes()


def test_a_file_of_llama_cpp_in_halves_goes_through_files_in_halves(tmp_path, lower):
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'edgeopt[gguf]'")
    from test_gguf import write_gguf

    answers = []
    write_gguf(tmp_path / "net.gguf", "qwen2", gguf.GGMLQuantizationType.BF16, side=128)
    for name in ("plain", "outside"):
        if name == "outside":
            lower(100_000)
        file = export(str(tmp_path / "net.gguf"), out=tmp_path / name / "model.onnx").file
        answers.append(logits_of_file(file))
    np.testing.assert_array_equal(*answers)
    stored = onnx.load(str(tmp_path / "outside" / "model.onnx"), load_external_data=False).graph.initializer
    assert any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in stored)


def test_a_damaged_folder_leaves_no_files_of_weights(tmp_path, lower):
    folder = decoder_folder(tmp_path / "net", "llama")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}), "utf-8")
    lower(100_000)
    with pytest.raises(InvalidFileError, match=r"lacks the weights model\.layers\.2"):
        export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file()]


def test_optimize_makes_a_form_of_weights_that_lie_outside(tmp_path, lower):
    folder = decoder_folder(tmp_path / "net", "llama")
    lower(100_000)
    (tmp_path / "text.txt").write_text("the cat sat on the mat and looked at the rain. " * 120, "utf-8")
    told = ["optimize", f"hf:{folder}", "-t", "cpu", "--eval", str(tmp_path / "text.txt"), "--time-limit", "30"]
    done = CliRunner().invoke(cli, [*told, "--threads", "1", "-o", str(tmp_path / "out")])
    assert done.exit_code in (0, 4), done.output
    assert (tmp_path / "net-export" / "model.onnx.data").is_file()
    assert (tmp_path / "out" / "bundle" / "manifest.json").is_file(), done.output
