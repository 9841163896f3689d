"""The same load in several numbers of slots, one after the other: what more slots give and cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.generation.under_load.load import LoadRun, planned_s, run_load
from edgeopt.measurement.generation.under_load.load_result import LoadTimes
from edgeopt.measurement.load.models import Load
from edgeopt.recipes.texts.answer_defaults import SLOTS
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.amounts import Tenths
from edgeopt.system.disk.files import write_beside
from edgeopt.system.text import format_bytes, plural

_WARM_TOKENS = 8
"""Tokens of the answers that warm slots up."""


def cut_prompt(texts: Sequence[int], count: int, chance: np.random.Generator) -> list[int]:
    """Return `count` tokens from anywhere in a text."""
    start = int(chance.integers(0, len(texts) - count + 1))
    return list(texts[start : start + count])


def measure_in_slots(
    opened: LanguageModel,
    texts: Sequence[int],
    load: Load,
    *,
    slots: Sequence[int],
    prompt_tokens: Sequence[int],
    output_tokens: int,
    seconds: float,
    seed: int,
    least: int,
    tell: Callable[[str, int, int], None],
) -> Iterator[LoadRun]:
    """Yield a run for each number of slots: the same requests, prompts of all lengths by turns.

    Args:
        opened: The model.
        texts: Tokens of which prompts are cut.
        load: When requests come.
        slots: One or more; none: `SLOTS`.
        prompt_tokens: Lengths of prompts.
        output_tokens: Of each answer.
        seconds: Each run takes at least so long.
        seed: Of arrivals and prompts.
        least: Answers that are wanted of each run.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If memory does not suffice for the longest prompt and its answer.
    """
    opened.forget()
    longest = max(prompt_tokens) + output_tokens
    asked = AnswerOptions(most_tokens=output_tokens, ends=False)

    def prompt(number: int) -> list[int]:
        count = prompt_tokens[number % len(prompt_tokens)]
        return cut_prompt(texts, count, np.random.default_rng([seed, number]))[: count - opened.begins_with]

    for number in slots or (SLOTS,):
        with SharedModel(opened, number) as shared:
            if longest * opened.token_bytes > shared.cache_bytes:
                raise EdgeoptError(
                    f"a prompt and its answer of {longest} tokens need {format_bytes(longest * opened.token_bytes)} "
                    f"of the cache, there is memory for {format_bytes(shared.cache_bytes)}",
                    remedy="ask for shorter prompts or answers, or close other programs",
                )
            for answer in [shared.generate(prompt(i), AnswerOptions(_WARM_TOKENS, ends=False)) for i in range(number)]:
                answer.text()
            shared.forget()
            title = f"measure {load} in {plural(number, 'slot')}"

            whole = Tenths(10 * planned_s(load, seconds, least))

            def told(over_s: float, title: str = title, whole: int = whole) -> None:
                tell(title, min(int(10 * over_s), whole), whole)

            yield run_load(shared, prompt, load, asked, seconds=seconds, seed=seed, least=least, tell=told)


def notes_of(loads: Sequence[LoadTimes]) -> Iterator[Note]:
    """Yield what a reader of the figures must know."""
    if loads and not loads[0].is_together:
        yield Note(
            NoteKind.WARNING,
            f"texts take turns, one run a token: {loads[0].turns_told}",
        )
    for load in loads:
        if load.growth_ratio is not None:
            yield Note(
                NoteKind.WARNING,
                f"{load.load} is more than {plural(load.slots, 'slot')} can serve: waiting grows by "
                f"{load.growth_ratio:.2f} s a second",
                "its times only say how long was measured",
            )


def write_answers(file: Path, runs: Sequence[LoadRun]) -> None:
    """Write one line of JSON a request: instants in nanoseconds, those of a request since its run began.

    Raises:
        InvalidFileError: If the file cannot be written.
    """
    lines = [
        json.dumps({"load": run.load, "slots": run.slots, **asdict(request)})
        for run in runs
        for request in run.requests
    ]
    write_beside(file, "".join(f"{line}\n" for line in lines))
