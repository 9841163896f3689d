"""Decoders that are not written from their weights are traced by torch, fused, and compared with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_decoders import VOCABULARY, write_decoder, write_tokenizer

from edgeopt.cli import cli
from edgeopt.errors import UnsupportedError
from edgeopt.export.export import export, names_decoder
from edgeopt.graph.model import load_model
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

SIZES = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}


def write_folder(folder: Path, kind: str) -> Path:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **SIZES)
    elif kind == "phi":  # turns half of each head's numbers
        config = transformers.PhiConfig(
            hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=64, pad_token_id=0, **SIZES,
        )  # fmt: skip
    else:
        config = transformers.GemmaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
            head_dim=16, max_position_embeddings=64, pad_token_id=0, **SIZES,
        )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", ["gpt2", "gemma", "phi"])
def test_a_decoder_of_another_type_is_traced_fused_and_writes_as_in_torch(kind, tmp_path):
    folder = write_folder(tmp_path / "source", kind)
    assert names_decoder(f"hf:{folder}")
    made = export(f"hf:{folder}", out=tmp_path / "made" / "model.onnx")
    assert made.writes
    assert made.notes == ()
    assert made.framework.startswith("PyTorch")
    assert made.outputs[0].drift.sqnr_db > 80
    proto = load_model(made.file).proto
    assert sum(node.op_type == "GroupQueryAttention" for node in proto.graph.node) == 2
    assert [one.dim_param for one in proto.graph.input[0].type.tensor_type.shape.dim] == ["batch", "sequence"]
    model, recipe = open_language_model(made.file, 1)
    import torch
    import transformers

    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with model:
        assert model.shares
        assert recipe.generation.context == 64
        prompt = model.tokenizer.encode("import os")
        found = [one.token for one in model.generate(prompt, AnswerOptions(12, ends=False))]
    with torch.no_grad():
        expected = list(prompt)
        for _ in found:
            expected.append(int(module(torch.tensor([expected])).logits[0, -1].argmax()))
    assert found == expected[len(prompt) :]


def test_without_torch_such_a_decoder_is_refused_by_name(tmp_path, monkeypatch):
    folder = write_decoder(tmp_path, model_type="gpt_bigcode")
    write_tokenizer(folder)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match="a gpt_bigcode is not written here without torch"):
        export(f"hf:{folder}", out=tmp_path / "model.onnx")


def test_optimize_of_a_folder_asks_for_a_text_before_it_exports(tmp_path):
    folder = write_decoder(tmp_path / "source")
    write_tokenizer(folder)
    asked = ["optimize", f"hf:{folder}", "--target", "cpu", "-o", str(tmp_path / "out")]
    found = CliRunner().invoke(cli, asked)
    assert found.exit_code == 1
    assert "no text judges" in found.output
    assert not (tmp_path / "source" / "model.onnx").exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["source"]


def test_optimize_of_a_folder_exports_first_and_goes_on(tmp_path):
    from edgeopt.optimization.generation.optimize import optimize_language_model
    from edgeopt.optimization.generation.options import LanguageOptions
    from edgeopt.optimization.run import Silence

    folder = write_decoder(tmp_path / "source")
    write_tokenizer(folder)
    text = tmp_path / "text.txt"
    text.write_text("import os\nprint(os.path)\n" * 400, "utf-8")
    options = LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, eval=str(text))
    found = optimize_language_model(
        f"hf:{folder}", target="cpu", out=tmp_path / "out", options=options, listener=Silence()
    )
    assert (tmp_path / "source-export" / "model.onnx").is_file()
    assert not (folder / "model.onnx").exists(), "the source stays as it is"
    assert found.candidates[0].name == "fp32"
    assert (tmp_path / "out" / "bundle").is_dir()
