"""Texts at once: requests in slots against one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import perf_counter, sleep

import numpy as np
from enlarged import SHIPPED
from turns import ratio

from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.runtime.decoding.batching.shared_model import CHUNK_TOKENS, SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions, Piece
from edgeopt.runtime.decoding.opening import open_language_model

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
        for piece in generate(requests[i][0], AnswerOptions(requests[i][1], ends=False)):
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

    def one_at_a_time(prompt: list[int], asked: AnswerOptions) -> Iterator[Piece]:
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
