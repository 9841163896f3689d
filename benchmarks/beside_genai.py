"""Language models: our decoding, and figures of `edgeopt bench`, beside onnxruntime-genai's, in fresh processes.

    pip install edgeopt[cpu] onnxruntime-genai torch onnxscript transformers
    python benchmarks/beside_genai.py [--work FOLDER] [--processes 16] [--lengths 128,512,1024] [--ways turns,bench]

The model is that of `generation.py`, one thread. Where a process's weights lie in memory decides up to 10 % of a
token's time, for whoever opened them, so each process gives one value: both sides in turns inside it, opened in the
other order by every second one. Intervals are of 95 %.

`bench` is held to the loop of genai's own `benchmark_e2e.py` twice, both in huge pages, which only edgeopt asks for:
with genai's model inside it, and with ours. The first holds what one engine is faster by, the second no more than what
two ways of timing differ in.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from threading import enumerate as threads_now
from time import perf_counter

import numpy as np
from generation import CONTEXT, NEXT, SHIPPED, exported, ours, ratio

from edgeopt.measurement.generation.bench import prepare_language
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.machine.huge_pages import MOVER, huge_pages

ROUNDS = 4
"""Answers of each side a process and length, behind one that warms up."""


@dataclass(frozen=True)
class Told:
    """Figures of one process for one length."""

    ours_ttft_s: float
    genai_ttft_s: float
    ours_tpot_s: float
    genai_tpot_s: float
    same: int
    """Answers of `ROUNDS` with the same tokens."""


Answer = Callable[[list[int]], tuple[float, float, list[int]]]


def of_genai(folder: Path) -> Answer:
    """Return answers of genai, as its benchmark times them: append and first token, then each next one."""
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


def prompts(length: int) -> list[list[int]]:
    text = read_tokens(SHIPPED / "tokenizer.json").encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    return [[0, *text[97 * i : 97 * i + length - 1]] for i in range(ROUNDS + 1)]


def in_turns(file: Path, length: int, number: int) -> Told:
    """Answer by both in turns; who is opened first changes with the number."""
    opening: dict[str, Callable[[], Answer]] = {
        "ours": lambda: ours(open_language_model(file, 1)[0]),
        "genai": lambda: of_genai(file.parent),
    }
    both = {name: opening[name]() for name in list(opening)[:: -1 if number % 2 else 1]}
    wait_for_pages()
    found: dict[str, list[tuple[float, float, list[int]]]] = {name: [] for name in both}
    for i, prompt in enumerate(prompts(length)):
        for name in list(both)[:: -1 if i % 2 else 1]:
            made = both[name](prompt)
            if i:
                found[name].append(made)
    mine, theirs = found["ours"], found["genai"]
    medians = (float(np.median([one[i] for one in side])) for i in (0, 1) for side in (mine, theirs))
    return Told(*medians, same=sum(a[2] == b[2] for a, b in zip(mine, theirs, strict=True)))


def from_outside(file: Path) -> Answer:
    """Return answers of ours, timed as genai's benchmark times its own: by a clock around each token."""
    model = open_language_model(file, 1)[0]

    def answer(prompt: list[int]) -> tuple[float, float, list[int]]:
        model.forget()
        began_s = perf_counter()
        at_s, tokens = list[float](), list[int]()
        with model.generate(prompt, AnswerOptions(NEXT, ends=False)) as made:
            for piece in made:
                tokens.append(piece.token)
                at_s.append(perf_counter() - began_s)
        return at_s[0], (at_s[-1] - at_s[0]) / (NEXT - 1), tokens

    return answer


def genai_in_huge_pages(file: Path) -> Answer:
    with huge_pages():
        return of_genai(file.parent)


def by_bench(opened: Callable[[Path], Answer], file: Path, length: int, number: int) -> Told:
    """Figures of `edgeopt bench`, and of genai's loop around what is opened, one after the other."""
    found = dict[str, tuple[float, float]]()
    for name in ("bench", "loop")[:: -1 if number % 2 else 1]:
        if name == "bench":
            with prepare_language(file, GenerationOptions((length,), NEXT, seconds=4.0, threads=1)) as block:
                own = block.run(None).lengths[0]
            found[name] = (own.ttft.p50.value_ms or 0) / 1e3, (own.tpot.p50.value_ms or 0) / 1e3
            continue
        answer = opened(file)
        wait_for_pages()
        made = [answer(prompt) for prompt in 2 * prompts(length)][1:]
        found[name] = float(np.median([one[0] for one in made])), float(np.median([one[1] for one in made]))
    return Told(*(found[name][i] for i in (0, 1) for name in ("bench", "loop")), same=0)


def wait_for_pages() -> None:
    """Wait until weights lie where they stay."""
    for one in threads_now():
        if one.name == MOVER:
            one.join()


WAYS: dict[str, Callable[[Path, int, int], Told]] = {
    "turns": in_turns,
    "bench": partial(by_bench, genai_in_huge_pages),
    "loop": partial(by_bench, from_outside),
}


def asked(way: str, work: Path, length: int, number: int) -> Told:
    """Return what a fresh process tells."""
    command = [sys.executable, __file__, "--work", str(work), "--once", f"{way},{length},{number}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Told(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("generation-work"))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--lengths", default="128,512,1024")
    parser.add_argument("--ways", default="turns,bench,loop")
    parser.add_argument("--once", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    file = exported(given.work)
    if given.once:
        way, length, number = given.once.split(",")
        print(json.dumps(astuple(WAYS[way](file, int(length), int(number)))))
        return
    print(f"{read_environment().cpu}, one thread; {given.processes} processes of {ROUNDS} answers of {NEXT} tokens")
    told = {
        "turns": "genai over ours",
        "bench": "genai's benchmark over edgeopt bench",
        "loop": "ours in the loop of genai's benchmark over edgeopt bench",
    }
    for way in given.ways.split(","):
        name = told[way]
        print(f"\n| context | TTFT, {name} | TPOT, {name} | same tokens |\n|--:|---|---|--:|", flush=True)
        for length in map(int, given.lengths.split(",")):
            found = [asked(way, given.work, length, number) for number in range(given.processes)]
            ttft = ratio([one.genai_ttft_s for one in found], [one.ours_ttft_s for one in found])
            tpot = ratio([one.genai_tpot_s for one in found], [one.ours_tpot_s for one in found])
            same = f"{sum(one.same for one in found)} of {ROUNDS * len(found)}" if way == "turns" else "-"
            print(f"| {length} | {ttft} | {tpot} | {same} |", flush=True)


if __name__ == "__main__":
    main()
