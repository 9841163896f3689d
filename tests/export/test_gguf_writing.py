"""A written GGUF file is read back as the same weights, from folders of Hugging Face and from our own graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_decoders import random_weights, write_decoder

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.export.decoder.gguf.file import GgufFile
from edgeopt.export.decoder.gguf.writing import FORMS, write_gguf_file
from edgeopt.export.decoder.graph_weights import read_graph_weights
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.graph.model import load_model, save_model
from edgeopt.recipes.texts.generation import GenerationTable
from edgeopt.steps.convert.weight_only import make_weight_only

pytest.importorskip("gguf", reason="the package gguf is not installed: pip install 'edgeopt[gguf]'")
SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
STEP = {"f32": 0.0, "f16": 1e-3, "q8_0": 0.01, "q4_0": 0.14}
"""Error of a weight, as a share of the largest of its row."""


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_file_holds_the_weights_of_its_folder(kind: str, tmp_path: Path):
    folder = write_decoder(tmp_path / "hf", kind=kind)
    config = read_configuration(folder)
    write_gguf_file(config, TensorFiles(folder), SHIPPED / "tokenizer.json", tmp_path / "a.gguf", "f32", "small")
    written = GgufFile(tmp_path / "a.gguf")
    for name, expected in random_weights(kind=kind).items():
        np.testing.assert_array_equal(written.read(name, expected.shape), expected, err_msg=name)
    told = written.config
    assert (told.heads, told.kv_heads, told.head, told.inner) == (4, 2, 16, 80)
    assert told.positions == config.positions
    assert told.epsilon == pytest.approx(config.epsilon)
    assert told.end == config.end


@pytest.mark.parametrize("form", FORMS)
def test_each_form_keeps_weights_as_near_as_its_bits_allow(form: str, tmp_path: Path):
    folder = write_decoder(tmp_path / "hf")
    write_gguf_file(
        read_configuration(folder), TensorFiles(folder), SHIPPED / "tokenizer.json", tmp_path / "a.gguf", form, "small"
    )
    written = GgufFile(tmp_path / "a.gguf")
    for name, expected in random_weights().items():
        error = np.abs(written.read(name, expected.shape) - expected).max()
        assert error <= STEP[form] * np.abs(expected).max(), name
    wide = "model.layers.0.self_attn.o_proj.weight"
    if form == "q4_0":
        assert np.abs(written.read(wide, (64, 64)) - random_weights()[wide]).max() > 0


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_our_own_graph_tells_the_weights_that_it_was_written_of(kind: str, tmp_path: Path):
    folder = write_decoder(tmp_path / "hf", kind=kind, rope_theta=500000.0)
    config = read_configuration(folder)
    save_model(write_llama(config, TensorFiles(folder), "small"), tmp_path / "model.onnx")
    graph = read_graph_weights(tmp_path / "model.onnx", GenerationTable(512, config.end, config.begin))
    for name, expected in random_weights(kind=kind).items():
        np.testing.assert_array_equal(graph.read(name, expected.shape), expected, err_msg=name)
    assert graph.config.positions == config.positions
    assert graph.config.kind == kind
    assert not graph.config.is_tied
    with pytest.raises(InvalidFileError, match="not 3x3"):
        graph.read("model.norm.weight", (3, 3))


def test_a_graph_in_blocks_is_refused(tmp_path: Path):
    made = make_weight_only(load_model(SHIPPED / "model.onnx"), 4).model
    save_model(made, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="in float"):
        read_graph_weights(tmp_path / "model.onnx", GenerationTable(1024))


def test_scaled_positions_are_refused_and_not_dropped(tmp_path: Path):
    folder = write_decoder(tmp_path / "hf", rope_scaling={"rope_type": "linear", "factor": 2.0})
    config, weights = read_configuration(folder), TensorFiles(folder)
    with pytest.raises(UnsupportedError, match="linear"):
        write_gguf_file(config, weights, SHIPPED / "tokenizer.json", tmp_path / "a.gguf", "f32", "small")
    save_model(write_llama(config, weights, "small"), tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="positions"):
        read_graph_weights(tmp_path / "model.onnx", GenerationTable(512))
