"""Measure an encoder with a decoder: features, encoder, first tokens and next tokens apart.

TTFT is from the sound or the text to the first token that is chosen: all but the last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, perf_counter_ns

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.sound import Sound
from edgeopt.measurement.fresh_process.language_start import run_cold_language
from edgeopt.measurement.fresh_process.start import ColdStart
from edgeopt.measurement.generation.answer_series import AnswerSeries, measure_answers
from edgeopt.measurement.generation.doubts import doubts_of_machine
from edgeopt.measurement.generation.held_out import made_up, require_answers
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.result import GenerationResult
from edgeopt.measurement.generation.right_writer import correction_of_pair
from edgeopt.measurement.generation.sides.turns import Prompt
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.statistics.budget import require_provable
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.machine.environment import read_environment


def bench_sources(
    folder: Path, options: GenerationOptions, *, tell: Callable[[str, int, int], None] = lambda *_: None
) -> GenerationResult:
    """Return the times of answers of a fixed length, which no end token ends.

    Args:
        folder: With encoder and decoder.
        options: What is measured; `prompt_tokens` are lengths of texts. Of a model that hears one window is measured.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If it is none, or an answer is longer than the model writes.
    """
    require_provable(options.max_miss_ratio, "answers")
    began_s, correction = monotonic(), correction_of_pair(folder)
    before_ns = perf_counter_ns()
    with open_encoder_decoder(folder, options.threads, correction.entries) as opened:
        load_ms, files = (perf_counter_ns() - before_ns) / 1e6, opened.files
        require_answers(opened, options.output_tokens)
        series = _sources(opened, options)
        readings = [take_reading()]
        asked = AnswerOptions(most_tokens=options.output_tokens, ends=False)
        first_ttft_ms = measure_answers(opened, series, asked, options, tell)
        readings.append(take_reading())
        given = series[0].next_prompt()[0]
        return GenerationResult(
            model=files.name,
            file=str(opened.origin.file),
            size_bytes=opened.size_bytes,
            parameters_told=files.kind,
            threads=opened.threads,
            environment=read_environment(),
            load_ms=load_ms,
            first_ttft_ms=first_ttft_ms,
            token_bytes=opened.cache.token_bytes,
            heard_bytes=opened.cache.heard_bytes,
            context=files.context,
            lengths=tuple(each.summary(options) for each in series),
            seconds=monotonic() - began_s,
            notes=(*files.notes, *_note_of_beams(opened), *correction.notes),
            disturbed=doubts_of_machine(readings),
            cold=_cold(folder, opened, given, options, tell) if options.cold else None,
        )


def _note_of_beams(opened: EncoderDecoder) -> tuple[Note, ...]:
    """Return a note where answers are searched for: what is timed takes the likeliest token."""
    count = opened.files.beams.count
    text = (
        f"the configuration asks for {count} beams: times are of one, and an answer takes about {count} times as many"
    )
    return (Note(NoteKind.INFO, f"{text} runs"),) if count > 1 else ()


def _cold(
    folder: Path,
    opened: EncoderDecoder,
    given: Prompt,
    options: GenerationOptions,
    tell: Callable[[str, int, int], None],
) -> ColdStart:
    """Return starts of fresh processes; this one's model stays open meanwhile, and does nothing."""
    graphs = opened.files.files
    return run_cold_language(
        folder,
        [*graphs, *(outside_file for file in graphs for outside_file in outside_files(file)), opened.files.tokenizer],
        [] if isinstance(given, Sound) else given,
        opened.threads,
        opened.origin.entries,
        repeats=options.repeats,
        tell=lambda done, of: tell("start fresh processes", done, of),
    )


def _sources(opened: EncoderDecoder, options: GenerationOptions) -> list[AnswerSeries]:
    """Return a window of noise, or random tokens of each length that is asked for."""
    audio, longest = opened.files.audio, max(options.prompt_tokens)
    if audio is None and longest > opened.reads:
        raise EdgeoptError(
            f"texts of {longest} tokens are longer than the {opened.reads} that the model reads",
            remedy="ask for shorter ones with --prompt-tokens",
        )
    made = made_up(opened, options.prompt_tokens, options.seed)

    def series(name: str, tokens: int, source: Prompt) -> AnswerSeries:
        return AnswerSeries(name, tokens, lambda: (source, None))

    if audio is not None:
        return [series(f"{audio.samples / audio.rate_hz:g} s of sound", 0, made[0])]
    return [series(f"{count} tokens", count, source) for count, source in zip(options.prompt_tokens, made, strict=True)]
