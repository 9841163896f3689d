"""Language models: our decoding against torch's, fusion, stored prefixes, texts at once, forms.

    pip install edgeopt[cpu] torch onnxscript transformers
    python benchmarks/generation.py [--work FOLDER] [--rounds 12]
        [--parts torch,fusion,prefix,ttft,forms,batching,speculation]

`torch` is transformers' own loop in torch; `fusion` the same weights traced by torch against what fusion makes of them.

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from time import perf_counter, sleep, thread_time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

import numpy as np

from edgeopt.executors.onnxruntime import EXECUTOR  # noqa: F401 - telemetry is off before others bring onnxruntime
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.generation.guesses import DRAFT, TEXT, forecast_guesses
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.pipeline.export.export import export
from edgeopt.pipeline.generation.forms import FORMS, with_chunks
from edgeopt.pipeline.generation.material import Material
from edgeopt.pipeline.generation.optimize import LanguageOptions, optimize_language_model
from edgeopt.pipeline.run import Silence
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.tokens import read_tokens
from edgeopt.runtime.availability import find_device
from edgeopt.runtime.decoding.batching.shared_model import CHUNK_TOKENS, SharedModel
from edgeopt.runtime.decoding.generation import Asked, Piece
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
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


def of_torch(folder: Path) -> Answer:
    """Greedy tokens by transformers in torch, one thread, its own cache."""
    import torch
    import transformers

    torch.set_num_threads(1)
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(prompt: list[int]) -> tuple[float, float, list[int]]:
        began_s, given, cache = perf_counter(), torch.tensor([prompt]), None
        at_s, tokens = list[float](), list[int]()
        with torch.inference_mode():
            for _ in range(NEXT):
                found = module(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = found.past_key_values
                given = found.logits[:, -1].argmax(-1, keepdim=True)
                tokens.append(int(given))
                at_s.append(perf_counter() - began_s)
        return at_s[0], (at_s[-1] - at_s[0]) / (NEXT - 1), tokens

    return answer


def of_traced(folder: Path, work: Path) -> tuple[Answer, Answer]:
    """The same weights traced by torch: as ONNX Runtime gets it, and fused."""
    from edgeopt.graph.model import save_model
    from edgeopt.pipeline.export.decoder.traced import TracedDecoder
    from edgeopt.pipeline.generation.fusion import fuse_decoder

    made = list[Answer]()
    graph = TracedDecoder(folder).traced("traced")
    for name, model in {"traced": graph, "fused": fuse_decoder(graph, CONTEXT, 1024).model}.items():
        save_model(model, work / name / "model.onnx")
        for beside in ("recipe.toml", "tokenizer.json"):
            shutil.copyfile(work / "onnx" / beside, work / name / beside)
        made.append(ours(open_language_model(work / name / "model.onnx", 1)[0]))
    return made[0], made[1]


def ratio(theirs: list[float], mine: list[float]) -> Ratio:
    return ratio_of_rounds(np.log(np.array(theirs) / np.array(mine)), pairs=len(mine))


def against(name: str, theirs: Answer, mine: Answer, rounds: int) -> None:
    """Print both times of another over ours, in turns."""
    text = read_tokens(SHIPPED / "tokenizer.json").encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    both: dict[str, Answer] = {"edgeopt": mine, name: theirs}
    print(
        f"\n| context | TTFT, {name} over ours | TPOT, {name} over ours | same tokens |\n|--:|---|---|---|", flush=True
    )
    for length in (128, 512, 1024):
        found: dict[str, list[tuple[float, float, list[int]]]] = {one: [] for one in both}
        for number in range(-1, rounds):
            start = (number + 1) * 97 % (len(text) - length)
            prompt = [0, *text[start : start + length - 1]]
            for one in list(both)[:: -1 if number % 2 else 1]:
                made = both[one](prompt)
                if number >= 0:
                    found[one].append(made)
        same = sum(a[2] == b[2] for a, b in zip(found["edgeopt"], found[name], strict=True))
        told = [ratio([one[i] for one in found[name]], [one[i] for one in found["edgeopt"]]) for i in (0, 1)]
        print(f"| {length} | {told[0]} | {told[1]} | {same} of {rounds} |", flush=True)


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


def of_stored_prefixes(file: Path, work: Path, rounds: int) -> None:
    """TTFT behind a prefix of 512 tokens that is read from disk by a model that is opened anew, over the suffix's."""
    folder, behind, alone, read_ms = work / "prefixes", list[float](), list[float](), list[float]()
    for number in range(-1, rounds):
        model, _ = open_language_model(file, 1)
        text = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
        rest = text[600 + 40 * number : 632 + 40 * number]
        list(model.generate(rest, Asked(1, ends=False)))  # the first run of a session is slower
        model.forget()
        began_s = perf_counter()
        prefix = model.keep_prefix(text[:512], folder)
        took_ms = 1e3 * (perf_counter() - began_s)
        begun = model.generate(prefix.before(rest), Asked(1, ends=False))
        list(begun)
        assert begun.account.reused_tokens >= 512, begun.account
        model.forget()
        whole = model.generate(rest, Asked(1, ends=False))
        list(whole)
        model.close()
        if number >= 0:
            assert not prefix.computed_tokens, prefix.note
            read_ms.append(took_ms)
            behind.append(begun.account.token_at_ns[0] / 1e9)
            alone.append(whole.account.token_at_ns[0] / 1e9)
    print(f"\nTTFT of 32 tokens behind 512 read from disk, over that of the 32 alone: {ratio(behind, alone)}")
    print(f"reading them: {np.median(read_ms):.1f} ms, once a process")


def of_forms(file: Path, work: Path) -> None:
    print(
        "\n| prompt | answer | form | answer | TTFT | TPOT | perplexity | |\n|--:|--:|---|---|---|---|---|---|",
        flush=True,
    )
    for prompt, output in ((128, 64), (512, 4)):
        options = LanguageOptions(prompt, output, threads=1, seconds=40.0)
        found = optimize_language_model(
            str(file), target="cpu", out=work / f"out-{prompt}-{output}", options=options, listener=Silence()
        )
        for one in found.forms:
            speeds = " | ".join(str(one.speed[part]) for part in ("answer", "TTFT", "TPOT")) if one.speed else " | | "
            told = "chosen" if one.name == found.chosen else one.out
            print(
                f"| {prompt} | {output} | {one.name} | {speeds} | {one.perplexity:.3f} {one.rise or ''} | {told} |",
                flush=True,
            )


def of_first_tokens(file: Path, work: Path, rounds: int) -> None:
    """TTFT of the exported graph over that of the forms for long prompts, in turns; by clock and by time of the CPU."""
    material = Material(load_model(file), find_device("cpu"), (), 1, 0, 0.02, Silence())
    original, recipe = open_language_model(file, 1)
    models, recipe = {"fp32": original}, with_chunks(recipe)
    for form in FORMS[:2]:
        place = work / f"first-{form.name}"
        place.mkdir(parents=True, exist_ok=True)
        save_model(keep_last_logits(form.make(material).model).model, place / "model.onnx")
        shutil.copyfile(file.parent / "tokenizer.json", place / "tokenizer.json")
        told = replace(recipe, evaluation=replace(recipe.evaluation, calib=""), folder=place)
        (place / "recipe.toml").write_text(recipe_text(told, name=told.name, labels=""), "utf-8")
        models[form.name] = open_language_model(place / "model.onnx", 1)[0]
    text = read_tokens(SHIPPED / "tokenizer.json").encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    print("\n| prompt | form | TTFT, fp32 over it | the same in CPU time | ms |\n|--:|---|---|---|--:|")
    for length in (128, 512):
        clock: dict[str, list[float]] = {name: [] for name in models}
        processor: dict[str, list[float]] = {name: [] for name in models}
        for number in range(-1, rounds):
            start = (number + 1) * 97 % (len(text) - length)
            for name in list(models)[:: -1 if number % 2 else 1]:
                models[name].forget()
                began_s, worked_s = perf_counter(), thread_time()
                list(models[name].generate([0, *text[start : start + length - 1]], Asked(1, ends=False)))
                if number >= 0:
                    clock[name].append(perf_counter() - began_s)
                    processor[name].append(thread_time() - worked_s)
        for name in list(models)[1:]:
            ratios = [ratio(found["fp32"], found[name]) for found in (clock, processor)]
            median_ms = 1e3 * float(np.median(clock[name]))
            print(f"| {length} | {name} | {ratios[0]} | {ratios[1]} | {median_ms:.0f} |", flush=True)
    for model in models.values():
        model.close()


SIX = ((32, 64), (48, 48), (24, 64), (64, 32), (16, 64), (40, 48))
"""Tokens of prompt and answer of six requests."""
LONG_PROMPT, PART = 512, CHUNK_TOKENS
_FIGURES = ("tokens_per_s", "worst_ttft", "largest_gap")


@dataclass(frozen=True)
class Served:
    """Requests that were answered, times in seconds."""

    tokens_per_s: float
    worst_ttft: float
    largest_gap: float
    """Between two tokens of one answer."""
    tokens: tuple[tuple[int, ...], ...]


def serve(
    generate: Callable[..., Iterator[Piece]], requests: list[tuple[list[int], int]], instants_s: list[float]
) -> Served:
    """Ask for answers, one thread each; all times are by the clock of this client.

    Args:
        generate: Prompt and what is asked -> pieces.
        requests: Tokens of the prompt, and how many the answer has.
        instants_s: When each is asked.
    """
    began_s = perf_counter()

    def answer(i: int) -> tuple[float, list[float], tuple[int, ...]]:
        sleep(max(0.0, instants_s[i] - (perf_counter() - began_s)))
        asked_s, at_s, tokens = perf_counter(), list[float](), list[int]()
        for piece in generate(requests[i][0], Asked(requests[i][1], ends=False)):
            at_s.append(perf_counter())
            tokens.append(piece.token)
        return asked_s, at_s, tuple(tokens)

    with ThreadPoolExecutor(len(requests)) as pool:
        found = list(pool.map(answer, range(len(requests))))
    over_s = max(at_s[-1] for _, at_s, _ in found) - began_s
    gaps = [float(np.diff(at_s).max()) for _, at_s, _ in found if len(at_s) > 1]
    tokens = tuple(one[2] for one in found)
    return Served(sum(map(len, tokens)) / over_s, max(at[0] - asked for asked, at, _ in found), max(gaps), tokens)


def of_batching(file: Path, rounds: int) -> None:
    """Six requests in four slots against one at a time; a long prompt that comes while three texts are written."""
    model, _ = open_language_model(file, 1)
    text = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    busy = Lock()

    def one_at_a_time(prompt: list[int], asked: Asked) -> Iterator[Piece]:
        with busy:
            model.forget()
            yield from model.generate(prompt, asked)

    def cut(number: int, length: int) -> list[int]:
        start = (701 * number) % (len(text) - length)
        return text[start : start + length]

    def six_of(number: int) -> list[tuple[list[int], int]]:
        return [(cut(6 * number + i, prompt), output) for i, (prompt, output) in enumerate(SIX)]

    def in_slots(requests: list[tuple[list[int], int]], instants_s: list[float], chunk: int) -> Served:
        with SharedModel(model, 4, chunk_tokens=chunk) as shared:
            return serve(shared.generate, requests, instants_s)

    alone_s = serve(one_at_a_time, six_of(rounds + 1)[:1], [0.0])
    apart_s = 0.4 * SIX[0][1] / alone_s.tokens_per_s
    cases = {"at once": [0.0] * len(SIX), "staggered": [i * apart_s for i in range(len(SIX))]}
    ways: dict[str, Callable[[list[tuple[list[int], int]], list[float]], Served]] = {
        "one at a time": lambda requests, instants_s: serve(one_at_a_time, requests, instants_s),
        "4 slots": lambda requests, instants_s: in_slots(requests, instants_s, PART),
    }
    found: dict[tuple[str, str], list[Served]] = {(way, case): [] for case in cases for way in ways}
    gaps: dict[int, list[Served]] = {0: [], PART: []}
    for number in range(-1, rounds):
        for way in list(ways)[:: -1 if number % 2 else 1]:
            for case, instants_s in cases.items():
                made = ways[way](six_of(number + 1), instants_s)
                if number >= 0:
                    found[way, case].append(made)
        writers = [(cut(90 + 3 * number + i, 16), 64) for i in range(3)]
        for chunk in list(gaps)[:: -1 if number % 2 else 1]:
            long = (cut(number + 40, LONG_PROMPT), 4)
            made = in_slots([*writers, long], [0.0, 0.0, 0.0, apart_s], chunk)
            if number >= 0:
                gaps[chunk].append(made)
    print(f"\nsix requests, at once or {1e3 * apart_s:.0f} ms after each other; medians of {rounds} rounds")
    print("\n| | requests | tokens/s | worst TTFT ms | largest gap ms |\n|---|---|--:|--:|--:|")
    for (way, case), rows in found.items():
        print(f"| {way} | {case} | {' | '.join(medians(rows))} |")
    for chunk, rows in gaps.items():
        name = f"parts of {chunk}" if chunk else "whole prompts"
        print(f"| 4 slots, {name} | three, then a prompt of {LONG_PROMPT} | {' | '.join(medians(rows))} |")

    def over(first: list[Served], second: list[Served], figure: int) -> Ratio:
        return ratio(*([getattr(one, _FIGURES[figure]) for one in rows] for rows in (first, second)))

    single, slots = ({case: found[way, case] for case in cases} for way in ways)
    print(f"\nat once, tokens/s of 4 slots over one at a time: {over(slots['at once'], single['at once'], 0)}")
    print(f"staggered, worst TTFT of one at a time over 4 slots: {over(single['staggered'], slots['staggered'], 1)}")
    print(f"largest gap with whole prompts over parts of {PART}: {over(gaps[0], gaps[PART], 2)}")
    pairs = zip(slots["at once"], single["at once"], strict=True)
    print(f"rounds with the tokens of one at a time: {sum(a.tokens == b.tokens for a, b in pairs)} of {rounds}")
    model.close()


def medians(rows: list[Served]) -> list[str]:
    tokens, ttft, gap = (float(np.median([getattr(one, figure) for one in rows])) for figure in _FIGURES)
    return [f"{tokens:.0f}", f"{1e3 * ttft:.0f}", f"{1e3 * gap:.1f}"]


def of_speculation(file: Path, work: Path, rounds: int) -> None:
    """TPOT with guesses, measured in turns and predicted, by the draft of the shipped model and by the text so far.

    The tokens are compared with those of an exact answer without guesses, whose TPOT is told too; `w8a8` has none.
    """
    model = load_model(file)
    made = {
        "fp32": model,
        "w8a8": make_dynamic(model, find_device("cpu").rules_here).model,
        "w8": make_weight_only(model, 8, 128).model,
        "w4": make_weight_only(model, 4).model,
        "w4+long": make_weight_only(model, 4, 128).model,
    }
    print("\n| weights | guesses | right | tokens a run | predicted | measured | exact | same tokens |", flush=True)
    print("|---|---|--:|--:|--:|---|---|--:|", flush=True)
    for name, one in made.items():
        place = work / f"guess-{name}"
        place.mkdir(parents=True, exist_ok=True)
        for beside in ("recipe.toml", "tokenizer.json"):
            shutil.copyfile(file.parent / beside, place / beside)
        recipe = (place / "recipe.toml").read_text("utf-8").replace('calib = "held_out.txt"', "")
        drafted = '[generation]\ndraft = "draft.onnx"\ndraft_context = 1024'
        (place / "recipe.toml").write_text(recipe.replace("[generation]", drafted), "utf-8")
        shutil.copyfile(SHIPPED / "draft" / "model.onnx", place / "draft.onnx")
        save_model(one, place / "model.onnx")
        opened, _ = open_language_model(place, 1)
        text = opened.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
        prompts = [[0, *text[start : start + 127]] for start in range(0, 97 * rounds, 97)]
        forecast = forecast_guesses(opened, prompts[:3], 64)
        costs = ", ".join(f"{width}: {cost:.2f}" for width, cost in forecast.costs)
        for by in (DRAFT, TEXT):
            plan = max((one for one in forecast.plans if one.by == by), key=lambda one: one.gain)
            asked = {"plain": Asked(64, guesses=0, ends=False)}
            exact = True if opened.sums is not Sums.APART else None
            asked["guessing"] = Asked(64, guesses=plan.guesses, uses_draft=by == DRAFT, exact=exact, ends=False)
            if exact:
                asked["exact"] = Asked(64, guesses=0, exact=True, ends=False)
            times, same = {kind: list[float]() for kind in asked}, 0
            for number, prompt in enumerate(prompts):
                tokens = dict[str, list[int]]()
                for kind in list(asked)[:: -1 if number % 2 else 1]:
                    opened.forget()
                    answer = opened.generate(prompt, asked[kind])
                    tokens[kind] = [piece.token for piece in answer]
                    times[kind].append(answer.account.tpot_ms or 0.0)
                same += tokens["guessing"] == tokens.get("exact", tokens["plain"])
            told = f"{plan.acceptance:.0%} | {plan.tokens_a_run:.2f} | {plan.gain_told}"
            told += f" | {ratio(times['plain'], times['guessing'])}"
            told += f" | {ratio(times['plain'], times['exact'])}" if "exact" in times else " |"
            print(f"| {name} | {plan.guesses} by the {by} | {told} | {same} of {rounds} |", flush=True)
        print(f"  a run of so many tokens, over one: {costs}; best: {forecast}", flush=True)
        opened.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default="prefix,forms,batching,speculation")
    parser.add_argument("--work", type=Path, default=Path("generation-work"))
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    file = exported(given.work)
    size = sum(int(np.prod(one.dims)) for one in load_model(file).proto.graph.initializer)
    print(f"{read_environment().cpu}, one thread; {size / 1e6:.0f} million numbers, fp32")
    parts = given.parts.split(",")
    if "torch" in parts:
        with open_language_model(file, 1)[0] as model:
            against("torch", of_torch(given.work / "large"), ours(model), given.rounds)
    if "fusion" in parts:
        traced, fused = of_traced(given.work / "large", given.work)
        against("the traced graph", traced, fused, given.rounds)
    if "prefix" in parts:
        of_prefixes(file, given.rounds)
        of_stored_prefixes(file, given.work, given.rounds)
    if "batching" in parts:
        of_batching(file, given.rounds)
    if "ttft" in parts:
        of_first_tokens(file, given.work, given.rounds)
    if "forms" in parts:
        of_forms(file, given.work)
    if "speculation" in given.parts:
        of_speculation(file, given.work, given.rounds)


if __name__ == "__main__":
    main()
