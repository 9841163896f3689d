"""Measure a language model: answers of a fixed length to prompts of fixed lengths, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter_ns

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.generation.result import GenerationBench, LengthTimes
from edgeopt.measurement.statistics.quantile import summarize
from edgeopt.runtime.decoding.generation import Account, Asked
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.environment import read_environment
from edgeopt.system.files import read_text
from edgeopt.system.text import plural
from edgeopt.system.threads import engine_threads

_LEAST_ANSWERS = 6
"""Of each length: fewer give a median no interval."""
_MOST_TEXT_BYTES = 16 << 20
_WARM_UP = 1
"""Answers of each length that are not counted."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What is measured."""

    prompt_tokens: tuple[int, ...]
    output_tokens: int = 64
    seconds: float = 5.0
    """At least so long, and at least six answers of each length."""
    threads: int = 0
    seed: int = 0


@dataclass(slots=True)
class _Times:
    """Times of the answers of one length, in nanoseconds."""

    ttft: list[int] = field(default_factory=list)
    tpot: list[int] = field(default_factory=list)
    itl: list[int] = field(default_factory=list)
    tokenize: list[int] = field(default_factory=list)
    prefill: list[int] = field(default_factory=list)

    def add(self, account: Account, tokenize_ns: int) -> None:
        times = account.token_at_ns
        self.ttft.append(times[0])
        self.prefill.append(account.prefill_ns)
        self.tokenize.append(tokenize_ns)
        if len(times) > 1:
            self.tpot.append((times[-1] - times[0]) // (len(times) - 1))
            self.itl += np.diff(times).tolist()


def bench_generation(
    model: Path, options: GenerationOptions, *, tell: Callable[[str, int, int], None] = lambda *_: None
) -> GenerationBench:
    """Return the times of answers; the end of a text ends none of them, and no cache is reused.

    Args:
        model: The ONNX file, with its recipe and tokenizer beside it.
        options: What is measured.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If it is no language model, or a prompt and its answer are longer than its context.
    """
    threads, began_s = engine_threads(options.threads), monotonic()
    before_ns = perf_counter_ns()
    opened, recipe = open_language_model(model, threads)
    load_ms = (perf_counter_ns() - before_ns) / 1e6
    with opened:
        longest = max(options.prompt_tokens) + options.output_tokens
        if longest > opened.context:
            raise EdgeoptError(
                f"{plural(max(options.prompt_tokens), 'prompt token')} and {options.output_tokens} of the answer are "
                f"{longest}, the context has {opened.context}",
                remedy="ask for shorter prompts or answers",
            )
        texts = _texts(recipe.path_of(recipe.evaluation.calib), opened)
        measured = _measure(opened, texts, options, tell)
        notes = () if recipe.evaluation.calib else (_MADE_UP,)
        return GenerationBench(
            model=recipe.name,
            file=str(model),
            size_bytes=model.stat().st_size,
            parameters_told=recipe.description,
            threads=threads,
            cpu=read_environment().cpu,
            load_ms=load_ms,
            token_bytes=opened.token_bytes,
            context=opened.context,
            lengths=tuple(_length(count, options.output_tokens, times) for count, times in measured.items()),
            seconds=monotonic() - began_s,
            notes=notes,
        )


_MADE_UP = Note(
    NoteKind.INFO, "prompts are random tokens: the recipe names no text", "write calib = TEXT under [evaluation]"
)


def _texts(file: Path | None, opened: LanguageModel) -> list[int]:
    """Return tokens of which prompts are cut: those of the recipe's text, or random ones."""
    if file is not None:
        text = read_text(file, remedy="name a text in UTF-8", most_bytes=_MOST_TEXT_BYTES)
        tokens = opened.tokenizer.encode(text)
        return tokens * (1 + 2 * opened.context // max(len(tokens), 1))
    special = set(opened.tokenizer.special.values())
    plain = [one for one in range(opened.tokenizer.size) if one not in special]
    drawn: list[int] = np.random.default_rng(0).choice(plain, 4 * opened.context).tolist()
    return drawn


def _measure(
    opened: LanguageModel, texts: Sequence[int], options: GenerationOptions, tell: Callable[[str, int, int], None]
) -> dict[int, _Times]:
    """Ask for one answer of each length after the other, until there are enough of each."""
    measured = {count: _Times() for count in options.prompt_tokens}
    chance = np.random.default_rng(options.seed)
    asked = Asked(most_tokens=options.output_tokens, ends=False)
    rounds, began_s = -_WARM_UP, monotonic()
    while rounds < _LEAST_ANSWERS or monotonic() - began_s < options.seconds:
        for count, times in measured.items():
            opened.forget()
            start = int(chance.integers(0, len(texts) - count + 1))
            tokens = list(texts[start : start + count])
            words, before_ns = opened.tokenizer.decode(tokens), perf_counter_ns()
            opened.tokenizer.encode(words)
            tokenize_ns = perf_counter_ns() - before_ns
            with opened.generate(tokens[: count - opened.begins_with], asked) as answer:
                for _ in answer:
                    pass
            if rounds >= 0:
                times.add(answer.account, tokenize_ns)
        if rounds == -1:
            began_s = monotonic()
        rounds += 1
        shown = min(int(10 * (monotonic() - began_s)), int(10 * options.seconds))
        tell("measure answers, tenths of a second", shown, int(10 * options.seconds))
    return measured


def _length(count: int, output_tokens: int, times: _Times) -> LengthTimes:
    def told(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.int64)

    return LengthTimes(
        prompt_tokens=count,
        output_tokens=output_tokens,
        answers=len(times.ttft),
        ttft=summarize(told(times.ttft)),
        tpot=summarize(told(times.tpot)),
        itl=summarize(told(times.itl)),
        tokenize=summarize(told(times.tokenize)),
        prefill=summarize(told(times.prefill)),
    )
