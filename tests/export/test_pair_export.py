"""Encoders with decoders are traced by torch as two graphs, which write what transformers' `generate` writes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from exported_pairs import GRAPHS, TONE

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.export.encoder_decoder import is_encoder_with_decoder
from edgeopt.export.export import export, names_pair
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions

MOST = 24
TEXT = "import os and the brown fox"
END, START = 256, 257
TOKENS = {"eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START, "bos_token_id": END}
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "vocab_size": 262, "init_std": 0.6}


def made(kind: str, folder: Path):
    """Return a network with random weights, which it saves with the tokenizer of the fixtures."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(3)
    if kind == "whisper":
        config = transformers.WhisperConfig(
            **SIZES, **TOKENS, max_target_positions=48, suppress_tokens=None, begin_suppress_tokens=None
        )
        net = transformers.WhisperForConditionalGeneration(config)
        net.generation_config = transformers.GenerationConfig(**TOKENS, is_multilingual=False, max_length=48)
        shutil.copytree(GRAPHS / kind, folder, ignore=shutil.ignore_patterns("*.gz", "generation_config.json"))
    else:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 262}
        net = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **TOKENS))
        net.generation_config = transformers.GenerationConfig(**TOKENS)
        folder.mkdir()
        shutil.copyfile(GRAPHS / kind / "tokenizer.json", folder / "tokenizer.json")
    net.eval().save_pretrained(folder)
    return net


def expected(net, folder: Path) -> list[int]:
    import torch
    import transformers

    asked = {"max_new_tokens": MOST, "min_new_tokens": MOST, "do_sample": False, "num_beams": 1}
    if net.main_input_name == "input_features":
        features = transformers.WhisperFeatureExtractor(feature_size=80)(
            TONE.samples, sampling_rate=16000, return_tensors="pt"
        )
        found = net.generate(features.input_features, **asked)[0].tolist()
    else:
        tokens = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))(TEXT)["input_ids"]
        found = net.generate(input_ids=torch.tensor([[*tokens, END]]), **asked)[0].tolist()
    return found[1:] if found[0] == START else found


LONG = pytest.mark.skipif("EDGEOPT_OPTIMUM" not in os.environ, reason="a second kind takes torch ten seconds")


@pytest.mark.parametrize("kind", ["whisper", pytest.param("t5", marks=LONG)])
def test_two_graphs_of_a_folder_write_the_tokens_of_generate(kind, tmp_path):
    net = made(kind, tmp_path / kind)
    assert names_pair(f"hf:{tmp_path / kind}")
    result = export(f"hf:{tmp_path / kind}", out=tmp_path / "out")
    assert result.file == tmp_path / "out"
    assert {"encoder.onnx", "decoder.onnx", "config.json", "generation_config.json", "tokenizer.json"} <= {
        one.name for one in result.file.iterdir()
    }
    assert result.outputs[0].drift.sqnr_db > 80
    with open_encoder_decoder(result.file, 1) as model:
        assert model.files.is_pair
        answer = model.generate(TONE if kind == "whisper" else TEXT, AnswerOptions(most_tokens=MOST, ends=False))
        tokens = [piece.token for piece in answer]
    wanted = expected(net, tmp_path / kind)
    assert tokens[: len(wanted)] == wanted
    assert len(wanted) >= MOST - 1


def test_what_is_missing_is_told_before_anything_is_written(tmp_path):
    folder = tmp_path / "net"
    made("t5", folder)
    assert not is_encoder_with_decoder(tmp_path)
    with pytest.raises(EdgeoptError, match="are its sounds or texts"):
        export(f"hf:{folder}", out=tmp_path / "out", dynamic={"input_ids": (1,)})
    done = CliRunner().invoke(cli, ["optimize", f"hf:{folder}", "-t", "cpu", "-o", str(tmp_path / "out")])
    assert "no sound or text judges" in done.output
    (folder / "tokenizer.json").unlink()
    assert not names_pair(f"hf:{folder}")  # its encoder is exported then, and that is told
    shutil.copyfile(GRAPHS / "t5" / "tokenizer.json", folder / "tokenizer.json")
    assert names_pair(f"hf:{folder}")
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"architectures": ["T5EncoderModel"]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    assert not names_pair(f"hf:{folder}")
    assert not (tmp_path / "out").exists()
