"""Words of a sound get their times from where the decoder looks, as transformers and openai/whisper tell them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from served import serving
from small_decoders import write_decoder, write_tokenizer
from speech_pairs import FIRST_TIME, RATE, TIMES, chirps, speech_model

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime.cross_decoder import LOOKS
from edgeopt.export.export import export
from edgeopt.graph.model import load_model
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.speech.words import STEP_S, token_times, words_of
from edgeopt.runtime.serve.limits import Limits

END, START, EN, TRANSCRIBE, SILENT = 256, 257, 258, 261, 265
HEADS = [[0, 1], [1, 0], [1, 1]]
SHORT = chirps(12)
TOKENS = {"eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START, "bos_token_id": END}
SIDES = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIDES |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "vocab_size": FIRST_TIME + TIMES}
SIDES |= {"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 96, "init_std": 0.6}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Any, Path]:
    """A small Whisper with two layers, and the folder of its graphs that tell where three heads look."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(2)
    config = transformers.WhisperConfig(**SIDES, **TOKENS, suppress_tokens=None, begin_suppress_tokens=None)
    config._attn_implementation = "eager"
    net = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        net.model.decoder.embed_tokens.weight[FIRST_TIME:] *= 0.3
        for layer in net.model.decoder.layers:  # heads that look at one place, not everywhere
            layer.encoder_attn.q_proj.weight *= 3
    known = {"lang_to_id": {"<|en|>": EN, "<|de|>": EN + 1}, "task_to_id": {"transcribe": TRANSCRIBE}}
    net.generation_config = transformers.GenerationConfig(
        **TOKENS, **known, no_timestamps_token_id=SILENT, is_multilingual=True, max_length=96, alignment_heads=HEADS
    )
    folder = tmp_path_factory.mktemp("words")
    net.save_pretrained(folder / "source")
    kept = speech_model(folder / "kept")
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copyfile(kept / name, folder / "source" / name)
    done = CliRunner().invoke(
        cli, ["export", f"hf:{folder / 'source'}", "-o", str(folder / "speech"), "--word-times", "--format", "json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outputs"][0]["drift"]["sqnr_db"] > 80
    return net, folder / "speech"


def test_tokens_get_the_times_of_transformers(made):
    import torch
    import transformers

    net, folder = made
    maker = transformers.WhisperFeatureExtractor(feature_size=80)
    fed = maker(SHORT.samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True)
    theirs = net.generate(
        fed.input_features, attention_mask=fed.attention_mask, language="en", task="transcribe", max_new_tokens=30,
        min_new_tokens=30, return_token_timestamps=True,
    )  # fmt: skip
    begin = [START, EN, TRANSCRIBE, SILENT]
    tokens, expected = (theirs[name][0].tolist() for name in ("sequences", "token_timestamps"))
    if tokens[:4] == begin:
        tokens, expected = tokens[4:], expected[4:]
    tokens = [token for token in tokens if token != END]
    assert len(tokens) == 30
    with open_encoder_decoder(folder, 1) as model:
        assert model.times_words
        heard = model.hear(fed.input_features[0].numpy())
        looks = model.decoder_of(heard).looks([*begin, *tokens])
        with torch.no_grad():
            answer = net(
                input_features=fed.input_features, decoder_input_ids=torch.tensor([[*begin, *tokens]]),
                output_attentions=True,
            )  # fmt: skip
        weights = np.stack([answer.cross_attentions[layer][0, head].numpy() for layer, head in HEADS])
        np.testing.assert_allclose(looks, weights, atol=1e-3)
    times = [token_times(each[:, len(begin) : -1, : 12 * 50], 7) for each in (weights, looks)]
    assert len(times[0]) == 29, "transformers does not look from the last token"
    assert len(set(expected)) > 5
    np.testing.assert_allclose(times[0], expected[:29], atol=1e-4)
    off = np.abs(times[1] - expected[:29])
    assert (off < 0.03).mean() > 0.8, "the last digits of another engine may turn a path where it is flat"


def test_words_lie_in_their_segments_and_cost_one_run_a_window(made):
    with open_encoder_decoder(made[1], 1) as model:
        plain = model.transcribe(SHORT, language="en", times=True)
        without = list(plain)
        transcription = model.transcribe(SHORT, language="en", times=True, words=True)
        segments = list(transcription)
        assert [segment.tokens for segment in segments] == [segment.tokens for segment in without]
        assert not any(segment.words for segment in without)
        text = "".join(word.text for segment in segments for word in segment.words)
        assert text.replace(" ", "") == "".join(segment.text for segment in segments).replace(" ", "")
        spoken = [token for segment in segments for token in segment.tokens if token < END]
        more = transcription.account.computed_tokens - plain.account.computed_tokens
        assert more == 4 + len(spoken)
        words = [word for segment in segments for word in segment.words]
        assert words
        assert all(0 <= word.start_s <= word.end_s <= SHORT.seconds for word in words)
        assert [word.start_s for word in words] == sorted(word.start_s for word in words)
        again = list(model.transcribe(SHORT, language="en", words=True, beams=3, window_tokens=20))
        assert again[0].words


def test_a_form_of_the_decoder_keeps_where_it_looks(made, tmp_path):
    from edgeopt.optimization.encoder_decoder.forms import DECODER_FORMS
    from edgeopt.system.declared.target import find_target

    model = load_model(made[1] / "decoder.onnx")
    for form in DECODER_FORMS:
        small = form.make(model, find_target("cpu-x86-vnni")).model
        assert LOOKS in {output.name for output in small.outputs}


def test_the_commands_and_the_server_tell_words(made, tmp_path):
    openai = pytest.importorskip("openai")
    folder = made[1]
    write_wav(tmp_path / "short.wav", SHORT)
    command = ["run", str(folder), str(tmp_path / "short.wav"), "--word-times", "--language", "en"]
    done = CliRunner().invoke(cli, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = [word for line in done.stdout.splitlines() for word in json.loads(line)["words"]]
    done = CliRunner().invoke(cli, command)
    assert done.stdout.count("-->") >= len(told) > 0
    wav = ("short.wav", (tmp_path / "short.wav").read_bytes())
    with serving(str(folder), Limits(slots=1)) as running:
        audio = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0).audio
        asked = {"model": folder.name, "file": wav, "language": "en", "response_format": "verbose_json"}
        answer = audio.transcriptions.create(**asked, timestamp_granularities=["word", "segment"])
        alone = audio.transcriptions.create(**asked, timestamp_granularities=["word"])
        segments = audio.transcriptions.create(**asked)
    assert [(word.word, word.start, word.end) for word in answer.words] == [
        (word.word, word.start, word.end) for word in alone.words
    ]
    assert answer.segments
    assert alone.segments is None
    assert segments.words is None


def test_a_model_without_such_an_output_refuses_words_in_one_line(tmp_path):
    folder = speech_model(tmp_path / "speech")
    with open_encoder_decoder(folder, 1) as model:
        with pytest.raises(EdgeoptError, match="tells no times of words") as raised:
            model.transcribe(SHORT, words=True)
        assert "--word-times" in raised.value.remedy
    write_tokenizer(write_decoder(tmp_path / "texts"))
    with pytest.raises(EdgeoptError, match="writes no words that it hears") as raised:
        export(f"hf:{tmp_path / 'texts'}", out=tmp_path / "made" / "model.onnx", word_times=True)
    assert "--word-times" in raised.value.remedy


def test_tokens_become_words_with_their_marks():
    pieces = [" Hel", "lo", ",", ' "', "wor", "ld", '"', "!", " \u00e4"]

    def decode(tokens):
        return "".join(pieces[token] for token in tokens)

    times = np.arange(len(pieces) + 1) * STEP_S
    words = words_of(range(len(pieces)), times, decode, "en")
    assert [word.text for word in words] == [" Hello,", ' "world"!', " \u00e4"]
    assert [(round(word.start_s, 2), round(word.end_s, 2)) for word in words] == [(0, 0.06), (0.06, 0.16), (0.16, 0.18)]
    letters = words_of(range(2), times, lambda tokens: "".join("\u4f60\u597d"[token] for token in tokens), "zh")
    assert [word.text for word in letters] == ["\u4f60", "\u597d"]


def test_a_path_follows_where_the_weights_lie():
    weights = np.full((2, 4, 40), 1e-3, np.float32)
    for token, (begin, end) in enumerate(((0, 10), (10, 22), (22, 30), (30, 40))):
        weights[:, token, begin:end] = 1
    np.testing.assert_allclose(token_times(weights, 7), [0, 0.2, 0.44, 0.6], atol=0.021)
