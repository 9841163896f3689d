"""Mamba and Mamba-2: decoders of states alone are written from their weights, and answer as transformers does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_decoders import VOCABULARY
from small_mixtures import MAMBAS, logits_of, write_by_transformers

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.executors.onnxruntime.state_parts import state_parts
from edgeopt.export.export import export
from edgeopt.graph.model import load_model
from edgeopt.inspection.writer_facts import writer_facts
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 60).tolist()


@pytest.fixture(scope="module", params=MAMBAS)
def made(request, tmp_path_factory):
    config, more = MAMBAS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    module = write_by_transformers(folder / "source", config, **more)
    return module, folder, export(f"hf:{folder / 'source'}", out=folder / "made" / "model.onnx")


def test_a_decoder_of_states_alone_answers_as_transformers_does(made):
    module, _, exported = made
    assert exported.outputs[0].drift.sqnr_db > 80
    expected = logits_of(module, TOKENS)
    with open_language_model(exported.file, 1)[0] as model:
        assert (model.parts, model.token_bytes) == ((), 0)
        whole = model.logits(TOKENS)
        decoder = model.decoder(len(TOKENS))
        parts = [decoder.run(TOKENS[:33]), decoder.run(TOKENS[33:50]), *(decoder.run([one]) for one in TOKENS[50:])]
        assert decoder.cache_bytes == sum(part.text_bytes for part in model.states)
    scale = np.abs(expected).max()
    assert np.abs(whole - expected).max() < 1e-4 * scale
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-4 * scale
    assert "states of" in writer_facts(str(exported.file)).writes


def test_texts_side_by_side_and_behind_prefixes_have_the_tokens_of_each_alone(made, tmp_path):
    asked = AnswerOptions(8, ends=False)
    prompts = [TOKENS[i : i + 4 + 3 * i] for i in range(5)]
    with open_language_model(made[2].file, 1, context=64)[0] as model:
        alone = []
        for prompt in prompts:
            model.forget()
            alone.append([piece.token for piece in model.generate(prompt, asked)])
        with SharedModel(model, 3, chunk_tokens=5) as shared:
            assert shared.is_together
            answers = [shared.generate(prompt, asked) for prompt in prompts]
            assert [[piece.token for piece in answer] for answer in answers] == alone
        for _ in range(2):
            model.forget()
            model.keep_prefix(prompts[4][:7], tmp_path)
        generation = model.generate(prompts[4], asked)
        assert generation.account.reused_tokens == 7
        assert [piece.token for piece in generation] == alone[4]


def test_forms_are_made_and_run(made):
    model = load_model(made[2].file)
    windows = [np.random.default_rng(5).integers(0, VOCABULARY, 32).tolist() for _ in range(4)]
    material = DecoderMaterial(model, find_device("cpu"), windows, 1, 0, 0.02, Silence())
    place = made[1] / "form"
    place.mkdir(exist_ok=True)
    for name in ("recipe.toml", "tokenizer.json"):
        (place / name).write_bytes((made[1] / "made" / name).read_bytes())
    expected = logits_of(made[0], TOKENS)[-1]
    for form in (form for form in FORMS if form.name in ("w8a8", "w8", "w4")):
        result = form.make(material)
        assert len(state_parts(result.model.inputs, result.model.outputs)) == 4
        (place / "model.onnx").write_bytes(result.model.data)
        with open_language_model(place / "model.onnx", 1)[0] as opened:
            decoder = opened.decoder(len(TOKENS))
            decoder.run(TOKENS[:41], last=1)
            logits = [decoder.run([token]) for token in TOKENS[41:]][-1][-1]
        assert float(np.corrcoef(logits, expected)[0, 1]) > (0.6 if form.name == "w4" else 0.9), form.name


def test_what_the_graph_does_not_compute_is_refused(made, tmp_path):
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((made[1] / "source" / name).read_bytes())
    values = json.loads((made[1] / "source" / "config.json").read_text("utf-8"))
    for changed, error, told in (
        ({"time_step_limit": [0.0, 0.1]}, UnsupportedError, "time_step_limit"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act"),
        ({"state_size": "many"}, InvalidFileError, "lacks a size"),
        ({"state_size": 1e400}, InvalidFileError, "lacks a size"),
        ({"time_step_limit": "none"}, InvalidFileError, "lacks a size"),
        ({"conv_kernel": 1}, InvalidFileError, "do not fit each other"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**values, **changed}), "utf-8")
        with pytest.raises(error, match=told):
            export(f"hf:{tmp_path}", out=tmp_path / "model.onnx")
