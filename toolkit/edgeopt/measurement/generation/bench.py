"""Measure a language model: answers of a fixed length to prompts of fixed lengths, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.fresh_process.cold_start import ColdStart
from edgeopt.measurement.fresh_process.language_start import run_cold_language
from edgeopt.measurement.generation.answers.series import AnswerSeries
from edgeopt.measurement.generation.budget import fewest_to_pass
from edgeopt.measurement.generation.guesses import AUTO, DRAFT, GuessForecast, forecast_guesses
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.right_writer import correction_of_decoder
from edgeopt.measurement.generation.under_load.load import LEAST_ANSWERS as LEAST_OF_LOAD
from edgeopt.measurement.generation.under_load.load import LoadRun
from edgeopt.measurement.generation.under_load.slots import cut_prompt, measure_in_slots
from edgeopt.measurement.generation.writer_block import Hears, OpenFacts, WriterBlock
from edgeopt.measurement.load.models import Load, parse_load
from edgeopt.measurement.statistics.budget import require_provable
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.answer_defaults import MOST_SLOTS
from edgeopt.recipes.texts.seen_prompt import PromptPicture, SeenPrompt
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.image_reader import frame_of
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.disk.files import read_text, require_writable
from edgeopt.system.text import plural

_MOST_TEXT_BYTES = 16 << 20


@contextmanager
def prepare_language(model: Path, options: GenerationOptions, out: Path | None = None) -> Iterator[LanguageBlock]:
    """Open a language model, and read the text of which its prompts are cut.

    Args:
        model: A bundle, or the ONNX file with its recipe and tokenizer beside it.
        options: What is measured; no end of a text ends an answer, and no cache is reused.
        out: Folder for all requests of a load, `answers.jsonl`; None: they are not written.

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
        _require_room(opened, options, pictures)
        made_up = () if recipe.evaluation.calib else (_MADE_UP,)
        yield LanguageBlock(
            options=options,
            out=out,
            facts=OpenFacts(
                model=recipe.name,
                file=str(opened.origin.file),
                size_bytes=opened.origin.size_bytes,
                parameters_told=recipe.description,
                threads=opened.origin.threads,
                load_ms=load_ms,
                token_bytes=opened.token_bytes,
                state_bytes=opened.state_bytes,
                context=opened.context,
            ),
            notes=(*opened.origin.notes, *correction.notes, *made_up),
            began_s=began_s,
            source=model,
            opened=opened,
            recipe=recipe,
            texts=_texts(recipe.path_of(recipe.evaluation.calib), opened),
            pictures=pictures,
            load=load,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageBlock(WriterBlock):
    """An open language model, and the text of which its prompts are cut."""

    source: Path
    opened: LanguageModel
    recipe: Recipe
    texts: Sequence[int]
    """Tokens of which prompts are cut."""
    pictures: SeenPrompt
    """Pictures before each prompt; empty: none."""
    load: Load | None

    @property
    def writer(self) -> LanguageModel:
        """The model."""
        return self.opened

    def forecast(self, hears: Hears) -> GuessForecast | None:
        """Predict what guesses gain, where any are asked for."""
        options, opened, texts = self.options, self.opened, self.texts
        if not options.guesses:
            return None
        hears("predict what guesses gain", 0, 1)
        count = max(options.prompt_tokens)
        starts = [int(share * (len(texts) - count)) for share in (0.1, 0.5, 0.8)]
        prompts = [texts[start : start + count - opened.begins_with] for start in starts]
        counts = () if options.guesses == AUTO else (options.guesses,)
        return forecast_guesses(opened, prompts, options.output_tokens, counts, uses_draft=options.uses_draft)

    def options_by(self, forecast: GuessForecast | None) -> GenerationOptions:
        """Return the options with as many guesses as pay, where the forecast is to decide."""
        if forecast is None or self.options.guesses != AUTO:
            return self.options
        best = forecast.best
        return replace(self.options, guesses=best.guesses if forecast.pays else 0, uses_draft=best.by == DRAFT)

    def notes_on(self, options: GenerationOptions) -> Sequence[Note]:
        """Return what is said of guesses that may change an answer."""
        guesses = self.opened.guesses if options.guesses is None else options.guesses
        return notes_of_guesses(self.opened.sums) if guesses else ()

    def wanted(self, options: GenerationOptions) -> AnswerOptions:
        """Return what is asked of each answer, its guesses too."""
        exact = True if options.guesses and self.opened.sums is not Sums.APART else None
        return AnswerOptions(
            options.output_tokens, guesses=options.guesses, uses_draft=options.uses_draft, exact=exact, ends=False
        )

    def series(self, options: GenerationOptions) -> list[AnswerSeries]:
        """Return prompts of each length, cut from anywhere in the text, behind the pictures."""
        chance, pictures, opened = np.random.default_rng(options.seed), self.pictures, self.opened

        def prompt_of(count: int) -> tuple[Sequence[int], int]:
            tokens = cut_prompt(self.texts, count, chance)
            words, before_ns = opened.tokenizer.decode(tokens), perf_counter_ns()
            opened.tokenizer.encode(words)
            tokenize_ns = perf_counter_ns() - before_ns
            own = tokens[: count - opened.begins_with]
            return SeenPrompt.of((*pictures, *own), pictures.pictures) if pictures else own, tokenize_ns

        seen = f"{plural(len(options.image), 'picture')} and " if pictures else ""
        return [
            AnswerSeries(f"{seen}{count} tokens", count + len(pictures), partial(prompt_of, count))
            for count in options.prompt_tokens
        ]

    def run_load(self, options: GenerationOptions, hears: Hears) -> tuple[LoadRun, ...]:
        """Answer under the load, in each number of slots."""
        if self.load is None:
            return ()
        runs = measure_in_slots(
            self.opened,
            self.texts,
            self.load,
            slots=options.slots,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            seconds=options.seconds,
            seed=options.seed,
            least=max(LEAST_OF_LOAD, fewest_to_pass(options.max_miss_ratio) if options.budget else 0),
            tell=hears,
        )
        return tuple(runs)

    def start_cold(self, options: GenerationOptions, series: Sequence[AnswerSeries], hears: Hears) -> ColdStart:
        """Start fresh processes, which answer a prompt of the first length."""
        file = self.opened.origin.file
        return run_cold_language(
            self.source,
            files_read(file, self.recipe),
            list(self.texts[: options.prompt_tokens[0] - self.opened.begins_with]),
            self.opened.origin.threads,
            self.opened.origin.entries,
            repeats=options.repeats,
            tell=lambda done, of: hears("start fresh processes", done, of),
        )


def _require_room(opened: LanguageModel, options: GenerationOptions, pictures: SeenPrompt) -> None:
    """Raise where the longest prompt and its answer are longer than the context.

    Raises:
        EdgeoptError: If so.
    """
    prompt = max(options.prompt_tokens) + len(pictures)
    if prompt + options.output_tokens > opened.context:
        raise EdgeoptError(
            f"{plural(prompt, 'prompt token')} and {options.output_tokens} of "
            f"the answer are {prompt + options.output_tokens}, the context has {opened.context}",
            remedy="ask for shorter prompts or answers" + (", or fewer pictures" if pictures else ""),
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
    return marks.prompt(
        marks.feeder.alone * len(options.image), [PromptPicture.of(frame_of(each)) for each in options.image]
    )
