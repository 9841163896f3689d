"""Measure an encoder with a decoder: features, encoder, first tokens and next tokens apart.

TTFT is from the sound or the text to the first token that is chosen: all but the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter_ns

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.sound import Sound
from edgeopt.measurement.fresh_process.cold_start import ColdStart
from edgeopt.measurement.fresh_process.language_start import run_cold_language
from edgeopt.measurement.generation.answers.series import AnswerSeries
from edgeopt.measurement.generation.held_out import made_up, require_answers
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.right_writer import correction_of_pair
from edgeopt.measurement.generation.sides.turns import Prompt
from edgeopt.measurement.generation.writer_block import Hears, OpenFacts, WriterBlock
from edgeopt.measurement.statistics.budget import require_provable
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder


@contextmanager
def prepare_sources(folder: Path, options: GenerationOptions) -> Iterator[SourceBlock]:
    """Open an encoder with its decoder, and make what it hears or reads.

    Args:
        folder: With encoder and decoder.
        options: What is measured; `prompt_tokens` are lengths of texts. Of a model that hears one window is measured.

    Raises:
        EdgeoptError: If it is none, or an answer is longer than the model writes.
    """
    require_provable(options.max_miss_ratio, "answers")
    began_s, correction = monotonic(), correction_of_pair(folder)
    before_ns = perf_counter_ns()
    with open_encoder_decoder(folder, options.threads, correction.entries) as opened:
        load_ms, files = (perf_counter_ns() - before_ns) / 1e6, opened.files
        require_answers(opened, options.output_tokens)
        _require_short(opened, options)
        yield SourceBlock(
            options=options,
            facts=OpenFacts(
                model=files.name,
                file=str(opened.origin.file),
                size_bytes=opened.size_bytes,
                parameters_told=files.kind,
                threads=opened.threads,
                load_ms=load_ms,
                token_bytes=opened.cache.token_bytes,
                heard_bytes=opened.cache.heard_bytes,
                context=files.context,
            ),
            notes=(*files.notes, *_note_of_beams(opened), *correction.notes),
            began_s=began_s,
            folder=folder,
            opened=opened,
            sources=made_up(opened, options.prompt_tokens, options.seed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBlock(WriterBlock):
    """An open encoder with its decoder, and what it hears or reads."""

    folder: Path
    opened: EncoderDecoder
    sources: Sequence[Prompt]
    """A window of noise, or random tokens of each length that is asked for."""

    @property
    def writer(self) -> EncoderDecoder:
        """The model."""
        return self.opened

    def series(self, options: GenerationOptions) -> list[AnswerSeries]:
        """Return a window of sound, or texts of each length."""
        if (audio := self.opened.files.audio) is not None:
            return [_series(f"{audio.samples / audio.rate_hz:g} s of sound", 0, self.sources[0])]
        lengths = zip(options.prompt_tokens, self.sources, strict=True)
        return [_series(f"{count} tokens", count, source) for count, source in lengths]

    def start_cold(self, options: GenerationOptions, series: Sequence[AnswerSeries], hears: Hears) -> ColdStart:
        """Start fresh processes, which answer the first source."""
        graphs, source = self.opened.files.files, self.sources[0]
        weights = [outside for graph in graphs for outside in outside_files(graph)]
        return run_cold_language(
            self.folder,
            [*graphs, *weights, self.opened.files.tokenizer],
            [] if isinstance(source, Sound) else source,
            self.opened.threads,
            self.opened.origin.entries,
            repeats=options.repeats,
            tell=lambda done, of: hears("start fresh processes", done, of),
        )


def _series(name: str, tokens: int, source: Prompt) -> AnswerSeries:
    return AnswerSeries(name, tokens, lambda: (source, None))


def _note_of_beams(opened: EncoderDecoder) -> tuple[Note, ...]:
    """Return a note where answers are searched for: what is timed takes the likeliest token."""
    count = opened.files.beams.count
    text = (
        f"the configuration asks for {count} beams: times are of one, and an answer takes about {count} times as many"
    )
    return (Note(NoteKind.INFO, f"{text} runs"),) if count > 1 else ()


def _require_short(opened: EncoderDecoder, options: GenerationOptions) -> None:
    """Raise where texts are longer than a model reads.

    Raises:
        EdgeoptError: If so.
    """
    longest = max(options.prompt_tokens)
    if opened.files.audio is None and longest > opened.reads:
        raise EdgeoptError(
            f"texts of {longest} tokens are longer than the {opened.reads} that the model reads",
            remedy="ask for shorter ones with --prompt-tokens",
        )
