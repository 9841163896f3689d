"""Decoders whose layers are not all attention are written from their weights, and answer as transformers does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_decoders import VOCABULARY
from small_mixtures import HYBRIDS, logits_of, write_by_transformers

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors.onnxruntime.state_parts import state_parts
from edgeopt.export.decoder.gguf.writing import write_gguf_file
from edgeopt.export.decoder.graph_weights import read_graph_weights
from edgeopt.export.decoder.hybrid import in_words_of_llama, read_hybrid
from edgeopt.export.decoder.llama import read_configuration
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.export.export import export
from edgeopt.graph.model import load_model
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.recipes.texts.generation import GenerationTable
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.last_logits import keep_last_logits

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 60).tolist()


@pytest.fixture(scope="module", params=HYBRIDS)
def made(request, tmp_path_factory):
    config, more = HYBRIDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    module = write_by_transformers(folder / "source", config, **more)
    return module, folder, export(f"hf:{folder / 'source'}", out=folder / "made" / "model.onnx")


def test_a_hybrid_answers_as_transformers_does(made):
    module, _, exported = made
    assert exported.outputs[0].drift.sqnr_db > 80
    expected = logits_of(module, TOKENS)
    with open_language_model(exported.file, 1)[0] as model:
        whole = model.logits(TOKENS)
        decoder = model.decoder(len(TOKENS))
        parts = [decoder.run(TOKENS[:33]), decoder.run(TOKENS[33:50]), *(decoder.run([one]) for one in TOKENS[50:])]
    scale = np.abs(expected).max()
    assert np.abs(whole - expected).max() < 1e-4 * scale
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-4 * scale


def test_every_form_of_a_hybrid_is_made_and_carries_its_states_on(made):
    model = load_model(made[2].file)
    states = [part.past for part in state_parts(model.inputs, model.outputs)]
    chance = np.random.default_rng(5)
    windows = [chance.integers(0, VOCABULARY, 32).tolist() for _ in range(4)]
    material = DecoderMaterial(model, find_device("cpu"), windows, 1, 0, 0.02, Silence())
    place, recipe = made[1] / "form", made[1] / "made" / "recipe.toml"
    place.mkdir(exist_ok=True)
    (place / "recipe.toml").write_bytes(recipe.read_bytes())
    (place / "tokenizer.json").write_bytes((made[1] / "made" / "tokenizer.json").read_bytes())
    expected = logits_of(made[0], TOKENS)[-1]
    kind = made[0].config.model_type
    has_experts = bool(getattr(made[0].config, "num_local_experts", 0) or getattr(made[0].config, "num_experts", 0))
    forms = FORMS if kind in ("lfm2", "qwen3_5_text") else [form for form in FORMS if form.name in ("w8", "w4")]
    for form in forms:
        result = form.make(material)
        if not result.changes:
            continue
        small = keep_last_logits(result.model).model
        assert [part.past for part in state_parts(small.inputs, small.outputs)] == states
        (place / "model.onnx").write_bytes(small.data)
        with open_language_model(place / "model.onnx", 1)[0] as opened:
            decoder = opened.decoder(len(TOKENS))
            decoder.run(TOKENS[:41], last=1)
            logits = [decoder.run([token]) for token in TOKENS[41:]][-1][-1]
        likeness = float(np.corrcoef(logits, expected)[0, 1])
        least = 0.3 if has_experts else 0.6  # of random weights, rounded ones choose other experts
        assert likeness > (0.9 if form.name.startswith("w8") else least), form.name


def test_texts_side_by_side_have_the_tokens_of_each_alone(made):
    asked = AnswerOptions(8, ends=False)
    prompts, model_type = [TOKENS[i : i + 4 + 3 * i] for i in range(5)], made[0].config.model_type
    with open_language_model(made[2].file, 1)[0] as model:
        alone = []
        for prompt in prompts:
            model.forget()
            alone.append([piece.token for piece in model.generate(prompt, asked)])
        with SharedModel(model, 3, chunk_tokens=5) as shared:
            assert shared.is_together or "moe" in model_type or "next" in model_type  # three experts: they take turns
            answers = [shared.generate(prompt, asked) for prompt in prompts]
            assert [[piece.token for piece in answer] for answer in answers] == alone


def test_a_hybrid_is_not_made_a_file_of_llama_cpp(made):
    with pytest.raises(UnsupportedError, match="layers with states, whose weights"):
        read_graph_weights(made[2].file, GenerationTable(128))
    pytest.importorskip("gguf")
    source = made[1] / "source"
    weights, tokenizer = TensorFiles(source), source / "tokenizer.json"
    with pytest.raises(UnsupportedError, match="layers with states, which is not written as GGUF"):
        write_gguf_file(read_configuration(source), weights, tokenizer, made[1] / "made.gguf", "f32", "small")


def test_a_layer_of_another_kind_is_refused(made, tmp_path):
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((made[1] / "source" / name).read_bytes())
    values = json.loads((made[1] / "source" / "config.json").read_text("utf-8"))
    values["layer_types"][0] = "holographic"
    (tmp_path / "config.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidFileError, match="layers of the kind holographic"):
        export(f"hf:{tmp_path}", out=tmp_path / "model.onnx")


def test_older_configurations_tell_layers_and_neurons_in_other_words():
    values = {"num_hidden_layers": 4, "full_attn_idxs": [2], "conv_L_cache": 3, "norm_eps": 1e-5}
    assert read_hybrid(values, "lfm2").layers == ("conv", "conv", "full_attention", "conv")
    neurons = {"block_ff_dim": 6656, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}
    assert in_words_of_llama(neurons, "lfm2")["intermediate_size"] == 4608, "as in LFM2-350M"
    plain = {"intermediate_size": 100, "block_auto_adjust_ff_dim": False}
    assert in_words_of_llama(plain, "lfm2")["intermediate_size"] == 100
    delta = {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")}
    delta |= {"num_hidden_layers": 4, "head_dim": 64, "linear_conv_kernel_dim": 4}
    told = read_hybrid(delta, "qwen3_5_text")
    assert told.layers == ("linear_attention", "linear_attention", "linear_attention", "full_attention")
    assert told.turned == 16
    assert read_hybrid({}, "llama") is None
