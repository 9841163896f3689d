"""Measure a language model: answers of a fixed length to prompts of fixed lengths, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.fresh_process.language_start import run_cold_language
from edgeopt.measurement.fresh_process.start import ColdStart
from edgeopt.measurement.generation.answer_series import LEAST_ANSWERS, AnswerSeries, measure_answers
from edgeopt.measurement.generation.budget import fewest_to_pass
from edgeopt.measurement.generation.doubts import doubts_of_machine
from edgeopt.measurement.generation.guesses import AUTO, DRAFT, GuessForecast, forecast_guesses
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.result import GenerationResult
from edgeopt.measurement.generation.right_writer import correction_of_decoder
from edgeopt.measurement.generation.under_load.load import LEAST_ANSWERS as LEAST_OF_LOAD
from edgeopt.measurement.generation.under_load.load import LoadRun
from edgeopt.measurement.generation.under_load.load_result import summarize_run
from edgeopt.measurement.generation.under_load.slots import cut_prompt, measure_in_slots, notes_of, write_answers
from edgeopt.measurement.load.models import Load, parse_load
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.statistics.budget import require_provable
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.seen_prompt import PromptPicture, SeenPrompt
from edgeopt.runtime.decoding.batching.shared_model import MOST_SLOTS
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.image_reader import frame_of
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.disk.files import read_text, require_writable
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import plural

_MOST_TEXT_BYTES = 16 << 20


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
        pictures = _pictures(opened, options)
        longest = max(options.prompt_tokens) + options.output_tokens + len(pictures)
        if longest > opened.context:
            raise EdgeoptError(
                f"{plural(max(options.prompt_tokens) + len(pictures), 'prompt token')} and {options.output_tokens} of "
                f"the answer are {longest}, the context has {opened.context}",
                remedy="ask for shorter prompts or answers" + (", or fewer pictures" if pictures else ""),
            )
        texts = _texts(recipe.path_of(recipe.evaluation.calib), opened)
        forecast, options = _forecast(opened, texts, options, tell)
        readings = [take_reading()]
        alone_s = monotonic()
        measured, first_ttft_ms = _measure(opened, texts, options, tell, pictures)
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
            environment=read_environment(),
            load_ms=load_ms,
            first_ttft_ms=first_ttft_ms,
            token_bytes=opened.token_bytes,
            state_bytes=opened.state_bytes,
            context=opened.context,
            lengths=tuple(each.summary(options) for each in measured),
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
    prompt = list(texts[: options.prompt_tokens[0] - opened.begins_with])
    return run_cold_language(
        model,
        files_read(opened.origin.file, recipe),
        prompt,
        opened.origin.threads,
        opened.origin.entries,
        repeats=options.repeats,
        tell=lambda done, of: tell("start fresh processes", done, of),
    )


def files_read(file: Path, recipe: Recipe) -> tuple[Path, ...]:
    """Return every file that opening a language model reads: its graphs, their weights and its tokenizer.

    Args:
        file: The graph that computes tokens.
        recipe: Of the model: a graph of prompts and an encoder of pictures are files of their own.
    """
    graphs = [file]
    graphs += [file.parent / recipe.generation.prefill] if recipe.generation.prefill else []
    graphs += [recipe.folder / recipe.image.encoder] if recipe.image.encoder else []
    weights = [weight for graph in graphs for weight in outside_files(graph)]  # those that graphs share come once
    return tuple(dict.fromkeys([*graphs, *weights, recipe.folder / recipe.tokenizer.file]))


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


def _pictures(opened: LanguageModel, options: GenerationOptions) -> SeenPrompt:
    """Return the tokens of the pictures before each prompt; none where none are named.

    Raises:
        EdgeoptError: If the model sees none, one cannot be read, or an option does not go with them.
    """
    if not options.image:
        return SeenPrompt.of((), ())
    for name, value in (("--load", options.whole_load), ("--cold", options.cold), ("--guesses", options.guesses)):
        if value:
            raise EdgeoptError(f"{name} measures prompts of text alone", remedy=f"leave {name} or --image out")
    marks = opened.require_images().marks
    return marks.prompt(marks.mark * len(options.image), [PromptPicture.of(frame_of(each)) for each in options.image])


def _measure(
    opened: LanguageModel,
    texts: Sequence[int],
    options: GenerationOptions,
    tell: Callable[[str, int, int], None],
    pictures: SeenPrompt,
) -> tuple[list[AnswerSeries], float]:
    """Return answers by the length of their prompts, and the TTFT of the very first one in milliseconds."""
    chance = np.random.default_rng(options.seed)

    def prompt_of(count: int) -> tuple[Sequence[int], int]:
        tokens = cut_prompt(texts, count, chance)
        words, before_ns = opened.tokenizer.decode(tokens), perf_counter_ns()
        opened.tokenizer.encode(words)
        tokenize_ns = perf_counter_ns() - before_ns
        own = tokens[: count - opened.begins_with]
        return SeenPrompt.of((*pictures, *own), pictures.pictures) if pictures else own, tokenize_ns

    seen = f"{plural(len(options.image), 'picture')} and " if pictures else ""
    series = [
        AnswerSeries(f"{seen}{count} tokens", count + len(pictures), partial(prompt_of, count))
        for count in options.prompt_tokens
    ]
    exact = True if options.guesses and opened.sums is not Sums.APART else None
    asked = AnswerOptions(
        options.output_tokens, guesses=options.guesses, uses_draft=options.uses_draft, exact=exact, ends=False
    )
    return series, measure_answers(opened, series, asked, options, tell)


def _told_of_time(options: GenerationOptions, took_s: float) -> Iterator[Note]:
    """Yield that answers took far longer than was asked for; a budget may want that."""
    if options.budget is None and took_s > 2 * options.seconds:
        text = f"one request at a time took {took_s:.1f} s, {options.seconds:g} s were asked for"
        detail = f"{text}: {LEAST_ANSWERS} answers of each length are the least"
        yield Note(NoteKind.INFO, detail, "ask for shorter prompts or answers")


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
        least=max(LEAST_OF_LOAD, fewest_to_pass(options.max_miss_ratio) if options.budget else 0),
        tell=tell,
    )
