from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from small_decoders import VOCABULARY, random_weights, write_decoder, write_tensors

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.positions import Positions
from edgeopt.export.decoder.reference import Reference
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.export.export import export

FULL = "full_attention"
KINDS = {
    "llama": {},
    "a head of its own shape": {"is_tied": True},
    "mistral": {"kind": "mistral", "sliding_window": 7},
    "qwen2": {"kind": "qwen2"},
    "qwen3": {"kind": "qwen3"},
}


@pytest.mark.parametrize("told", KINDS)
def test_logits_equal_those_of_plain_numpy_token_by_token_and_at_once(told, tmp_path):
    folder = write_decoder(tmp_path, **KINDS[told])
    config, weights = read_configuration(folder), TensorFiles(folder)
    model = write_llama(config, weights, "small")
    session = EXECUTOR.open(model.data, SessionOptions())
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    expected = Reference(config, weights).logits(tokens)
    np.testing.assert_allclose(decoder.run(tokens), expected, atol=2e-4)
    decoder.rewind(0)
    one_by_one = np.concatenate([decoder.run([token]) for token in tokens])
    np.testing.assert_allclose(one_by_one, expected, atol=2e-4)


def test_two_writings_give_the_same_bytes(tmp_path):
    folder = write_decoder(tmp_path)
    made = [write_llama(read_configuration(folder), TensorFiles(folder), "small").data for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("F16", lambda array: array.astype(np.float16)),
        ("BF16", lambda array: (array.view(np.uint32) >> 16).astype(np.uint16)),
        ("F64", lambda array: array.astype(np.float64)),
    ],
)
def test_weights_in_other_floats_are_read(dtype, stored, tmp_path):
    array = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    write_tensors(tmp_path / "model.safetensors", {"w": stored(array)}, {"w": dtype})
    np.testing.assert_allclose(TensorFiles(tmp_path).read("w", (3, 4)), array, rtol=1e-2)


def test_weights_in_several_files_are_found_by_their_index(tmp_path):
    weights = random_weights()
    names = sorted(weights)
    for i, part in enumerate((names[:5], names[5:])):
        write_tensors(tmp_path / f"model-{i}.safetensors", {name: weights[name] for name in part})
    places = {name: f"model-{int(name not in names[:5])}.safetensors" for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), "utf-8")
    files = TensorFiles(tmp_path)
    for name in names:
        np.testing.assert_array_equal(files.read(name, weights[name].shape), weights[name])


@pytest.mark.parametrize("change", ["cut off", "replaced", "written again", "removed"])
def test_weights_that_change_while_they_are_read_are_one_line(change, tmp_path):
    write_tensors(file := tmp_path / "model.safetensors", {"v": np.ones(4, np.float32), "w": np.ones(4, np.float32)})
    files = TensorFiles(tmp_path)
    np.testing.assert_array_equal(files.read("v", (4,)), 1)
    if change == "cut off":
        os.truncate(file, file.stat().st_size - 8)
    elif change == "replaced":
        write_tensors(tmp_path / "other", {"v": np.zeros(4, np.float32), "u": np.zeros(4, np.float32)})
        (tmp_path / "other").replace(file)
    elif change == "written again":
        write_tensors(file, {"v": np.zeros(4, np.float32), "w": np.zeros(4, np.float32)})
        os.utime(file, ns=(0, 0))
    else:
        file.unlink()
    told = "cannot be read any more" if change == "removed" else "changed while it was read"
    with pytest.raises(InvalidFileError, match=rf"model\.safetensors {told}") as raised:
        files.read("w", (4,))
    assert "\n" not in raised.value.problem


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("F8_E4M3", "F8_E4M3, a float of 8 bits, which is not read here"),
        ("F6_E2M3", "F6_E2M3, a float of 6 bits, which is not read here"),
        ("F4", "F4, a float of 4 bits, which is not read here"),
        ("BOOL", "BOOL, which is no float"),
    ],
)
def test_weights_of_other_types_are_called_what_they_are(dtype, told, tmp_path):
    head = {"w": {"dtype": dtype, "shape": [3, 3], "data_offsets": [0, 9]}}  # an odd count of 4 and 6 bits too
    text = json.dumps(head).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(9))
    with pytest.raises(InvalidFileError, match=f"w is {told}"):
        TensorFiles(tmp_path).read("w", (3, 3))


_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (_POINTER, "is a pointer of Git LFS, not the file itself"),
        (b"\n<!DOCTYPE html><html></html>", "is a web page, not the file itself"),
        (None, "is no regular file"),
    ],
)
@pytest.mark.parametrize("name", ["shard.safetensors", "model.safetensors.index.json"])
def test_what_lies_in_the_place_of_weights_is_called_what_it_is(data, told, name, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "shard.safetensors"}}))
    if data is None:
        (tmp_path / "shard.safetensors").mkdir()
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidFileError, match=told):
        TensorFiles(tmp_path)


def test_weights_outside_the_folder_are_not_read(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../w.safetensors"}}))
    with pytest.raises(InvalidFileError, match="no file of its folder"):
        TensorFiles(tmp_path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: file.write_bytes(b"\x01"), "no safetensors file"),
        (lambda file: file.write_bytes(b"\xff" * 64), "no safetensors file"),
        (lambda file: file.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000), "nests too deeply"),
        (lambda file: file.write_bytes((14).to_bytes(8, "little") + b'{"a": [1e400]}'), "is damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:-100]), "beyond the file"),
        (lambda file: file.unlink(), "holds no model.safetensors"),
    ],
)
def test_damaged_weights_are_one_line(damage, told, tmp_path):
    folder = write_decoder(tmp_path)
    damage(folder / "model.safetensors")
    with pytest.raises(InvalidFileError, match=told):
        TensorFiles(folder)


def test_weights_that_are_missing_or_of_another_shape_are_named(tmp_path):
    folder = write_decoder(tmp_path)
    weights = random_weights()
    del weights["model.layers.1.mlp.up_proj.weight"]
    write_tensors(folder / "model.safetensors", weights)
    with pytest.raises(InvalidFileError, match=r"lacks the weights model\.layers\.1\.mlp\.up_proj\.weight"):
        write_llama(read_configuration(folder), TensorFiles(folder), "small")
    write_decoder(folder, intermediate_size=81)
    write_tensors(folder / "model.safetensors", random_weights())
    with pytest.raises(InvalidFileError, match=r"gate_proj\.weight is 80x64, config\.json says 81x64"):
        write_llama(read_configuration(folder), TensorFiles(folder), "small")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    write_tensors(tmp_path / "model.safetensors", {"w": np.array([1, np.nan], np.float32)})
    with pytest.raises(InvalidFileError, match="w holds NaN"):
        TensorFiles(tmp_path).read("w", (2,))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": 8.0, "mscale": 0.7}}, "rope_scaling"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"head_dim": 12}, "heads of 12 numbers"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "gpt2"}, "a gpt2 is not written here"),
    ],
)
def test_what_the_graph_does_not_compute_is_refused(more, told, tmp_path):
    with pytest.raises(UnsupportedError, match=told):
        read_configuration(write_decoder(tmp_path, **more))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize(
    "more", [{}, {"use_sliding_window": False}, {"max_window_layers": 28}, {"layer_types": [FULL]}]
)
def test_a_window_that_no_layer_of_a_qwen_has_hides_no_token(kind, more, tmp_path):
    if "max_window_layers" in more and kind in ("qwen2", "qwen3"):  # all layers are before the first that has one
        more = more | {"use_sliding_window": True}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16}
    folder = write_decoder(tmp_path, kind=kind, sliding_window=7, **experts, **more)
    assert read_configuration(folder).window == 0


@pytest.mark.parametrize("more", [{"max_window_layers": 0}, {"layer_types": ["sliding_attention"] * 2}])
def test_a_window_that_all_layers_of_a_qwen_have_is_kept(more, tmp_path):
    folder = write_decoder(tmp_path, kind="qwen2", sliding_window=7, use_sliding_window=True, **more)
    assert read_configuration(folder).window == 7


@pytest.mark.parametrize(("kind", "least"), [("qwen2", 1), ("qwen2_moe", 2)])
def test_a_window_in_some_layers_is_refused(kind, least, tmp_path):
    folder = write_decoder(tmp_path, kind=kind, sliding_window=7, use_sliding_window=True, max_window_layers=least)
    with pytest.raises(UnsupportedError, match="some of 2 layers"):
        read_configuration(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.pop("hidden_size"),
        lambda values: values.update(num_key_value_heads=3),
        lambda values: values.update(num_attention_heads=0),
        lambda values: values.update(vocab_size=-1),
        lambda values: values.update(rms_norm_eps="no"),
        lambda values: values.update(vocab_size=1e400),
        lambda values: values.update(max_position_embeddings=1 << 31),
        lambda values: values.update(partial_rotary_factor="half"),
        lambda values: values.update(layer_types=7),
        lambda values: values.update(model_type="qwen3_moe", num_hidden_layers=10**12, num_experts=4),
        lambda values: values.update(model_type="lfm2", num_hidden_layers=10**12),
    ],
)
def test_a_damaged_configuration_is_one_line(damage, tmp_path):
    folder = write_decoder(tmp_path)
    values = json.loads((folder / "config.json").read_text("utf-8"))
    values.pop("head_dim")
    damage(values)
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidFileError, match=r"config\.json"):
        read_configuration(folder)


def test_no_configuration_is_one_line(tmp_path: Path):
    with pytest.raises(InvalidFileError, match="is no configuration"):
        read_configuration(tmp_path)


SCALED = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALED)
def test_angles_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {"rope_type": kind, **SCALED[kind]}
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=512, rope_theta=500000.0, rope_scaling=scaling
    )
    count = 512
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, count, 64), torch.arange(count)[None])
    ours = Positions.read(config.to_dict(), 512).tables(32, count)
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        np.testing.assert_allclose(mine, theirs[0, :, :16].numpy(), atol=5e-5)


LIKE_TRANSFORMERS = {
    "llama3": ("llama", {"rope_scaling": {"rope_type": "llama3", **SCALED["llama3"]}}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "a window that is not used": ("qwen2", {"sliding_window": 7}),
    "a window behind all layers": ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}),
    "a window in all layers": ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}),
}


@pytest.mark.parametrize("way", LIKE_TRANSFORMERS)
def test_logits_are_those_of_transformers(way, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    kind, more = LIKE_TRANSFORMERS[way]
    folder = write_decoder(tmp_path, kind=kind, **more)
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40).tolist()
    with torch.no_grad():
        expected = module(torch.tensor([tokens])).logits[0].numpy()
    config, weights = read_configuration(folder), TensorFiles(folder)
    session = EXECUTOR.open(write_llama(config, weights, "small").data, SessionOptions())
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True)
    found = np.concatenate([decoder.run(tokens[:30]), *(decoder.run([one]) for one in tokens[30:])])
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_a_file_of_llama_cpp_asks_for_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "net.gguf").write_bytes(b"GGUF")
    with pytest.raises(EdgeoptError, match="gguf") as raised:
        export(str(tmp_path / "net.gguf"), out=tmp_path / "model.onnx")
    assert "edgeopt[gguf]" in str(raised.value.remedy)
