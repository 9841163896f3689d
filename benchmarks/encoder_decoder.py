"""An encoder with a decoder of Whisper-tiny's size, random weights: what `optimize` makes of it, against torch as well.

python benchmarks/encoder_decoder.py FOLDER [--output-tokens 48] [--time-limit 3m]

Needs edgeopt[cpu,export]. FOLDER takes the network, the export and the bundle. The limit is that of `optimize`;
building, exporting and torch take a minute or two more on an idle core. Random weights say nothing of accuracy:
4 bits are refused because flat logits move more than those of a trained network.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter

import numpy as np

from edgeopt.export.export import export
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.sides.turns import PARTS
from edgeopt.optimization.encoder_decoder.optimize import optimize_encoder_decoder
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.text import parse_duration_s

GRAPHS = Path(__file__).parents[1] / "tests" / "fixtures" / "encoder_decoder_graphs" / "whisper"
END, START = 256, 257
VOCABULARY = 51865
ROUNDS = 5


def build(folder: Path) -> None:
    """Save a network of Whisper-tiny's size, with the tokenizer of the tests and words enough for its vocabulary."""
    import torch
    import transformers

    torch.manual_seed(0)
    tokens = {"eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START, "bos_token_id": END}
    sides = {"encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6, "decoder_attention_heads": 6}
    sides |= {"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "d_model": 384, "vocab_size": VOCABULARY}
    config = transformers.WhisperConfig(
        **sides, **tokens, init_std=0.05, suppress_tokens=None, begin_suppress_tokens=None
    )
    transformers.WhisperForConditionalGeneration(config).eval().save_pretrained(folder)
    told = {**tokens, "is_multilingual": False, "max_length": 448}
    (folder / "generation_config.json").write_text(json.dumps(told), "utf-8")
    (folder / "preprocessor_config.json").write_bytes((GRAPHS / "preprocessor_config.json").read_bytes())
    tokenizer = json.loads((GRAPHS / "tokenizer.json").read_text("utf-8"))
    ids = range(len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]), VOCABULARY)
    tokenizer["model"]["vocab"] |= {f"never-{i}": i for i in ids}  # no merge makes them; a text of them can be read
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")


def sounds(folder: Path) -> Path:
    """Write six sounds of 3 to 8 seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(6):
        time, noise = np.arange(16000 * (3 + i)) / 16000, np.random.default_rng(i)
        tone = 0.3 * np.sin(2 * np.pi * (200 + 100 * i + 50 * time) * time) * np.sin(3 * time)
        write_wav(folder / f"{i}.wav", Sound(np.float32(tone + 0.02 * noise.standard_normal(len(time))), 16000))
    return folder


def against_torch(network: Path, bundle: Path, output_tokens: int) -> list[float]:
    """Return, for each round, the time of transformers' whole answer over ours, in turns, one thread each."""
    import torch
    import transformers

    torch.set_num_threads(1)
    module = transformers.WhisperForConditionalGeneration.from_pretrained(network).eval()
    maker = transformers.WhisperFeatureExtractor(feature_size=80)
    sound = Sound(0.1 * np.random.default_rng(9).standard_normal(16000 * 5).astype(np.float32), 16000)
    found = list[float]()
    with open_encoder_decoder(bundle, 1) as ours, torch.no_grad():
        for number in range(ROUNDS + 1):
            begun_s = perf_counter()
            features = maker(sound.samples, sampling_rate=16000, return_tensors="pt").input_features
            module.generate(features, max_new_tokens=output_tokens, min_new_tokens=output_tokens, do_sample=False)
            torch_s = perf_counter() - begun_s
            with ours.generate(sound, AnswerOptions(most_tokens=output_tokens, ends=False)) as answer:
                answer.text()
            if number:
                found.append(torch_s * 1e9 / answer.account.token_at_ns[-1])
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--time-limit", type=parse_duration_s, default=180.0, metavar="DURATION")
    asked = parser.parse_args()
    network, exported = asked.folder / "network", asked.folder / "export"
    if not (network / "config.json").is_file():
        build(network)
    if not (exported / "decoder.onnx").is_file():
        export(f"hf:{network}", out=exported)
    options = LanguageOptions(
        output_tokens=asked.output_tokens,
        eval=str(sounds(asked.folder / "sounds")),
        threads=1,
        seconds=20.0,
        time_limit_s=asked.time_limit,
    )
    report = optimize_encoder_decoder(
        str(exported), target="cpu", out=asked.folder / "out", options=options, listener=Silence()
    )
    for one in report.candidates:
        speeds = "; ".join(f"{part} {one.speed[part]}" for part in PARTS) if one.speed else ""
        print(f"{one.name:<16} {one.size_bytes / 2**20:7.1f} MiB  {speeds}  {one.rise or ''}  {one.out}")
    print(
        f"chosen: {report.chosen}, on {report.environment.cpu}, {report.threads} thread, after {report.seconds:.0f} s"
    )
    for note in report.notes:
        print(note)
    ratios = np.log(against_torch(network, report.folder, asked.output_tokens))
    mean, low, high = np.exp([ratios.mean(), ratios.min(), ratios.max()])
    print(f"transformers in torch over ours, answers: {mean:.2f} [{low:.2f}, {high:.2f}], {ROUNDS} rounds in turns")


if __name__ == "__main__":
    main()
