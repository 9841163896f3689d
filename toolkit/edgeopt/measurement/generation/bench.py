"""Measure a language model: answers of a fixed length to prompts of fixed lengths, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, perf_counter_ns

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.fresh_process.language_start import run_cold_language
from edgeopt.measurement.fresh_process.start import ColdStart
from edgeopt.measurement.generation.budget import (
    AnswerVerdict,
    fewest_to_pass,
    judge_answers,
)
from edgeopt.measurement.generation.doubts import doubts_of_machine
from edgeopt.measurement.generation.guesses import AUTO, DRAFT, GuessForecast, forecast_guesses
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.result import GenerationResult, LengthTimes
from edgeopt.measurement.generation.right_writer import correction_of_decoder
from edgeopt.measurement.generation.under_load.load import LEAST_ANSWERS, LoadRun
from edgeopt.measurement.generation.under_load.load_result import summarize_run
from edgeopt.measurement.generation.under_load.slots import cut_prompt, measure_in_slots, notes_of, write_answers
from edgeopt.measurement.load.models import Load, parse_load
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.statistics.budget import require_provable
from edgeopt.measurement.statistics.quantile import summarize
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.decoding.batching.shared_model import MOST_SLOTS
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.amounts import Tenths
from edgeopt.system.disk.files import read_text, require_writable
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import plural

_LEAST_ANSWERS = 6
"""Least answers of each length: fewer give a median no interval."""
_MOST_TEXT_BYTES = 16 << 20
LONGER = 12
"""Times the seconds asked for, while a budget is not decided."""
_WARM_UP = 1
"""Answers of each length that are not counted."""


@dataclass(slots=True)
class _Times:
    """Times of the answers of one length, in nanoseconds."""

    ttft: list[int] = field(default_factory=list)
    tpot: list[int] = field(default_factory=list)
    itl: list[int] = field(default_factory=list)
    tokenize: list[int] = field(default_factory=list)
    prefill: list[int] = field(default_factory=list)
    detokenize: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)

    def add(self, account: Account, tokenize_ns: int) -> None:
        times = account.token_at_ns
        self.ttft.append(times[0])
        self.prefill.append(account.prefill_ns)
        self.tokenize.append(tokenize_ns)
        self.detokenize.append(account.detokenize_ns)
        self.answer.append(times[-1])
        if len(times) > 1:
            self.tpot.append((times[-1] - times[0]) // (len(times) - 1))
            self.itl += np.diff(times).tolist()

    def judged(self, options: GenerationOptions) -> AnswerVerdict | None:
        """Return what they prove about the budget; None without one, and where answers under a load are judged."""
        times = {"TTFT": self.ttft, "TPOT": self.tpot}
        budget = None if options.whole_load else options.budget
        return judge_answers(budget, times, options.max_miss_ratio) if budget else None


def bench_generation(
    model: Path,
    options: GenerationOptions,
    *,
    out: Path | None = None,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> GenerationResult:
    """Return the times of answers; the end of a text ends none of them, and no cache is reused.

    Args:
        model: A bundle, or the ONNX file with its recipe and tokenizer beside it.
        options: What is measured.
        out: Folder for all requests of a load, `answers.jsonl`; None: they are not written.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If it is no language model, or a prompt and its answer are longer than its context.
    """
    began_s, load = monotonic(), parse_load(options.whole_load) if options.whole_load else None
    require_provable(options.max_miss_ratio, "answers")
    if options.slots and max(options.slots) > MOST_SLOTS:
        raise EdgeoptError(f"{max(options.slots)} slots are more than {MOST_SLOTS}", remedy="ask for fewer slots")
    if out is not None:
        require_writable(out / "answers.jsonl")
    correction = correction_of_decoder(model)
    before_ns = perf_counter_ns()
    draft = Path(options.draft) if options.draft else None
    opened, recipe = open_language_model(model, options.threads, options.context, draft, correction.entries)
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
        forecast, options = _forecast(opened, texts, options, tell)
        readings = [take_reading()]
        alone_s = monotonic()
        measured, first_ttft_ms = _measure(opened, texts, options, tell)
        alone_s = monotonic() - alone_s
        runs = tuple(_under_load(opened, texts, load, options, tell)) if load else ()
        readings.append(take_reading())
        loads = tuple(summarize_run(run, options.budget, options.max_miss_ratio) for run in runs)
        if out is not None and runs:
            write_answers(out / "answers.jsonl", runs)
        notes = *opened.origin.notes, *correction.notes
        made_up = () if recipe.evaluation.calib else (_MADE_UP,)
        guesses = opened.guesses if options.guesses is None else options.guesses
        inexact = notes_of_guesses(opened.sums) if guesses else ()
        return GenerationResult(
            model=recipe.name,
            file=str(opened.origin.file),
            size_bytes=opened.origin.size_bytes,
            parameters_told=recipe.description,
            threads=opened.origin.threads,
            cpu=read_environment().cpu,
            load_ms=load_ms,
            first_ttft_ms=first_ttft_ms,
            token_bytes=opened.token_bytes,
            context=opened.context,
            lengths=tuple(_length(count, options, times) for count, times in measured.items()),
            seconds=monotonic() - began_s,
            loads=loads,
            notes=(
                *notes,
                *made_up,
                *inexact,
                *_told_of_time(options, alone_s),
                *notes_of(loads),
            ),
            disturbed=doubts_of_machine(readings),
            forecast=forecast,
            price_per_s=options.price_per_s,
            cold=_cold(opened, recipe, model, texts, options, tell) if options.cold else None,
        )


def _cold(
    opened: LanguageModel,
    recipe: Recipe,
    model: Path,
    texts: Sequence[int],
    options: GenerationOptions,
    tell: Callable[[str, int, int], None],
) -> ColdStart:
    """Return starts of fresh processes; this one's model stays open meanwhile, and does nothing."""
    file = opened.origin.file
    files = [file, *outside_files(file), recipe.folder / recipe.tokenizer.file]
    prompt = list(texts[: options.prompt_tokens[0] - opened.begins_with])
    return run_cold_language(
        model,
        files,
        prompt,
        opened.origin.threads,
        opened.origin.entries,
        repeats=options.repeats,
        tell=lambda done, of: tell("start fresh processes", done, of),
    )


_MADE_UP = Note(
    NoteKind.INFO, "prompts are random tokens: the recipe names no text", "write calib = TEXT under [evaluation]"
)


def _forecast(
    opened: LanguageModel, texts: Sequence[int], options: GenerationOptions, tell: Callable[[str, int, int], None]
) -> tuple[GuessForecast | None, GenerationOptions]:
    """Return what guesses are predicted to gain, where any are asked for, and the options with their number."""
    if not options.guesses:
        return None, options
    tell("predict what guesses gain", 0, 1)
    count = max(options.prompt_tokens)
    starts = [int(share * (len(texts) - count)) for share in (0.1, 0.5, 0.8)]
    prompts = [texts[start : start + count - opened.begins_with] for start in starts]
    counts = () if options.guesses == AUTO else (options.guesses,)
    forecast = forecast_guesses(opened, prompts, options.output_tokens, counts, uses_draft=options.uses_draft)
    best = forecast.best
    if options.guesses == AUTO:
        chosen = best.guesses if forecast.pays else 0
        return forecast, replace(options, guesses=chosen, uses_draft=best.by == DRAFT)
    return forecast, options


def _texts(file: Path | None, opened: LanguageModel) -> list[int]:
    """Return tokens of which prompts are cut: those of the recipe's text, or random ones."""
    if file is not None:
        text = read_text(file, remedy="name a text in UTF-8", most_bytes=_MOST_TEXT_BYTES)
        tokens = opened.tokenizer.encode(text)
        if not tokens:
            raise EdgeoptError(f"{file} holds no text", remedy="name a text in the recipe, evaluation.calib")
        return tokens * (1 + 2 * opened.context // max(len(tokens), 1))
    special = set(opened.tokenizer.special.values())
    plain = [other for other in range(opened.tokenizer.size) if other not in special]
    drawn: list[int] = np.random.default_rng(0).choice(plain, 4 * opened.context).tolist()
    return drawn


def _measure(
    opened: LanguageModel, texts: Sequence[int], options: GenerationOptions, tell: Callable[[str, int, int], None]
) -> tuple[dict[int, _Times], float]:
    """Ask for one answer of each length after the other, until there are enough of each.

    Returns:
        Times by length, and the TTFT of the very first answer in milliseconds.
    """
    measured, first_ttft_ms = {count: _Times() for count in options.prompt_tokens}, 0.0
    chance = np.random.default_rng(options.seed)
    exact = True if options.guesses and opened.sums is not Sums.APART else None
    asked = AnswerOptions(
        options.output_tokens, guesses=options.guesses, uses_draft=options.uses_draft, exact=exact, ends=False
    )
    rounds, began_s, least_s = -_WARM_UP, monotonic(), 0.0
    while rounds < _LEAST_ANSWERS or _goes_on(measured, options, monotonic() - began_s):
        for count, times in measured.items():
            opened.forget()
            tokens = cut_prompt(texts, count, chance)
            words, before_ns = opened.tokenizer.decode(tokens), perf_counter_ns()
            opened.tokenizer.encode(words)
            tokenize_ns = perf_counter_ns() - before_ns
            with opened.generate(tokens[: count - opened.begins_with], asked) as answer:
                for _ in answer:
                    pass
            first_ttft_ms = first_ttft_ms or answer.account.token_at_ns[0] / 1e6
            if rounds >= 0:
                times.add(answer.account, tokenize_ns)
        if rounds == -1:
            least_s, began_s = _LEAST_ANSWERS * (monotonic() - began_s), monotonic()
        rounds += 1
        took_s = monotonic() - began_s
        tell(*progress_of(options, took_s, least_s))
    return measured, first_ttft_ms


def _told_of_time(options: GenerationOptions, took_s: float) -> Iterator[Note]:
    """Yield that answers took far longer than was asked for; a budget may want that."""
    if options.budget is None and took_s > 2 * options.seconds:
        text = f"one request at a time took {took_s:.1f} s, {options.seconds:g} s were asked for"
        detail = f"{text}: {_LEAST_ANSWERS} answers of each length are the least"
        yield Note(NoteKind.INFO, detail, "ask for shorter prompts or answers")


def progress_of(options: GenerationOptions, took_s: float, least_s: float) -> tuple[str, int, int]:
    """Return what is done, how far, of how much.

    Args:
        options: What is measured.
        took_s: So far.
        least_s: That the least number of answers takes, as the first of each length did.
    """
    title, planned_s = "measure answers", options.seconds
    if least_s > planned_s:
        text = f"{_LEAST_ANSWERS} of each length take about {least_s:.0f} s, {options.seconds:g} s were asked for"
        title, planned_s = f"measure answers ({text})", least_s
    elif took_s > planned_s:
        planned_s *= LONGER
    whole = Tenths(10 * planned_s)
    return title, min(int(10 * took_s), whole), whole


def _under_load(
    opened: LanguageModel,
    texts: Sequence[int],
    load: Load,
    options: GenerationOptions,
    tell: Callable[[str, int, int], None],
) -> Iterator[LoadRun]:
    return measure_in_slots(
        opened,
        texts,
        load,
        slots=options.slots,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        seconds=options.seconds,
        seed=options.seed,
        least=max(LEAST_ANSWERS, fewest_to_pass(options.max_miss_ratio) if options.budget else 0),
        tell=tell,
    )


def _goes_on(measured: Mapping[int, _Times], options: GenerationOptions, took_s: float) -> bool:
    """Whether more answers are wanted: for the time asked for, or to decide a budget."""
    if took_s < options.seconds or options.budget is None or took_s >= LONGER * options.seconds:
        return took_s < options.seconds
    judged = (times.judged(options) for times in measured.values())
    return any(answer_verdict is not None and not answer_verdict.is_decided for answer_verdict in judged)


def _length(count: int, options: GenerationOptions, times: _Times) -> LengthTimes:
    def told(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.int64)

    return LengthTimes(
        prompt_tokens=count,
        output_tokens=options.output_tokens,
        answers=len(times.ttft),
        ttft=summarize(told(times.ttft)),
        tpot=summarize(told(times.tpot)),
        itl=summarize(told(times.itl)),
        tokenize=summarize(told(times.tokenize)),
        detokenize=summarize(told(times.detokenize)),
        prefill=summarize(told(times.prefill)),
        answer=summarize(told(times.answer)),
        judged=times.judged(options),
    )
