"""Decoders with a mixture of experts are written from their weights, and answer as transformers does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_decoders import VOCABULARY, write_decoder, write_tensors, write_tokenizer
from small_mixtures import KINDS, logits_of, write_by_transformers

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.export.decoder.gguf.writing import write_gguf_file
from edgeopt.export.decoder.graph_weights import read_graph_weights
from edgeopt.export.decoder.llama import read_configuration
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.export.export import export
from edgeopt.graph.model import load_model
from edgeopt.recipes.texts.generation import GenerationTable
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 40).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_answers_as_transformers_does(kind, tmp_path):
    config, more = KINDS[kind]
    module = write_by_transformers(tmp_path / "source", config, **more)
    made = export(f"hf:{tmp_path / 'source'}", out=tmp_path / "made" / "model.onnx")
    assert made.outputs[0].drift.sqnr_db > 80
    assert made.framework.startswith("NumPy"), "it needs no torch"
    count = sum(node.op_type == "MoE" for node in load_model(made.file).proto.graph.node)
    assert count == (1 if kind == "every second layer" else 2)
    expected = logits_of(module, TOKENS)
    model, recipe = open_language_model(made.file, 1)
    with model:
        assert recipe.generation.context == 128
        whole = model.logits(TOKENS)
        decoder = model.decoder(len(TOKENS))
        parts = [decoder.run(TOKENS[:17]), decoder.run(TOKENS[17:30]), *(decoder.run([one]) for one in TOKENS[30:])]
        written = [piece.token for piece in model.generate(TOKENS[:9], AnswerOptions(10, ends=False))]
    scale = np.abs(expected).max()
    assert np.abs(whole - expected).max() < 1e-4 * scale
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-4 * scale
    text = list(TOKENS[:9])
    for _ in written:
        text.append(int(logits_of(module, text)[-1].argmax()))
    assert written == text[9:]


def test_experts_in_one_tensor_are_read_as_those_in_single_ones(tmp_path):
    from safetensors.numpy import load_file

    config, more = KINDS["qwen3_moe"]
    write_by_transformers(tmp_path / "source", config, **more)
    export(f"hf:{tmp_path / 'source'}", out=tmp_path / "single" / "model.onnx")
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    for layer in range(2):
        place = f"model.layers.{layer}.mlp.experts"
        parts = [
            np.stack([tensors.pop(f"{place}.{i}.{part}_proj.weight") for i in range(6)])
            for part in ("gate", "up", "down")
        ]
        tensors[f"{place}.gate_up_proj"] = np.concatenate(parts[:2], axis=1)
        tensors[f"{place}.down_proj"] = parts[2]
    write_tensors(tmp_path / "source" / "model.safetensors", tensors)
    export(f"hf:{tmp_path / 'source'}", out=tmp_path / "joined" / "model.onnx")
    single, joined = (load_model(tmp_path / name / "model.onnx").data for name in ("single", "joined"))
    assert single == joined


def test_a_mixture_is_not_made_a_file_of_llama_cpp(tmp_path):
    config, more = KINDS["mixtral"]
    write_by_transformers(tmp_path / "source", config, **more)
    made = export(f"hf:{tmp_path / 'source'}", out=tmp_path / "made" / "model.onnx")
    with pytest.raises(UnsupportedError, match="mixture of experts"):
        read_graph_weights(made.file, GenerationTable(128))
    pytest.importorskip("gguf")
    source, tokenizer = tmp_path / "source", tmp_path / "source" / "tokenizer.json"
    with pytest.raises(UnsupportedError, match="a mixture of experts, which is not written as GGUF"):
        write_gguf_file(
            read_configuration(source), TensorFiles(source), tokenizer, tmp_path / "made.gguf", "f32", "small"
        )


def test_a_mixture_that_is_none_is_refused(tmp_path):
    folder = write_decoder(tmp_path, kind="mixtral", num_local_experts=4, num_experts_per_tok=5)
    write_tokenizer(folder)
    with pytest.raises(InvalidFileError, match="5 of 4 experts"):
        export(f"hf:{folder}", out=tmp_path / "model.onnx")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    del config["num_local_experts"]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(InvalidFileError, match="lacks a size"):
        export(f"hf:{folder}", out=tmp_path / "model.onnx")
