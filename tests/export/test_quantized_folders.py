"""Folders of Hugging Face in GPTQ, AWQ and compressed-tensors become decoders with the integers of their files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from small_decoders import VOCABULARY, random_weights, write_decoder, write_tensors, write_tokenizer
from stored_matrices import GROUP, WAYS, Stored

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.quantized import QuantizedFolder, open_weights
from edgeopt.export.decoder.reference import Reference
from edgeopt.export.export import export
from edgeopt.graph.model import Model, load_model
from edgeopt.steps.convert.kept_blocks import bits_of_blocks, in_floats, round_inputs
from edgeopt.steps.convert.last_logits import keep_last_logits

SIZES = {"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}


def write_quantized(
    folder: Path, way: str, kind: str = "llama", *, is_tied: bool = False, table: str = "F32"
) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a folder, its tables in floats of some kind; return it, and the floats that its tensors stand for."""
    config, mixed = WAYS[way]["config"], WAYS[way].get("mixed", False)
    write_decoder(folder, kind=kind, is_tied=is_tied, quantization_config=config, **SIZES)
    write_tokenizer(folder)
    floats, stored = random_weights(kind=kind, hidden=128, inner=160, is_tied=is_tied), dict[str, np.ndarray]()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in floats and table == "F16":
            floats[name] = floats[name].astype(np.float16).astype(np.float32)
        elif name in floats and table == "BF16":
            floats[name] = (floats[name].view(np.uint32) >> 16 << 16).view(np.float32)
    for i, (name, array) in enumerate(floats.items()):
        if not name.endswith("_proj.weight"):
            stored[name] = array
            continue
        matrix = Stored(
            *array.shape, config.get("bits", 4), i, mixed=mixed, symmetric=WAYS[way].get("symmetric", False)
        )
        if (
            mixed and ".self_attn." in name and name[-13] in "kv"
        ):  # act-order is that of the inputs, which q, k, v share
            matrix.group = Stored(128, 128, 4, i - 1 - (name[-13] == "v"), mixed=True, symmetric=False).group
        part = name.removesuffix(".weight")
        if config["quant_method"] == "awq":
            more = matrix.awq(part)
        elif config["quant_method"] == "gptq":
            more = matrix.gptq(part, less=int("checkpoint_format" not in config))
        else:
            more = matrix.compressed(part, with_zero="symmetric" not in WAYS[way])
        stored |= more
        floats[name] = matrix.real
    dtypes = dict[str, str]()
    for name, array in stored.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight") and table != "F32":
            stored[name] = array.astype(np.float16) if table == "F16" else (array.view(np.uint32) >> 16).astype("<u2")
            dtypes[name] = table
            continue
        dtypes[name] = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64"}[str(array.dtype)]
    write_tensors(folder / "model.safetensors", stored, dtypes)
    return folder, floats


def logits(model: Model, tokens: list[int]) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions())
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True)
    made = np.concatenate([decoder.run(tokens[:30]), *(decoder.run([token]) for token in tokens[30:])])
    session.close()
    return made


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_those_of_the_file_and_their_graph_answers_as_floats_do(way, tmp_path):
    folder, floats = write_quantized(tmp_path, way)
    weights = open_weights(folder)
    for name, array in floats.items():
        assert name in weights
        np.testing.assert_array_equal(weights.read(name, array.shape), array)
        packed = weights.packed(name, array.shape)
        if name.endswith("_proj.weight"):
            np.testing.assert_array_equal(packed.real(), array)
        else:
            assert packed is None
    config = read_configuration(folder)
    model = write_llama(config, weights, "small")
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    np.testing.assert_allclose(logits(model, tokens), Reference(config, weights).logits(tokens), atol=2e-4)
    assert sum(node.op_type == "MatMulNBits" for node in model.proto.graph.node) == 2 * 5  # q, k and v are one
    np.testing.assert_allclose(logits(in_floats(model).model, tokens), logits(model, tokens), atol=2e-4)
    assert not any(node.op_type == "MatMulNBits" for node in in_floats(model).model.proto.graph.node)


@pytest.mark.parametrize("way", ["gptq act-order", "awq"])
def test_logits_are_those_of_transformers_with_the_weights_in_floats(way, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder, floats = write_quantized(tmp_path / "quantized", way)
    plain = write_decoder(tmp_path / "plain", **SIZES)
    write_tensors(plain / "model.safetensors", floats)
    module = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    with torch.no_grad():
        expected = module(torch.tensor([tokens])).logits[0].numpy()
    model = write_llama(read_configuration(folder), open_weights(folder), "small")
    np.testing.assert_allclose(logits(model, tokens), expected, atol=2e-4)


def test_biases_and_matrices_of_different_orders_stand_apart(tmp_path):
    folder, floats = write_quantized(tmp_path, "gptq act-order", kind="qwen2")
    weights = open_weights(folder)
    config = read_configuration(folder)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    expected = Reference(config, weights).logits(tokens)
    np.testing.assert_allclose(logits(write_llama(config, weights, "small"), tokens), expected, atol=2e-4)
    assert "model.layers.0.self_attn.q_proj.bias" in floats


def test_integers_in_the_file_are_those_of_the_checkpoint(tmp_path):
    folder, _ = write_quantized(tmp_path / "source", "awq")
    result = export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert "10 in awq" not in str(result.notes)  # every matrix counts, joined or not
    assert "14 in awq of 4 bits" in str(result.notes[0])
    proto = onnx.load(tmp_path / "made" / "model.onnx")
    constants = {constant.name: numpy_helper.to_array(constant) for constant in proto.graph.initializer}
    down = constants["layer.1.down.weight"]
    matrix = open_weights(folder).packed("model.layers.1.mlp.down_proj.weight", (128, 160))
    np.testing.assert_array_equal(down & 15, matrix.blocks.integers[..., 0::2])
    np.testing.assert_array_equal(down >> 4, matrix.blocks.integers[..., 1::2])
    files = (tmp_path / "made" / "model.onnx").stat().st_size, (folder / "model.safetensors").stat().st_size
    tables = sum(constants[name].nbytes for name in ("cos_cache", "sin_cache"))
    assert files[0] - tables < 1.15 * files[1]


@pytest.mark.parametrize(("table", "is_tied"), [("F16", False), ("F16", True), ("BF16", False), ("BF16", True)])
def test_tables_in_16_bits_stay_so(table, is_tied, tmp_path):
    folder, floats = write_quantized(tmp_path / "source", "awq", is_tied=is_tied, table=table)
    result = export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert result.outputs[0].drift.sqnr_db > 90
    model = load_model(tmp_path / "made" / "model.onnx")
    wide = [stored.name for stored in model.proto.graph.initializer if stored.data_type == onnx.TensorProto.FLOAT]
    assert not {"embedding", "lm_head"} & set(wide)
    assert sum(VOCABULARY in stored.dims for stored in model.proto.graph.initializer) == 2 - is_tied
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    expected = logits(model, tokens)
    for made in (in_floats(model).model, keep_last_logits(model).model):
        assert made is not model
        np.testing.assert_allclose(logits(made, tokens), expected, atol=2e-4)
    made = in_floats(model).model.proto.graph
    constants = {stored.name: numpy_helper.to_array(stored) for stored in made.initializer}
    products = [node for node in made.node if node.op_type == "MatMul"]
    assert len(products) == 11
    assert all(node.input[1] in constants for node in products)
    head = next(node for node in products if "logits" in node.output)
    name = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
    np.testing.assert_array_equal(constants[head.input[1]].T, floats[name])


def test_the_command_exports_and_the_model_writes(tmp_path):
    folder, _ = write_quantized(tmp_path / "source", "gptq act-order")
    out = str(tmp_path / "made" / "model.onnx")
    done = CliRunner().invoke(cli, ["export", f"hf:{folder}", "-o", out])
    assert done.exit_code == 0, done.output
    assert "14 in gptq of 4 bits" in " ".join(done.output.split())
    done = CliRunner().invoke(cli, ["run", out, "--prompt", "the", "--output-tokens", "5", "--json"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 5


def test_rounding_inputs_leaves_the_matrices(tmp_path):
    folder, _ = write_quantized(tmp_path, "awq")
    model = write_llama(read_configuration(folder), open_weights(folder), "small")
    rounded = round_inputs(model)
    assert rounded.changes == {"products of rounded inputs": 10}
    assert [*rounded.model.proto.graph.initializer] == [*model.proto.graph.initializer]
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    exact, rough = logits(model, tokens), logits(rounded.model, tokens)
    assert 1e-4 < np.abs(exact - rough).mean() < 0.1


def test_products_that_do_not_say_their_bits_have_four(tmp_path):
    folder, _ = write_quantized(tmp_path, "awq")
    model = write_llama(read_configuration(folder), open_weights(folder), "small")
    expected, count = in_floats(model).model.data, bits_of_blocks(model)
    for node in model.proto.graph.node:
        for place in reversed([i for i, stored in enumerate(node.attribute) if stored.name == "bits"]):
            del node.attribute[place]
    silent = Model(model.proto, "small")
    assert bits_of_blocks(silent) == count == 4
    assert round_inputs(silent).changes == {"products of rounded inputs": 10}
    assert in_floats(silent).model.data == expected


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "gptq", "bits": 3}, "gptq in 3 bits"),
        ({"quant_method": "gptq", "bits": 2}, "gptq in 2 bits"),
        ({"quant_method": "awq", "bits": 8}, "awq in 8 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version = gemv"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format = marlin"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "format = float-quantized"),
        ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}, "with transform_config"),
        ({"quant_method": "bitsandbytes"}, "quant_method = bitsandbytes"),
        ({"quant_method": "gptq", "bits": "four"}, "holds no number"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "groups of 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "fits no groups"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, ""),
        ([1], "is no table"),
    ],
)
def test_a_scheme_that_is_not_read_is_refused_in_a_line(config, told, tmp_path):
    folder, _ = write_quantized(tmp_path / "source", "gptq")
    values = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(values | {"quantization_config": config}), "utf-8")
    if not told:  # bits are those of the shapes
        assert "of 4 bits" in str(export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx").notes)
        return
    with pytest.raises(EdgeoptError, match=told):
        export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert not (tmp_path / "made" / "model.onnx").exists()


@pytest.mark.parametrize(
    ("name", "way", "table"),
    [
        ("quantize_config.json", "gptq", {"bits": 4, "group_size": GROUP, "desc_act": False}),
        ("quant_config.json", "awq", {"w_bit": 4, "q_group_size": GROUP, "version": "GEMM", "zero_point": True}),
    ],
)
def test_a_scheme_that_stands_in_a_file_of_its_own_is_read(name, way, table, tmp_path):
    folder, floats = write_quantized(tmp_path, way)
    values = json.loads((folder / "config.json").read_text("utf-8"))
    del values["quantization_config"]
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    (folder / name).write_text(json.dumps(table), "utf-8")
    array = floats["model.layers.0.mlp.down_proj.weight"]
    packed = open_weights(folder).packed("model.layers.0.mlp.down_proj.weight", array.shape)
    np.testing.assert_array_equal(packed.real(), array)
    (folder / name).write_text("{", "utf-8")
    with pytest.raises(EdgeoptError, match="is no JSON"):
        read_configuration(folder)


PART = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("way", "name", "array", "told"),
    [
        ("gptq", "scales", None, "up_proj.scales is not there"),
        ("gptq", "qzeros", None, "lacks the weights"),
        ("gptq", "qzeros", np.zeros((4, 19), np.int32), "I32 of 4x19, not integers of 4x20"),
        ("gptq", "qweight", np.zeros((16, 161), np.int32), "16x161, which is no matrix of 160 rows of 128"),
        ("gptq", "qweight", np.zeros((12, 160), np.int32), "integers of 3 bits"),
        ("gptq", "qweight", np.zeros((16, 160), np.float32), "is F32 of 16x160, not integers"),
        ("gptq", "qweight", np.zeros((16, 160), np.int64), "int64, not of 32 bits"),
        ("gptq", "scales", np.full((4, 160), np.nan, np.float32), "holds NaN"),
        ("gptq", "scales", np.ones((5, 160), np.float32), "scales is 5x160, which fits no groups"),
        ("gptq", "g_idx", np.full(128, 4, np.int32), "names groups that are not there"),
        ("gptq", "g_idx", np.full(128, -1, np.int32), "names groups that are not there"),
        ("gptq", "g_idx", np.zeros(127, np.int32), "I32 of 127, not integers of 128"),
        ("awq", "qweight", np.zeros((127, 20), np.int32), "127x20, which is no matrix"),
        ("awq", "qweight", np.zeros((0, 0), np.int32), "0x0, which is no matrix"),
        ("compressed-tensors", "weight_scale", np.ones((160, 3), np.float32), "160x3, which fits no groups"),
        ("compressed-tensors", "weight_packed", np.zeros((160, 8), np.int32), "integers of 2 bits"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_one_line(way, name, array, told, tmp_path):
    folder, _ = write_quantized(tmp_path / "source", way)
    rewrite(folder, {f"{PART}.{name}": array})
    with pytest.raises(EdgeoptError, match=told) as raised:
        export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert "\n" not in raised.value.problem
    assert not (tmp_path / "made" / "model.onnx").exists()


def rewrite(folder: Path, changes: dict[str, np.ndarray | None]) -> None:
    """Write the tensors of a folder anew, some exchanged or left out."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    types = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "I64": "<i8"}
    tensors = dict[str, np.ndarray]()
    for name, place in head.items():
        start, end = place["data_offsets"]
        array = np.frombuffer(data[8 + length + start : 8 + length + end], types[place["dtype"]])
        tensors[name] = array.reshape(place["shape"])
    tensors |= {name: array for name, array in changes.items() if array is not None}
    for name, array in changes.items():
        if array is None:
            del tensors[name]
    names = {np.dtype(form): dtype for dtype, form in types.items()}
    write_tensors(file, tensors, {name: names[array.dtype] for name, array in tensors.items()})


def test_groups_that_no_blocks_hold_become_floats_and_are_counted(tmp_path):
    folder, _ = write_quantized(tmp_path / "source", "gptq")
    group = np.arange(128, dtype=np.int32) // GROUP
    group[0] = 3  # 31 inputs of one group, 33 of another
    rewrite(folder, {f"{PART}.g_idx": group})
    weights = open_weights(folder)
    assert isinstance(weights, QuantizedFolder)
    result = export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert "13 in gptq of 4 bits" in result.notes[0].detail
    assert "1 in gptq of 4 bits, model.layers.1.mlp.up_proj.weight" in result.notes[1].detail
    assert result.outputs[0].drift.sqnr_db > 90
