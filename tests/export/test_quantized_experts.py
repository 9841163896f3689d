"""Experts of quantized checkpoints stay the integers that they are, in one op a layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_decoders import VOCABULARY, write_tensors
from small_mixtures import KINDS, logits_of, write_by_transformers
from stored_matrices import WAYS, Stored

from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.quantized import open_weights
from edgeopt.export.export import export
from edgeopt.graph.facts.mixtures import DOWN, UP
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.kept_blocks import bits_of_blocks, bytes_in_floats, in_floats, round_inputs

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 40).tolist()


def count(model: Model, op: str) -> int:
    return sum(node.op_type == op for node in model.proto.graph.node)


def write_mixture(folder: Path, kind: str, way: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Write a mixture with its experts in integers; return transformers' module and the floats that they are."""
    from safetensors.numpy import load_file

    torch = pytest.importorskip("torch")
    name, more = KINDS[kind]
    module = write_by_transformers(folder, name, **more)
    config, mixed = WAYS[way]["config"], WAYS[way].get("mixed", False)
    stored, floats = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for i, (tensor, array) in enumerate(load_file(folder / "model.safetensors").items()):
        part = tensor.removesuffix(".weight")
        if ".experts." not in tensor:
            stored[tensor] = array
            continue
        symmetric = WAYS[way].get("symmetric", False)
        matrix = Stored(*array.shape, config.get("bits", 4), i, mixed=mixed, symmetric=symmetric)
        if config["quant_method"] == "awq":
            stored |= matrix.awq(part)
        elif config["quant_method"] == "gptq":
            stored |= matrix.gptq(part, less=int("checkpoint_format" not in config))
        else:
            stored |= matrix.compressed(part, with_zero="symmetric" not in WAYS[way])
        floats[tensor] = matrix.real
    dtypes = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64"}
    write_tensors(
        folder / "model.safetensors", stored, {name: dtypes[str(array.dtype)] for name, array in stored.items()}
    )
    values = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(values | {"quantization_config": config}), "utf-8")
    with torch.no_grad():
        for layer, block in enumerate(module.model.layers):
            mlp = block.mlp if hasattr(block, "mlp") else block.block_sparse_moe
            names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
            place = f"model.layers.{layer}.{'block_sparse_moe' if kind == 'mixtral' else 'mlp'}.experts"
            for i in range(len(mlp.experts.gate_up_proj)):
                gate, up, down = (torch.tensor(floats[f"{place}.{i}.{each}.weight"]) for each in names)
                mlp.experts.gate_up_proj[i] = torch.cat([gate, up])
                mlp.experts.down_proj[i] = down
    return module, floats


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("mixtral", "gptq"),
        ("mixtral", "gptq symmetric"),
        ("qwen3_moe", "awq"),
        ("qwen2_moe", "compressed-tensors"),
        ("qwen3_moe", "gptq of 8 bits"),
    ],
)
def test_experts_stay_the_integers_of_the_file_and_answer_as_transformers_does(kind, way, tmp_path):
    module, floats = write_mixture(tmp_path / "source", kind, way)
    model = write_llama(read_configuration(tmp_path / "source"), open_weights(tmp_path / "source"), "small")
    assert (count(model, "QMoE"), count(model, "MoE")) == (2, 0)
    graph = Graph.from_model(in_floats(model).model)
    for layer, node in enumerate(graph.nodes("MoE", domain="com.microsoft")):
        made = [graph.constant(node.inputs[place]) for place in (UP, DOWN)]
        mine = {name: array for name, array in floats.items() if f".layers.{layer}." in name}
        gate, down = ("w1", "w2") if kind == "mixtral" else ("gate_proj", "down_proj")
        for i in range(len(made[0])):
            np.testing.assert_array_equal(made[0][i, 0::2], next(v for k, v in mine.items() if f".{i}.{gate}." in k))
            np.testing.assert_array_equal(made[1][i], next(v for k, v in mine.items() if f".{i}.{down}." in k))
    exported = export(f"hf:{tmp_path / 'source'}", out=tmp_path / "made" / "model.onnx")
    expected = logits_of(module, TOKENS)
    with open_language_model(exported.file, 1)[0] as opened:
        whole = opened.logits(TOKENS)
        parts = opened.decoder(len(TOKENS))
        single = np.concatenate([parts.run(TOKENS[:30]), *(parts.run([token]) for token in TOKENS[30:])])
        assert opened.generate(TOKENS[:9], AnswerOptions(4, ends=False)).text() is not None
    least = 25 if way == "gptq of 8 bits" else 80  # whose inputs are rounded to 8 bits too
    for found in (whole, single):
        noise = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert -20 * np.log10(noise) > least


def test_experts_whose_inputs_stand_in_orders_of_their_own_are_floats(tmp_path):
    write_mixture(tmp_path, "mixtral", "gptq act-order")
    model = write_llama(read_configuration(tmp_path), open_weights(tmp_path), "small")
    assert (count(model, "QMoE"), count(model, "MoE")) == (0, 2)


def test_inputs_of_experts_are_rounded_and_their_weights_count(tmp_path):
    write_mixture(tmp_path, "mixtral", "awq")
    model = write_llama(read_configuration(tmp_path), open_weights(tmp_path), "small")
    assert bits_of_blocks(model) == 4
    floats = in_floats(model).model
    assert count(floats, "MoE") == 2
    assert bytes_in_floats(model) == pytest.approx(floats.size_bytes, rel=0.1)
    rounded = round_inputs(model).model
    assert [
        attribute.i for node in rounded.proto.graph.node if node.op_type == "QMoE"
        for attribute in node.attribute if attribute.name == "accuracy_level"
    ] == [4, 4]  # fmt: skip
