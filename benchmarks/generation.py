"""Language models: our decoding against torch's, fusion, stored prefixes, texts at once, forms.

    pip install edgeopt[cpu] torch onnxscript transformers
    python benchmarks/generation.py [--work FOLDER] [--rounds 12]
        [--parts torch,fusion,prefix,ttft,forms,batching,speculation]

`torch` is transformers' own loop in torch; `fusion` the same weights traced by torch against what fusion makes of them.

The model is the shipped `tiny_lm` made large, so that its speed is that of 55 million parameters and its tokens are
still its own: products get neurons whose way out is zero, and layers that add next to nothing are put between its
layers. All times are ratios of runs in turns, in one process, with one thread; intervals are of 95 %.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter, thread_time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported
sys.path.insert(0, str(Path(__file__).parent / "generation"))

import numpy as np
from batching import of_batching
from enlarged import CONTEXT, SHIPPED, exported
from speculation import of_speculation
from turns import NEXT, Answer, against, ours, ratio

from edgeopt.executors.onnxruntime import EXECUTOR  # noqa: F401 - telemetry is off before others bring onnxruntime
from edgeopt.graph.model import load_model, save_model
from edgeopt.optimization.generation.forms.kinds import FORMS, with_chunks
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.run import Silence
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.system.machine.environment import read_environment


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
    from edgeopt.export.decoder.traced import TracedDecoder
    from edgeopt.graph.model import save_model
    from edgeopt.steps.convert.decoder_fusion import fuse_decoder

    made = list[Answer]()
    graph = TracedDecoder(folder).traced("traced")
    for name, model in {"traced": graph, "fused": fuse_decoder(graph, CONTEXT, 1024).model}.items():
        save_model(model, work / name / "model.onnx")
        for beside in ("recipe.toml", "tokenizer.json"):
            shutil.copyfile(work / "onnx" / beside, work / name / beside)
        made.append(ours(open_language_model(work / name / "model.onnx", 1)[0]))
    return made[0], made[1]


def of_prefixes(file: Path, rounds: int) -> None:
    """TTFT of a prompt whose first 512 tokens are stored, over that of its other tokens alone."""
    model, _ = open_language_model(file, 1)
    text = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    stored, alone = list[float](), list[float]()
    for number in range(-1, rounds):
        prefix, rest = text[:512], text[600 + 40 * number : 632 + 40 * number]
        model.forget()
        list(model.generate(prefix, AnswerOptions(1, ends=False)))
        begun = model.generate([*prefix, *rest], AnswerOptions(1, ends=False))
        list(begun)
        assert begun.account.reused_tokens >= 512, begun.account
        model.forget()
        whole = model.generate(rest, AnswerOptions(1, ends=False))
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
        list(model.generate(rest, AnswerOptions(1, ends=False)))  # the first run of a session is slower
        model.forget()
        began_s = perf_counter()
        prefix = model.keep_prefix(text[:512], folder)
        took_ms = 1e3 * (perf_counter() - began_s)
        begun = model.generate(prefix.before(rest), AnswerOptions(1, ends=False))
        list(begun)
        assert begun.account.reused_tokens >= 512, begun.account
        model.forget()
        whole = model.generate(rest, AnswerOptions(1, ends=False))
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
        for one in found.candidates:
            speeds = " | ".join(str(one.speed[part]) for part in ("answer", "TTFT", "TPOT")) if one.speed else " | | "
            told = "chosen" if one.name == found.chosen else one.out
            print(
                f"| {prompt} | {output} | {one.name} | {speeds} | {one.perplexity:.3f} {one.rise or ''} | {told} |",
                flush=True,
            )


def of_first_tokens(file: Path, work: Path, rounds: int) -> None:
    """TTFT of the exported graph over that of the forms for long prompts, in turns; by clock and by time of the CPU."""
    material = DecoderMaterial(load_model(file), find_device("cpu"), (), 1, 0, 0.02, Silence())
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
                list(models[name].generate([0, *text[start : start + length - 1]], AnswerOptions(1, ends=False)))
                if number >= 0:
                    clock[name].append(perf_counter() - began_s)
                    processor[name].append(thread_time() - worked_s)
        for name in list(models)[1:]:
            ratios = [ratio(found["fp32"], found[name]) for found in (clock, processor)]
            median_ms = 1e3 * float(np.median(clock[name]))
            print(f"| {length} | {name} | {ratios[0]} | {ratios[1]} | {median_ms:.0f} |", flush=True)
    for model in models.values():
        model.close()


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
