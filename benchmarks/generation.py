"""Language models: our decoding against onnxruntime-genai's on the same graph, stored prefixes, forms for lengths.

    pip install edgeopt[cpu] onnxruntime-genai
    python benchmarks/generation.py [--parts genai,prefix,forms] [--work FOLDER] [--rounds 12]

The model is the shipped `tiny_lm` made large, so that its speed is that of 55 million parameters and its tokens are
still its own: products get neurons whose way out is zero, and layers that add nothing are put between its layers. All
times are ratios of runs in turns, in one process, with one thread; intervals are of 95 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

import numpy as np

from edgeopt.executors.onnxruntime import EXECUTOR  # noqa: F401 - telemetry is off before genai brings onnxruntime
from edgeopt.graph.model import load_model
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.pipeline.export.export import export
from edgeopt.pipeline.generation.optimize import LanguageOptions, optimize_language_model
from edgeopt.pipeline.run import Silence
from edgeopt.runtime.decoding.generation import Asked
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.environment import read_environment

SHIPPED = Path(__file__).parents[1] / "models" / "tiny_lm"
INNER, LAYERS, CONTEXT = 8192, 16, 2048
NEXT = 32
"""Tokens whose TPOT is measured."""


def weights_of_shipped() -> dict[str, np.ndarray]:
    """Return the shipped model's weights under Hugging Face's names."""
    from onnx import numpy_helper

    proto = load_model(SHIPPED / "model.onnx").proto
    stored = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    found = {"model.embed_tokens.weight": stored["embedding"], "model.norm.weight": stored["model.norm.weight"]}
    for i in range(4):
        mine, theirs = f"layer.{i}", f"model.layers.{i}"
        qkv = stored[f"{mine}.qkv.weight"].T
        heads = qkv.shape[0] // 2
        parts = np.split(qkv, [heads, heads + heads // 2])
        found |= {f"{theirs}.self_attn.{name}_proj.weight": part for name, part in zip("qkv", parts, strict=True)}
        found[f"{theirs}.self_attn.o_proj.weight"] = stored[f"{mine}.o.weight"].T
        found |= {
            f"{theirs}.mlp.{name}_proj.weight": stored[f"{mine}.{name}.weight"].T for name in ("gate", "up", "down")
        }
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{theirs}.{norm}.weight"] = stored[f"{theirs}.{norm}.weight"]
    return found


def write_large(folder: Path) -> None:
    """Write a Hugging Face folder of the enlarged model: its logits are the shipped one's."""
    weights, chance = weights_of_shipped(), np.random.default_rng(0)
    large = {name: value for name, value in weights.items() if ".layers." not in name}
    for i in range(LAYERS):
        source, is_first = i * 4 // LAYERS, i * 4 % LAYERS < 4
        for name, value in weights.items():
            if not name.startswith(f"model.layers.{source}."):
                continue
            made = value
            if ".mlp." in name:
                shape = (value.shape[0], INNER) if "down" in name else (INNER, value.shape[1])
                made = (0.02 * chance.standard_normal(shape)).astype(np.float32)
                if "down" in name:
                    made[:, : value.shape[1]] = value
                    made[:, value.shape[1] :] = 0
                else:
                    made[: value.shape[0]] = value
            if not is_first and ("down" in name or "o_proj" in name):
                made = np.zeros_like(made)
            large[name.replace(f"layers.{source}.", f"layers.{i}.")] = made
    head, data = dict[str, object](), list[bytes]()
    place = 0
    for name, value in large.items():
        data.append(np.ascontiguousarray(value, np.float32).tobytes())
        offsets = [place, place := place + len(data[-1])]
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": offsets}
    text = json.dumps(head).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 128,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    shutil.copyfile(SHIPPED / "tokenizer.json", folder / "tokenizer.json")


def exported(work: Path) -> Path:
    """Return the enlarged model as ONNX, with a configuration of onnxruntime-genai beside it."""
    file = work / "onnx" / "model.onnx"
    if not file.is_file():
        write_large(work / "large")
        export(f"hf:{work / 'large'}", out=file)
        shutil.copyfile(SHIPPED / "held_out.txt", file.parent / "held_out.txt")
        recipe = file.parent / "recipe.toml"
        told = recipe.read_text("utf-8").replace('metric = "agreement"', 'metric = "agreement"\ncalib = "held_out.txt"')
        recipe.write_text(told, "utf-8")
    decoder = {
        "session_options": {"intra_op_num_threads": 1, "provider_options": []}, "filename": "model.onnx",
        "head_size": 32, "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                   "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value"},
    }  # fmt: skip
    model = {
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "context_length": CONTEXT, "type": "llama",
        "vocab_size": 1024, "decoder": decoder,
    }  # fmt: skip
    search = {"max_length": CONTEXT, "past_present_share_buffer": True, "do_sample": False}
    (file.parent / "genai_config.json").write_text(json.dumps({"model": model, "search": search}), "utf-8")
    return file


Answer = Callable[[list[int]], tuple[float, float, list[int]]]
"""Tokens of a prompt -> TTFT and TPOT in seconds, and the tokens of the answer."""


def ours(model: LanguageModel) -> Answer:
    def answer(prompt: list[int]) -> tuple[float, float, list[int]]:
        model.forget()
        with model.generate(prompt, Asked(NEXT, ends=False)) as made:
            tokens = [piece.token for piece in made]
        times = made.account.token_at_ns
        return times[0] / 1e9, (times[-1] - times[0]) / 1e9 / (NEXT - 1), tokens

    return answer


def of_genai(folder: Path) -> Answer:
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))

    def answer(prompt: list[int]) -> tuple[float, float, list[int]]:
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=CONTEXT, min_length=len(prompt) + NEXT, do_sample=False)
        began_s = perf_counter()
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array([prompt], np.int32))
        at_s, tokens = list[float](), list[int]()
        for _ in range(NEXT):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            at_s.append(perf_counter() - began_s)
        return at_s[0], (at_s[-1] - at_s[0]) / (NEXT - 1), tokens

    return answer


def ratio(theirs: list[float], mine: list[float]) -> Ratio:
    return ratio_of_rounds(np.log(np.array(theirs) / np.array(mine)), pairs=len(mine))


def against_genai(file: Path, rounds: int) -> None:
    model, _ = open_language_model(file, 1)
    text = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    both: dict[str, Answer] = {"edgeopt": ours(model), "genai": of_genai(file.parent)}
    print("\n| context | TTFT, genai over ours | TPOT, genai over ours | same tokens |\n|--:|---|---|---|", flush=True)
    for length in (128, 512, 1024):
        found: dict[str, list[tuple[float, float, list[int]]]] = {name: [] for name in both}
        for number in range(-1, rounds):
            start = (number + 1) * 97 % (len(text) - length)
            prompt = [0, *text[start : start + length - 1]]
            for name in list(both)[:: -1 if number % 2 else 1]:
                made = both[name](prompt)
                if number >= 0:
                    found[name].append(made)
        same = sum(a[2] == b[2] for a, b in zip(found["edgeopt"], found["genai"], strict=True))
        told = [ratio([one[i] for one in found["genai"]], [one[i] for one in found["edgeopt"]]) for i in (0, 1)]
        print(f"| {length} | {told[0]} | {told[1]} | {same} of {rounds} |", flush=True)
    model.close()


def of_prefixes(file: Path, rounds: int) -> None:
    """TTFT of a prompt whose first 512 tokens are stored, over that of its other tokens alone."""
    model, _ = open_language_model(file, 1)
    text = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    stored, alone = list[float](), list[float]()
    for number in range(-1, rounds):
        prefix, rest = text[:512], text[600 + 40 * number : 632 + 40 * number]
        model.forget()
        list(model.generate(prefix, Asked(1, ends=False)))
        begun = model.generate([*prefix, *rest], Asked(1, ends=False))
        list(begun)
        assert begun.account.reused_tokens >= 512, begun.account
        model.forget()
        whole = model.generate(rest, Asked(1, ends=False))
        list(whole)
        if number >= 0:
            stored.append(begun.account.token_at_ns[0] / 1e9)
            alone.append(whole.account.token_at_ns[0] / 1e9)
    print(f"\nTTFT of 32 tokens behind a stored prefix of 512, over that of the 32 alone: {ratio(stored, alone)}")
    model.close()


def of_forms(file: Path, work: Path) -> None:
    print(
        "\n| prompt | answer | form | answer | TTFT | TPOT | perplexity | |\n|--:|--:|---|---|---|---|---|---|",
        flush=True,
    )
    for prompt, output in ((128, 64), (1024, 8)):
        options = LanguageOptions(prompt, output, threads=1, seconds=40.0)
        found = optimize_language_model(
            str(file), target="cpu", out=work / f"out-{prompt}-{output}", options=options, listener=Silence()
        )
        for one in found.forms:
            speeds = " | ".join(str(one.speed[part]) for part in ("answer", "TTFT", "TPOT")) if one.speed else " | | "
            told = "chosen" if one.name == found.chosen else "refused" if one.unfit else ""
            print(
                f"| {prompt} | {output} | {one.name} | {speeds} | {one.perplexity:.3f} {one.rise or ''} | {told} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="genai,prefix,forms")
    parser.add_argument("--work", type=Path, default=Path("generation-work"))
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    file = exported(given.work)
    size = sum(int(np.prod(one.dims)) for one in load_model(file).proto.graph.initializer)
    print(f"{read_environment().cpu}, one thread; {size / 1e6:.0f} million numbers, fp32")
    if "genai" in given.parts:
        against_genai(file, given.rounds)
    if "prefix" in given.parts:
        of_prefixes(file, given.rounds)
    if "forms" in given.parts:
        of_forms(file, given.work)


if __name__ == "__main__":
    main()
