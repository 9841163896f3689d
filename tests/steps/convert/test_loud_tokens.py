"""Tokens beside a loud one stay as they are: smoothed inputs have a finer grid, blocks round token by token."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_decoders import export_small, random_weights, write_decoder, write_tensors, write_tokenizer

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.export.export import export
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.generation.forms import kinds
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.loud_tokens.product_inputs import (
    MOST_NOISE,
    ProductInput,
    loud_products,
    noise_on_one_grid,
    product_inputs_of,
)
from edgeopt.steps.convert.loud_tokens.smoothing import smooth_inputs

LOUD = 7
TEXTS = [[LOUD, *np.random.default_rng(seed).integers(8, 250, 47).tolist()] for seed in (0, 1)]


def logits(model: Model) -> np.ndarray:
    session = EXECUTOR.open(model.data, SessionOptions(threads=1))
    return Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True).run(TEXTS[0])


def with_a_loud_token() -> dict[str, np.ndarray]:
    """Return weights that send one token through one neuron of the first layer with numbers of 100,000."""
    weights = random_weights(hidden=128, inner=192)
    table, first = weights["model.embed_tokens.weight"], "model.layers.0"
    table[:, 0] = 0
    table[LOUD] = 0
    table[LOUD, 0] = 8
    weights[f"{first}.self_attn.o_proj.weight"][0] = 0  # nobody else has the first number before the neurons
    for part in ("gate", "up"):
        weights[f"{first}.mlp.{part}_proj.weight"][0] = 0
        weights[f"{first}.mlp.{part}_proj.weight"][0, 0] = 30
    return weights


def written(folder: Path, weights: dict[str, np.ndarray]) -> Model:
    source = write_decoder(folder / "source", hidden_size=128, intermediate_size=192, head_dim=32)
    write_tensors(source / "model.safetensors", weights)
    write_tokenizer(source)
    export(f"hf:{source}", out=folder / "model.onnx")
    return load_model(folder / "model.onnx")


@pytest.fixture(scope="module")
def loud(tmp_path_factory) -> Model:
    return written(tmp_path_factory.mktemp("loud"), with_a_loud_token())


def material(model: Model) -> DecoderMaterial:
    return DecoderMaterial(model, find_device("cpu"), TEXTS, 1, 0, 0.02, Silence())


def made(name: str, model: Model) -> SimpleNamespace:
    (form,) = (form for form in FORMS if form.name == name)
    return form.make(material(model))


def test_noise_is_that_of_a_token_beside_a_loud_one():
    rows = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    quiet = noise_on_one_grid(rows)
    assert 1e-5 < quiet < MOST_NOISE
    rows[0] *= 1000
    assert noise_on_one_grid(rows) > 0.5, "of the others nothing is left"
    assert noise_on_one_grid(rows[:1]) < MOST_NOISE, "alone it has the grid for itself"
    assert noise_on_one_grid(np.zeros((3, 4), np.float32)) == 0.0
    assert noise_on_one_grid(np.zeros((0, 4), np.float32)) == 0.0


def test_the_product_that_reads_a_loud_token_is_known(loud):
    inputs = product_inputs_of(loud, TEXTS, threads=1)
    names = loud_products(loud, inputs)
    assert len(names) == 1
    assert "0" in names[0]
    assert "down" in names[0]


def test_smoothed_inputs_give_the_same_numbers_on_a_finer_grid(loud):
    before = product_inputs_of(loud, TEXTS, threads=1)
    smooth = smooth_inputs(loud, before)
    assert smooth.changes == {"inputs smoothed": 7}, "of attention, gates and neurons of two layers, and of the head"
    assert np.abs(logits(smooth.model) - logits(loud)).max() < 1e-3 * np.abs(logits(loud)).max()
    after = product_inputs_of(smooth.model, TEXTS, threads=1)
    (name,) = loud_products(loud, before)
    read = next(node.input[0] for node in loud.proto.graph.node if node.name == name)
    assert after[read].noise < 0.1 * before[read].noise


@pytest.mark.parametrize("is_smooth", [True, False])
def test_the_other_tokens_stay_as_they_are(loud, is_smooth, monkeypatch):
    if not is_smooth:  # as where attention makes what a product reads
        monkeypatch.setattr(kinds, "smooth_inputs", lambda model, _: Outcome(model, {}))
    expected = logits(loud)[1:]
    mixed, plain = made("w8a8+mixed", loud), made("w8a8", loud)
    assert mixed.changes["matrices in 8 bits"] == 2, "it, and the head"
    assert ("inputs smoothed" in mixed.changes) == is_smooth
    lost, lost_plain = (np.abs(logits(outcome.model)[1:] - expected).mean() for outcome in (mixed, plain))
    assert lost < 0.5 * lost_plain
    assert lost < 0.2 * np.abs(expected).mean()


def test_without_loud_tokens_no_such_form_is_made(tmp_path):
    assert not made("w8a8+mixed", load_model(export_small(tmp_path))).changes


def test_a_head_that_is_the_table_too_is_not_smoothed(tmp_path):
    weights = with_a_loud_token()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = written(tmp_path, weights)
    smooth = smooth_inputs(model, product_inputs_of(model, TEXTS, threads=1))
    assert smooth.changes == {"inputs smoothed": 6}


def test_a_channel_that_was_silent_may_speak(loud):
    inputs = product_inputs_of(loud, TEXTS, threads=1)
    reads = next(node.input[0] for node in loud.proto.graph.node if "qkv" in node.name or node.name.endswith("/q"))
    silent = inputs[reads].peaks.copy()
    silent[3] = 0
    before, after = (
        smooth_inputs(loud, {reads: ProductInput(0.0, peaks)}).model for peaks in (inputs[reads].peaks, silent)
    )
    peaks = [product_inputs_of(model, TEXTS, threads=1)[reads].peaks for model in (before, after)]
    assert peaks[1][3] < 20 * peaks[0][3]


def test_what_cannot_be_looked_at_leaves_the_form_out(loud, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError("no room", remedy="close other programs")

    monkeypatch.setattr("edgeopt.optimization.generation.forms.material.product_inputs_of", refuse)
    assert not made("w8a8+mixed", loud).changes
